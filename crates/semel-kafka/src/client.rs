//! What all clients of librdkafka have in common: settings, where its log lines go, and what it said last.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use rdkafka::{ClientConfig, ClientContext};
use semel_core::store::{SinkError, SinkErrorClass};
use semel_core::{ErrorKind, StoreError};

use crate::access::{self, KafkaAccess};
use crate::sink::class::class;

/// How long a topic may be unknown to the brokers before it counts as missing, by default. Below the time that a relay
/// waits for a send: librdkafka counts anew for each producer, and one that did not answer in time is thrown away.
pub(crate) const TOPIC_WAIT: Duration = Duration::from_secs(2);
/// librdkafka's name for it.
pub(crate) const TOPIC_WAIT_SETTING: &str = "topic.metadata.propagation.max.ms";

/// A client's settings: Semel's own, which carry its guarantees, and the user's, which may not contradict them.
///
/// # Errors
/// `Invalid` when the user sets what Semel must set itself, and those of [`KafkaAccess::check`].
pub(crate) fn settings(
    bootstrap: &str,
    access: &KafkaAccess,
    own: &[(&'static str, String)],
    user: &BTreeMap<String, String>,
) -> Result<ClientConfig, StoreError> {
    access.check(user)?;
    let mut config = ClientConfig::new();
    // What becomes of connections is told in these lines, of some in no other way.
    config.set_log_level(RDKafkaLogLevel::Info);
    config.set("bootstrap.servers", bootstrap);
    config.set("client.id", "semel");
    for (name, value) in user {
        let name = canonical(name);
        if name == "bootstrap.servers" || own.iter().any(|(taken, _)| *taken == name) {
            let text =
                format!("`{name}` is set by Semel, whose guarantees need it: remove it from properties");
            return Err(StoreError::new(ErrorKind::Invalid, "kafka configuration", text));
        }
        config.set(name, value);
    }
    for (name, value) in own.iter().chain(&access.settings()) {
        config.set(*name, value);
    }
    Ok(config)
}

/// librdkafka knows some settings by two names.
pub(crate) fn canonical(name: &str) -> &str {
    match name {
        "metadata.broker.list" => "bootstrap.servers",
        "delivery.timeout.ms" => "message.timeout.ms",
        "request.required.acks" => "acks",
        "retries" => "message.send.max.retries",
        "max.in.flight" => "max.in.flight.requests.per.connection",
        "queue.buffering.max.ms" => "linger.ms",
        "sasl.mechanism" => "sasl.mechanisms",
        other => other,
    }
}

/// Whether the value of this setting is for nobody's eyes.
fn is_secret(name: &str) -> bool {
    ["password", "secret", "key.pem", "token"]
        .iter()
        .any(|word| name.contains(word))
}

/// A client could not be made: a setting is unknown, or its value is not allowed.
pub(crate) fn not_made(error: KafkaError) -> StoreError {
    let text = match &error {
        KafkaError::ClientConfig(_, why, name, _) if is_secret(name) => {
            // The error itself shows the value.
            let text = format!("librdkafka refuses the value of {name}: {why}");
            return StoreError::new(ErrorKind::Invalid, "kafka configuration", text);
        }
        KafkaError::ClientConfig(_, why, name, value) => {
            format!("librdkafka refuses {name} = {value}: {why}")
        }
        KafkaError::ClientCreation(why) => format!("librdkafka refuses the settings: {why}"),
        _ => "librdkafka refuses the settings".to_owned(),
    };
    StoreError::new(ErrorKind::Invalid, "kafka configuration", text).with_source(error)
}

/// Takes leave of a client on a thread of its own: that takes up to a tenth of a second, which nobody has to wait for.
pub(crate) fn leave(client: impl Send + 'static) {
    let leaving = std::thread::Builder::new().name("semel-kafka-end".to_owned());
    if let Err(error) = leaving.spawn(move || drop(client)) {
        tracing::debug!(%error, "no thread to end a client on; it was ended here");
    }
}

/// librdkafka's own log lines.
pub(crate) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        // Of a property that Semel sets itself, at each start: nothing that a reader of the log can change.
        RDKafkaLogLevel::Warning
            if facility == "CONFWARN" && message.contains("enable.gapless.guarantee") =>
        {
            tracing::debug!(facility, "librdkafka: {message}");
        }
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error => tracing::error!(facility, "librdkafka: {message}"),
        // Connections that come and go.
        RDKafkaLogLevel::Warning
        | RDKafkaLogLevel::Notice
        | RDKafkaLogLevel::Info
        | RDKafkaLogLevel::Debug => tracing::debug!(facility, "librdkafka: {message}"),
    }
}

/// Errors of the client as a whole, such as a broker that is down: librdkafka goes on trying by itself.
pub(crate) fn global_error(error: &KafkaError, reason: &str) {
    tracing::warn!(%error, "librdkafka: {reason}");
}

