package bench;

import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.connect.source.SourceRecord;

/** Debezium's embedded engine with the outbox router on semel.outbox. Arguments: host port database slot offsets-file kafka poll-ms. */
public final class Relay {
    private static byte[] bytes(Object value) {
        if (value == null || value instanceof byte[]) {
            return (byte[]) value;
        }
        if (value instanceof ByteBuffer buffer) {
            byte[] bytes = new byte[buffer.remaining()];
            buffer.duplicate().get(bytes);
            return bytes;
        }
        return value.toString().getBytes(StandardCharsets.UTF_8);
    }

    public static void main(String[] args) throws Exception {
        Map<String, Object> kafka = Map.of("bootstrap.servers", args[5], "enable.idempotence", "true", "acks", "all",
            "linger.ms", "2", "batch.size", "262144", "buffer.memory", "67108864");
        KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(kafka, new ByteArraySerializer(), new ByteArraySerializer());
        String[][] settings = {
            {"name", "peer"}, {"connector.class", "io.debezium.connector.postgresql.PostgresConnector"},
            {"topic.prefix", "peer"}, {"database.hostname", args[0]}, {"database.port", args[1]},
            {"database.user", "postgres"}, {"database.password", "-"}, {"database.dbname", args[2]},
            {"plugin.name", "pgoutput"}, {"slot.name", args[3]}, {"publication.name", "peer"},
            {"publication.autocreate.mode", "disabled"}, {"table.include.list", "semel.outbox"},
            {"snapshot.mode", "no_data"}, {"tombstones.on.delete", "false"}, {"binary.handling.mode", "bytes"},
            {"offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore"},
            {"offset.storage.file.filename", args[4]}, {"offset.flush.interval.ms", "1000"},
            {"poll.interval.ms", args[6]}, {"transforms", "outbox"},
            {"transforms.outbox.type", "io.debezium.transforms.outbox.EventRouter"},
            {"transforms.outbox.table.field.event.id", "event_id"}, {"transforms.outbox.table.field.event.key", "key"},
            {"transforms.outbox.table.field.event.payload", "data"}, {"transforms.outbox.route.by.field", "topic"},
            {"transforms.outbox.route.topic.replacement", "${routedByValue}"},
        };
        Properties properties = new Properties();
        for (String[] setting : settings) {
            properties.put(setting[0], setting[1]);
        }
        DebeziumEngine<RecordChangeEvent<SourceRecord>> engine = DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
            .using(properties)
            .using((good, message, error) -> {
                System.err.println("the engine ended: " + message);
                if (error != null) {
                    error.printStackTrace();
                }
                System.exit(good ? 0 : 1);
            })
            .notifying((List<RecordChangeEvent<SourceRecord>> events,
                DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer) -> {
                List<Future<RecordMetadata>> sent = new ArrayList<>(events.size());
                for (RecordChangeEvent<SourceRecord> event : events) {
                    SourceRecord from = event.record();
                    ProducerRecord<byte[], byte[]> to =
                        new ProducerRecord<>(from.topic(), bytes(from.key()), bytes(from.value()));
                    from.headers().forEach(header -> to.headers().add(header.key(), bytes(header.value())));
                    sent.add(producer.send(to));
                }
                try {
                    for (int i = 0; i < sent.size(); i++) {
                        sent.get(i).get();
                        committer.markProcessed(events.get(i));
                    }
                } catch (java.util.concurrent.ExecutionException error) {
                    throw new IllegalStateException(error);
                }
                committer.markBatchFinished();
            })
            .build();
        engine.run();
    }
}
