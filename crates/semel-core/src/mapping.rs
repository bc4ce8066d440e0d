//! What a relay changes about events before its sink sees them, the same for every sink: topic, headers, content mode.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::cloudevents;
use crate::error::{ErrorKind, StoreError};
use crate::event::{self, Event};
use crate::host::Timestamp;
use crate::limits::LimitExceeded;
use crate::relay::{LogPlace, ShardId};
use crate::store::{
    LogSink, OutboxRow, Sink, SinkError, SinkErrorClass, SinkFuture, SinkOrder, TransactionEnd,
    TransactionFuture,
};

/// Where the topic goes into a template.
pub const TOPIC_PLACE: &str = "{topic}";

/// What is changed. The default changes nothing.
///
/// Ids, keys, order, types and times are never changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mapping {
    /// The topic to send to, by the topic that the event names.
    pub topics: BTreeMap<String, String>,
    /// The topic to send to for all others: a template in which `{topic}` stands for the event's own. `None` keeps it.
    pub topic: Option<String>,
    /// Headers to leave out, in any case of letters. It is done before others are added, so that naming one here and
    /// there replaces it.
    pub headers_drop: Vec<String>,
    /// Headers to add behind the event's own.
    pub headers_add: Vec<(String, Bytes)>,
    /// Whether the data is sent as a CloudEvents document ([`cloudevents`]) instead of as it is. A tombstone stays
    /// one, as logs know it by having no data.
    pub structured: bool,
}

impl Mapping {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        *self == Self::default()
    }

    /// Refuses what would spoil every event: topics and headers that could not be sent.
    ///
    /// # Errors
    /// The limit that is exceeded.
    pub fn check(&self) -> Result<(), LimitExceeded> {
        for topic in self.topics.values() {
            event::check_name("topic", topic)?;
        }
        if let Some(template) = &self.topic {
            event::check_name("topic", &template.replace(TOPIC_PLACE, "t"))?;
        }
        let probe = Event {
            headers: self.headers_add.clone(),
            ..Event::new(uuid::Uuid::nil(), "t", "t")
        };
        probe.check()
    }

    /// The topic that an event of this topic goes to.
    #[must_use]
    pub fn topic(&self, topic: &str) -> String {
        match (self.topics.get(topic), &self.topic) {
            (Some(own), _) => own.clone(),
            (None, Some(template)) => template.replace(TOPIC_PLACE, topic),
            (None, None) => topic.to_owned(),
        }
    }

    /// The row as its sink sees it.
    #[must_use]
    pub fn apply(&self, row: &OutboxRow) -> OutboxRow {
        let mut row = row.clone();
        let event = &mut row.event;
        event.topic = self.topic(&event.topic);
        if !self.headers_drop.is_empty() {
            let dropped = |name: &str| self.headers_drop.iter().any(|it| it.eq_ignore_ascii_case(name));
            event.headers.retain(|(name, _)| !dropped(name));
        }
        event.headers.extend(self.headers_add.iter().cloned());
        if self.structured && event.data.is_some() {
            // Strings and bytes always become JSON; were there another way, the data would go as it is.
            if let Ok(document) = cloudevents::document(&row) {
                row.event.data = Some(document);
                row.event.content_type = Some(cloudevents::MEDIA_TYPE.to_owned());
            }
        }
        row
    }
}

/// A sink behind a [`Mapping`].
pub struct MappedSink {
    mapping: Mapping,
    inner: Arc<dyn Sink>,
}

impl std::fmt::Debug for MappedSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MappedSink")
            .field("sink", &self.inner.name())
            .finish_non_exhaustive()
    }
}

/// The sink that publishes what the mapping makes of events; the sink itself where that changes nothing.
///
/// # Errors
/// `Invalid`: see [`Mapping::check`]; and topics or headers that this sink refuses, such as a header that it sets itself.
/// Every event would be refused for them.
pub fn mapped(inner: Arc<dyn Sink>, mapping: Mapping) -> Result<Arc<dyn Sink>, StoreError> {
    let invalid = |limit: LimitExceeded| {
        let text = format!("topic, topics or headers_add of the relay: {limit}");
        StoreError::new(ErrorKind::Invalid, "mapping", text)
    };
    mapping.check().map_err(invalid)?;
    if mapping.is_identity() {
        return Ok(inner);
    }
    let topics: Vec<String> = mapping.topics.keys().cloned().collect();
    let sink = MappedSink { mapping, inner };
    for topic in topics.iter().map(String::as_str).chain(["t"]) {
        let smallest = Event::new(uuid::Uuid::nil(), topic, "t").with_data("application/json", "{}");
        sink.check(&smallest).map_err(invalid)?;
    }
    Ok(Arc::new(sink))
}

