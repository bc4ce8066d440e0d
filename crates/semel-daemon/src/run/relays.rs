//! The relays: one role for each stream.

use std::sync::Arc;
use std::time::Duration;

use semel_core::error::chain;
use semel_core::relay::PauseKind;
use semel_outbox::{Clean, Relay, RelayHandle, RelayStats, leave_word};
use tokio_util::sync::CancellationToken;

use super::Context;
use super::health::Part;
use super::stores::Handle;
use super::supervise::{Ended, supervise};
use crate::config::RelayConfig;
use crate::sinks;
use crate::store::Store;

/// How often a relay is asked how it is.
const LOOK: Duration = Duration::from_millis(250);

/// One stream of a relay.
#[derive(Clone)]
struct Stream {
    config: Arc<RelayConfig>,
    known_streams_only: Option<bool>,
    stream: String,
    store: Handle,
    part: Part,
    context: Arc<Context>,
}

/// Starts a relay for each of its streams.
pub(crate) fn start(
    config: &RelayConfig,
    known_streams_only: Option<bool>,
    store: &Handle,
    context: &Arc<Context>,
) {
    let config = Arc::new(config.clone());
    for stream in &config.streams {
        let name = match config.streams.len() {
            1 => config.name.clone(),
            _ => format!("{}/{stream}", config.name),
        };
        let role = Stream {
            config: Arc::clone(&config),
            known_streams_only,
            stream: stream.clone(),
            store: store.clone(),
            part: context.health.part("relay", &name),
            context: Arc::clone(context),
        };
        let part = role.part.clone();
        supervise(context, part, move || role.clone().run());
    }
}

impl Stream {
    async fn run(self) -> Result<(), Ended> {
        let stop = self.context.stop.clone();
        self.part.waiting("its store is not open yet");
        let store = tokio::select! {
            store = self.store.ready() => store,
            () = stop.cancelled() => return Ok(()),
        };
        let (outbox, settings) = (store.outbox()?, self.settings(&store));
        let sink = match sinks::for_relay(&self.config, &self.context.destinations) {
            Ok(sink) => sink,
            Err(error) => {
                let said = tokio::select! {
                    said = leave_word(&*outbox, &settings, &error) => said,
                    () = stop.cancelled() => Ok(()),
                };
                if let Err(unsaid) = said {
                    tracing::debug!(error = chain(&unsaid), "why it does not begin was not noted");
                }
                return Err(error.into());
            }
        };
        let relay = Relay::new(outbox, sink, settings);
        let handle = relay.handle();
        self.context
            .metrics
            .watch_relay(&self.config.name, handle.clone());
        let look = look(handle, self.part, stop.clone());
        tokio::select! {
            ended = relay.run(stop) => Ok(ended?),
            () = look => Ok(()),
        }
    }

    fn settings(&self, store: &Store) -> semel_outbox::RelayConfig {
        semel_outbox::RelayConfig {
            stream: self.stream.clone(),
            shards: self.config.shards.unwrap_or_else(|| store.shards_default()),
            owner: format!("{} pid {}", self.config.name, std::process::id()),
            lease: self.config.lease,
            policy: self.config.policy.clone(),
            clean: Some(Clean {
                keep: self.config.keep,
                ..Clean::default()
            }),
            delayed: Some(self.config.delayed),
            limit: self.config.limit,
            known_streams_only: self.known_streams_only,
            ..semel_outbox::RelayConfig::default()
        }
    }
}

/// Tells the health of a relay for as long as it runs.
async fn look(handle: RelayHandle, part: Part, stop: CancellationToken) {
    loop {
        if !stop.is_cancelled() {
            match trouble(&handle.stats()) {
                Some(why) => part.waiting(why),
                None => part.ready(),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Why a relay makes no progress, if so. One that owns no shard is ready to take over.
fn trouble(stats: &RelayStats) -> Option<String> {
    if let Some(why) = &stats.trouble {
        return Some(why.clone());
    }
    let (shard, paused) = stats
        .shards
        .iter()
        .find_map(|shard| Some((shard, shard.paused.as_ref()?)))?;
    let what = match paused.kind {
        PauseKind::Away => "the receiver is away",
        PauseKind::Destination => "the destination is missing or forbidden",
        PauseKind::Poison => "an event is refused and `poison` is `block`",
    };
    Some(format!(
        "{what}, at row {} of shard {}: {}",
        paused.row, shard.shard.index, paused.reason
    ))
}

/// How often the outboxes are counted.
const COUNT: Duration = Duration::from_secs(15);

/// Counts what waits in the outbox of a store, and says once when events name a stream that nobody publishes.
pub(crate) fn start_counting(name: &str, store: &Handle, context: &Arc<Context>) {
    let (name, store, metrics) = (name.to_owned(), store.clone(), Arc::clone(&context.metrics));
    let stop = context.stop.clone();
    let counting = async move {
        let Ok(outbox) = store.ready().await.outbox() else {
            return;
        };
        let mut orphans = Vec::new();
        // The relays register their streams first.
        let mut pause = Duration::from_secs(3);
        loop {
            tokio::time::sleep(pause).await;
            pause = COUNT;
            match outbox.backlog().await {
                Ok(backlog) => {
                    metrics.outbox(&name, &backlog);
                    if let Ok(Some(found)) = outbox.partitions().await {
                        metrics.partitions(&name, &found);
                    }
                    if backlog.orphan_streams != orphans && !backlog.orphan_streams.is_empty() {
                        let streams = backlog.orphan_streams.join(", ");
                        tracing::warn!(
                            store = name,
                            streams,
                            "events wait in streams that no relay publishes"
                        );
                    }
                    orphans = backlog.orphan_streams;
                }
                Err(error) => {
                    tracing::debug!(store = name, error = chain(&error), "the outbox was not counted")
                }
            }
        }
    };
    context.tasks.spawn(async move {
        tokio::select! {
            () = counting => {}
            () = stop.cancelled() => {}
        }
    });
}