/// What a client said last outside of any answer: why a record is not delivered, where nobody answers at all.
#[derive(Debug, Default)]
pub(crate) struct Said {
    last: Mutex<Option<SinkError>>,
    any: AtomicBool,
}

impl Said {
    fn lock(&self) -> MutexGuard<'_, Option<SinkError>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// librdkafka says it. What only a person can mend is not forgotten for what follows from it.
    pub(crate) fn hear(&self, error: &KafkaError, reason: &str) {
        global_error(error, reason);
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        let class = match class(code) {
            SinkErrorClass::Destination => SinkErrorClass::Destination,
            _ => SinkErrorClass::Away,
        };
        let mut last = self.lock();
        let keep = |last: &SinkError| {
            code == RDKafkaErrorCode::AllBrokersDown
                || (last.class == SinkErrorClass::Destination && class != SinkErrorClass::Destination)
        };
        if !last.as_ref().is_some_and(keep) {
            *last = Some(SinkError::new(class, reason));
            self.any.store(true, Ordering::Release);
        }
    }

    /// A line of librdkafka's log. That a connection was closed is told in lines alone; the reason can be one that only a
    /// person can mend.
    pub(crate) fn overhear(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log(level, facility, line);
        if facility == "FAIL"
            && let Some(why) = access::why_not(line)
        {
            *self.lock() = Some(SinkError::new(SinkErrorClass::Destination, why));
            self.any.store(true, Ordering::Release);
        }
    }

    /// A broker has answered: it is over.
    pub(crate) fn forget(&self) {
        if self.any.load(Ordering::Acquire) {
            *self.lock() = None;
            self.any.store(false, Ordering::Release);
        }
    }

    /// An error of a broker that is away, with what was said.
    pub(crate) fn explain(&self, error: SinkError) -> SinkError {
        match &*self.lock() {
            Some(said) if error.class == SinkErrorClass::Away => {
                let text = format!("{}; the client's last error: {}", error.message, said.message);
                SinkError::new(said.class, text)
            }
            _ => error,
        }
    }
}

/// Hears what a client says outside of its answers.
#[derive(Default)]
pub(crate) struct Ears(pub(crate) Said);

impl ClientContext for Ears {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.0.overhear(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.hear(&error, reason);
    }
}

impl ConsumerContext for Ears {}

impl ProducerContext for Ears {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_a_person_can_mend_is_kept_until_a_broker_answers() {
        let said = Said::default();
        let away = || SinkError::new(SinkErrorClass::Away, "no answer");
        let same = |told: SinkError, error: SinkError| {
            assert_eq!((told.class, told.message), (error.class, error.message));
        };
        same(said.explain(away()), away());
        let hear = |code, text| said.hear(&KafkaError::Global(code), text);
        hear(RDKafkaErrorCode::BrokerTransportFailure, "refused");
        hear(RDKafkaErrorCode::AllBrokersDown, "1/1 are down");
        let told = said.explain(away());
        assert_eq!(told.class, SinkErrorClass::Away);
        assert_eq!(told.message, "no answer; the client's last error: refused");
        hear(RDKafkaErrorCode::Authentication, "wrong password");
        hear(RDKafkaErrorCode::BrokerTransportFailure, "closed");
        let told = said.explain(away());
        assert_eq!(told.class, SinkErrorClass::Destination);
        assert!(told.message.ends_with("wrong password"), "{told}");
        let own = SinkError::new(SinkErrorClass::Message, "too large");
        same(said.explain(own.clone()), own);
        said.forget();
        same(said.explain(away()), away());
    }

    #[test]
    fn a_setting_that_is_refused_is_named_and_shown_unless_it_is_secret() {
        let refused = |name: &str| {
            let mut config = ClientConfig::new();
            config.set(name, "open sesame");
            not_made(config.create_native_config().err().unwrap())
        };
        let shown = semel_core::error::chain(&refused("no.such.setting"));
        assert!(shown.contains("no.such.setting = open sesame"), "{shown}");
        let hidden = semel_core::error::chain(&refused("no.such.password"));
        assert!(
            hidden.contains("no.such.password") && !hidden.contains("sesame"),
            "{hidden}"
        );
    }

    #[test]
    fn what_carries_a_guarantee_cannot_be_set_from_outside_under_either_name() {
        let own = [
            ("message.timeout.ms", "1000".to_owned()),
            ("acks", "all".to_owned()),
        ];
        for name in [
            "acks",
            "request.required.acks",
            "delivery.timeout.ms",
            "metadata.broker.list",
        ] {
            let user = BTreeMap::from([(name.to_owned(), "1".to_owned())]);
            let error = settings("b:1", &KafkaAccess::default(), &own, &user).unwrap_err();
            assert!(error.to_string().contains("set by Semel"), "{error}");
        }
        let user = BTreeMap::from([("compression.type".to_owned(), "gzip".to_owned())]);
        let config = settings("b:1", &KafkaAccess::default(), &own, &user).unwrap();
        assert_eq!(config.get("compression.type"), Some("gzip"));
        assert_eq!(config.get("acks"), Some("all"));
    }
}