/// Why an event that the sink would take as it is cannot be sent as a document.
const DOCUMENT: &str = "as a CloudEvents document data is up to a third longer (base64): send about 670000 bytes at most where \
                        900000 are taken, set cloudevents = \"binary\", or raise the limit of the sink and of its broker";

#[async_trait]
impl Sink for MappedSink {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn order(&self) -> SinkOrder {
        self.inner.order()
    }

    /// Of what would be sent: a document is longer than its data, a topic than its name.
    fn check(&self, event: &Event) -> Result<(), LimitExceeded> {
        let row = self.mapping.apply(&OutboxRow {
            row: 0,
            created_at: Timestamp(0),
            batch_no: 0,
            event: event.clone(),
        });
        event::check_name("topic", &row.event.topic)?;
        self.inner.check(&row.event).map_err(|limit| {
            let as_it_is = Mapping {
                structured: false,
                ..self.mapping.clone()
            };
            let row = as_it_is.apply(&OutboxRow {
                event: event.clone(),
                ..row
            });
            match self.inner.check(&row.event) {
                Ok(()) => LimitExceeded {
                    help: DOCUMENT,
                    ..limit
                },
                Err(_) => limit,
            }
        })
    }

    fn publish_many(&self, rows: &[Arc<OutboxRow>], deadline: Duration) -> SinkFuture {
        let rows: Vec<_> = rows.iter().map(|row| Arc::new(self.mapping.apply(row))).collect();
        self.inner.publish_many(&rows, deadline)
    }

    async fn probe(&self) -> Result<(), SinkError> {
        self.inner.probe().await
    }

    fn log(&self) -> Option<&dyn LogSink> {
        self.inner.log().map(|_| self as &dyn LogSink)
    }
}

#[async_trait]
impl LogSink for MappedSink {
    async fn resume(&self, shard: &ShardId) -> Result<Option<LogPlace>, SinkError> {
        match self.inner.log() {
            Some(log) => log.resume(shard).await,
            None => Err(no_log()),
        }
    }

    fn commit(
        &self,
        shard: &ShardId,
        rows: &[Arc<OutboxRow>],
        place: LogPlace,
        deadline: Duration,
    ) -> TransactionFuture {
        let rows: Vec<_> = rows.iter().map(|row| Arc::new(self.mapping.apply(row))).collect();
        match self.inner.log() {
            Some(log) => log.commit(shard, &rows, place, deadline),
            None => Box::pin(std::future::ready(TransactionEnd::Unknown(no_log()))),
        }
    }

    fn go_on(&self, shard: &ShardId) {
        if let Some(log) = self.inner.log() {
            log.go_on(shard);
        }
    }

    fn close(&self, shard: &ShardId) {
        if let Some(log) = self.inner.log() {
            log.close(shard);
        }
    }
}

