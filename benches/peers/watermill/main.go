// Watermill's forwarder: its subscriber on PostgreSQL, its publisher to Kafka. Arguments: database-url kafka poll-interval.
package main

import (
	"context"
	"database/sql"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/lib/pq"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	poll, err := time.ParseDuration(os.Args[3])
	must(err)
	db, err := sql.Open("postgres", os.Args[1]+"?sslmode=disable")
	must(err)
	logger := watermill.NewStdLogger(false, false)
	subscriber, err := wsql.NewSubscriber(wsql.BeginnerFromStdSQL(db), wsql.SubscriberConfig{
		ConsumerGroup: "peer",
		PollInterval:  poll,
		SchemaAdapter: wsql.DefaultPostgreSQLSchema{
			SubscribeBatchSize:  100,
			GeneratePayloadType: func(string) string { return "BYTEA" },
		},
		OffsetsAdapter:   wsql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
	}, logger)
	must(err)
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Retry.Max = 10
	config.Net.MaxOpenRequests = 1
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: []string{os.Args[2]},
		Marshaler: kafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) {
			return m.Metadata.Get("key"), nil
		}),
		OverwriteSaramaConfig: config,
	}, logger)
	must(err)
	relay, err := forwarder.NewForwarder(subscriber, publisher, logger, forwarder.Config{ForwarderTopic: "peer"})
	must(err)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	must(relay.Run(ctx))
}
