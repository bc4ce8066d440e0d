//! What `semel audit` takes.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};

use crate::keys::StoreArgs;

const HELP: &str = "\
What arrived is one JSON object a line, in the order of arrival: {\"id\": \"…\", \"key\": \"…\", \"sha256\": \"…\"}; key and \
sha256 (of the data, hexadecimal) may be left out. It is read by --kafka TOPIC (all partitions), --nats STREAM and --redis KEY, up \
to where they ended at the start and at the servers of the relay that publishes the stream; nothing is taken away, and no consumer \
notices. Queues of RabbitMQ and webhooks cannot be read back: log what consumers have accepted. Compared are the rows that the outbox \
keeps and has sent; give a relay `keep_ms` that is long enough.
Exit codes: 0 all arrived as it should; 1 something was missing, doubled, out of order or altered; 2 wrong use.";

/// `semel audit`.
#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    pub(super) command: AuditCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Compare an outbox with what arrived at the other side
    #[command(after_help = HELP)]
    Outbox(OutboxAuditArgs),
}

/// `semel audit outbox`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("source").args(["arrived", "kafka", "nats", "redis"]))]
pub(super) struct OutboxAuditArgs {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// What arrived, as JSON lines: a file, or - for stdin
    #[arg(long, value_name = "FILE")]
    pub(super) arrived: Option<PathBuf>,
    /// What arrived, from this topic of Kafka; may be given several times
    #[arg(long, value_name = "TOPIC")]
    pub(super) kafka: Vec<String>,
    /// What arrived, from this stream of NATS JetStream; may be given several times
    #[arg(long, value_name = "STREAM")]
    pub(super) nats: Vec<String>,
    /// What arrived, from the Redis stream with this key; may be given several times
    #[arg(long, value_name = "KEY")]
    pub(super) redis: Vec<String>,
    /// The relay whose servers are read, where several publish the stream
    #[arg(long, value_name = "NAME")]
    pub(super) relay: Option<String>,
    /// Brokers, with commas between them; without it those of the relay that publishes the stream
    #[arg(long, value_name = "HOST:PORT", requires = "kafka")]
    pub(super) brokers: Option<String>,
    /// Read what is in open and broken-off transactions, too
    #[arg(long, requires = "kafka")]
    pub(super) uncommitted: bool,
    /// The stream
    #[arg(long, value_name = "STREAM", default_value = "default")]
    pub(super) stream: String,
    /// Only rows of this topic
    #[arg(long, value_name = "TOPIC")]
    pub(super) topic: Option<String>,
    /// Only rows behind this one
    #[arg(long, value_name = "ROW", default_value_t = 0)]
    pub(super) after: i64,
    /// Of each kind of finding, show so many
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(super) show: usize,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}