fn no_log() -> SinkError {
    SinkError::new(SinkErrorClass::Destination, "the sink is no log")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;
    use std::sync::Mutex;
    use uuid::Uuid;

    fn mapping() -> Mapping {
        Mapping {
            topics: [("orders".to_owned(), "shop-orders-v2".to_owned())].into(),
            topic: Some("shop.{topic}".to_owned()),
            headers_drop: vec!["internal".to_owned(), "env".to_owned()],
            headers_add: vec![("env".to_owned(), Bytes::from_static(b"prod"))],
            structured: false,
        }
    }

    fn row(topic: &str) -> OutboxRow {
        OutboxRow {
            row: 3,
            created_at: Timestamp(5),
            batch_no: 0,
            event: Event::new(Uuid::from_u128(7), topic, "placed")
                .with_key("k")
                .with_data("application/json", "{}")
                .with_header("a", "1")
                .with_header("Internal", "x")
                .with_header("ENV", "test")
                .with_header("a", vec![0xff]),
        }
    }

    #[test]
    fn topics_go_by_name_then_by_template() {
        let (orders, other) = (mapping().apply(&row("orders")), mapping().apply(&row("parcels")));
        assert_eq!(orders.event.topic, "shop-orders-v2");
        assert_eq!(other.event.topic, "shop.parcels");
        assert_eq!(Mapping::default().apply(&row("orders")), row("orders"));
    }

    #[test]
    fn headers_are_dropped_then_added_and_the_others_keep_order_and_repeats() {
        let it = mapping().apply(&row("orders")).event;
        let expected: Vec<(String, Bytes)> = vec![
            ("a".into(), "1".into()),
            ("a".into(), Bytes::from_static(&[0xff])),
            ("env".into(), "prod".into()),
        ];
        assert_eq!(it.headers, expected);
        let original = row("orders").event;
        assert_eq!(
            (it.id, it.key, it.data),
            (original.id, original.key, original.data)
        );
    }

    #[test]
    fn structured_mode_wraps_the_data_and_leaves_a_tombstone_alone() {
        let mapping = Mapping {
            structured: true,
            ..mapping()
        };
        let it = mapping.apply(&row("parcels"));
        assert_eq!(it.event.content_type.as_deref(), Some(cloudevents::MEDIA_TYPE));
        let document = cloudevents::read(&it.event.data.unwrap()).unwrap();
        assert_eq!(document.data.unwrap(), "{}");
        let mut gone = row("parcels");
        gone.event.data = None;
        assert_eq!(mapping.apply(&gone).event.data, None);
    }

    #[test]
    fn a_mapping_that_could_send_nothing_is_refused() {
        for bad in [
            Mapping {
                topic: Some("shop/{topic}".to_owned()),
                ..Mapping::default()
            },
            Mapping {
                topics: [("a".to_owned(), String::new())].into(),
                ..Mapping::default()
            },
            Mapping {
                headers_add: vec![("a b".to_owned(), Bytes::new())],
                ..Mapping::default()
            },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        mapping().check().unwrap();
    }

    #[derive(Default)]
    struct Kept(Mutex<Vec<OutboxRow>>);

    #[async_trait]
    impl Sink for Kept {
        fn name(&self) -> &'static str {
            "kept"
        }

        fn order(&self) -> SinkOrder {
            SinkOrder::OnePerKey { in_flight_max: 3 }
        }

        /// As sinks do: a header of its own, and a limit for data.
        fn check(&self, event: &Event) -> Result<(), LimitExceeded> {
            let own = event.headers.iter().filter(|(name, _)| name == "ce-id").count();
            limits::check(
                "header name",
                "names of the sink's own",
                own as u64,
                0,
                0,
                "rename it",
            )?;
            event.check()
        }

        fn publish_many(&self, rows: &[Arc<OutboxRow>], _: Duration) -> SinkFuture {
            self.0
                .lock()
                .unwrap()
                .extend(rows.iter().map(|row| (**row).clone()));
            Box::pin(std::future::ready(vec![Ok(()); rows.len()]))
        }

        async fn probe(&self) -> Result<(), SinkError> {
            Ok(())
        }
    }

    #[test]
    fn a_mapping_whose_every_event_the_sink_would_refuse_is_refused_when_it_is_built() {
        let mut spoilt = mapping();
        spoilt.headers_add.push(("ce-id".to_owned(), "1".into()));
        let error = mapped(Arc::new(Kept::default()), spoilt).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let text = error.to_string();
        assert!(
            text.contains("headers_add") && text.contains("rename it"),
            "{text}"
        );
    }

    #[test]
    fn a_document_that_is_too_long_is_named_as_what_it_is() {
        let structured = Mapping {
            structured: true,
            ..Mapping::default()
        };
        let sink = mapped(Arc::new(Kept::default()), structured).unwrap();
        let event = |bytes| {
            Event::new(Uuid::from_u128(7), "t", "t").with_data("application/octet-stream", vec![0xff; bytes])
        };
        sink.check(&event(670_000)).unwrap();
        let error = sink.check(&event(900_000)).unwrap_err();
        assert!(
            error.help.contains("670000") && error.help.contains("binary"),
            "{error}"
        );
        // What would not go either way is not for this reason.
        let error = sink.check(&event(900_001)).unwrap_err();
        assert!(!error.help.contains("670000"), "{error}");
    }

    #[test]
    fn the_sink_is_asked_about_what_it_will_see() {
        let kept = Arc::new(Kept::default());
        let sink = mapped(Arc::clone(&kept) as _, mapping()).unwrap();
        // A topic that is short enough until the template makes it longer.
        let long = "t".repeat(limits::TOPIC_BYTES_MAX - 2);
        assert!(kept.check(&row(&long).event).is_ok());
        assert!(sink.check(&row(&long).event).is_err());
        drop(sink.publish_many(&[Arc::new(row("parcels"))], Duration::ZERO));
        assert_eq!(*kept.0.lock().unwrap(), [mapping().apply(&row("parcels"))]);
        assert_eq!((sink.name(), sink.order()), (kept.name(), kept.order()));
    }
}
