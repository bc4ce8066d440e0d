//! Kafka's transactions obey the laws of logs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use semel_core::{Event, Sink};
use semel_kafka::{KafkaLog, KafkaLogConfig};
use semel_testkit::laws::log::LogBed;
use semel_testkit::laws::sink::{Arrived, Line};

use crate::laws::{Behind, LARGE, behind, properties};

/// Processes that publish under one name into a broker behind a proxy.
struct Bed {
    behind: Behind,
    name: String,
}

async fn bed() -> Bed {
    let behind = behind().await;
    let name = behind.fresh_name("log").await;
    Bed { behind, name }
}

#[async_trait]
impl LogBed for Bed {
    fn process(&self) -> Arc<dyn Sink> {
        let config = KafkaLogConfig {
            transaction_timeout: Duration::from_secs(5),
            properties: properties(),
            ..KafkaLogConfig::new(self.behind.bootstrap(), &self.name)
        };
        Arc::new(KafkaLog::new(config).unwrap())
    }

    fn line(&self) -> &dyn Line {
        self.behind.line()
    }

    async fn topic(&self) -> String {
        self.behind.topic().await
    }

    async fn committed(&self, topic: &str) -> Vec<Arrived> {
        self.behind.read(topic).await
    }

    fn refused(&self, event: Event) -> Option<Event> {
        Some(event.with_data("text/plain", vec![b'x'; LARGE + 1]))
    }

    fn oversized(&self, event: Event) -> Option<Event> {
        // More than the client sends.
        Some(event.with_data("text/plain", vec![b'x'; 500_001]))
    }
}

semel_testkit::log_laws!(bed);
