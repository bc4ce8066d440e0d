//! `semel.toml`: read whole, all mistakes at once, each with its place and its fix.
//!
//! [`spec`] lists what may be said, [`read`] reads tables by it, [`mistake`] shows what is wrong. A section's file
//! holds its fields, its type and its reading.

pub(crate) mod api;
pub(crate) mod destinations;
pub(crate) mod docs;
pub(crate) mod expand;
pub(crate) mod mistake;
pub(crate) mod read;
pub(crate) mod relay;
pub(crate) mod saga;
pub(crate) mod server;
pub(crate) mod sink;
pub(crate) mod sink_redis;
pub(crate) mod spec;
pub(crate) mod store;

use std::io::Read as _;
use std::path::Path;

use mistake::Report;
use read::{Reader, Table};
use spec::{Section, field};
use toml::de::DeTable;

pub(crate) use api::ApiConfig;
pub(crate) use relay::RelayConfig;
pub(crate) use saga::SagaConfig;
pub(crate) use server::ServerConfig;
pub(crate) use store::StoreConfig;

use crate::gateway::{self, GatewayConfig};

/// Bytes of a configuration file at most.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;

/// How the file as a whole is named in messages.
pub(crate) const ROOT_HEADER: &str = "semel.toml";

/// The file as a whole.
const ROOT: Section = Section {
    header: ROOT_HEADER,
    about: "The sections of the file.",
    fields: &[
        field("server", "table", "", "the daemon's own address"),
        field(
            "store",
            "table",
            "",
            "the store of every role that names no other",
        ),
        field("stores", "tables by name", "", "more stores"),
        field("relay", "list of tables", "", "from an outbox to a sink"),
        field(
            "destinations",
            "table",
            "",
            "what the webhooks of all relays ask of one host",
        ),
        field(
            "gateway",
            "list of tables",
            "",
            "Idempotency-Key in front of an upstream",
        ),
        field("api", "table", "", "keys over HTTP, for services in any language"),
        field("saga", "table", "", "the saga coordinator"),
    ],
};

/// Every section, in the order of the documentation.
pub(crate) const SECTIONS: &[&Section] = &[
    &ROOT,
    &server::SERVER,
    &store::STORE,
    &store::STORES,
    &store::QUOTA,
    &relay::RELAY,
    &sink::SINK,
    &sink::WEBHOOK,
    &sink::KAFKA,
    &sink::kafka_access::TLS,
    &sink::kafka_access::SASL,
    &sink_redis::REDIS,
    &sink::rabbitmq::RABBITMQ,
    &sink::nats::NATS,
    &destinations::DESTINATIONS,
    &gateway::GATEWAY,
    &gateway::ROUTE,
    &gateway::TLS,
    &gateway::UPSTREAM_TLS,
    &api::API,
    &api::TOKEN,
    &saga::SAGA,
];

/// What the file says.
#[derive(Debug)]
pub(crate) struct Config {
    /// The daemon's own address.
    pub(crate) server: ServerConfig,
    /// Every store, by name.
    pub(crate) stores: Vec<StoreConfig>,
    /// The relays.
    pub(crate) relays: Vec<RelayConfig>,
    /// What their webhooks ask of one host.
    pub(crate) destinations: semel_client::DestinationPolicy,
    /// The gateways.
    pub(crate) gateways: Vec<GatewayConfig>,
    /// The key API, when it is on.
    pub(crate) api: Option<ApiConfig>,
    /// The coordinator, when it is on.
    pub(crate) saga: Option<SagaConfig>,
    /// What is no mistake, and does not do what its writer may think.
    pub(crate) doubts: Vec<Doubt>,
}

/// Something that is no mistake, and does not do what its writer may think.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// The line it stands on.
    pub(crate) line: usize,
    /// What it is about.
    pub(crate) message: String,
    /// What to do.
    pub(crate) fix: String,
}

/// Reads and checks a file.
///
/// # Errors
/// Every mistake in it.
pub(crate) fn load(path: &Path) -> Result<Config, Report> {
    let text = text(path)?;
    let env = |name: &str| std::env::var(name).ok();
    parse(path, &text, &env)
}

/// Reads the whole file, which must have an end: a pipe may wait for a writer, and a device gives bytes for ever.
fn text(path: &Path) -> Result<String, Report> {
    let unreadable = |error: std::io::Error| {
        let fix = match error.kind() {
            std::io::ErrorKind::NotFound => "name the file with -c, or start from semel.example.toml",
            std::io::ErrorKind::InvalidData => "save it as UTF-8",
            _ => "check that semel may read it",
        };
        Report::whole(path, format!("the file cannot be read: {error}"), fix)
    };
    // Before it is opened: opening a pipe waits already.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        let fix = "write the configuration to a file and name that: pipes, devices and folders are not read";
        return Err(Report::whole(path, "this is no regular file", fix));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    // One byte more than allowed tells. The size that the system gives is not asked: it may grow, or be 0 in /proc.
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > FILE_BYTES_MAX {
        let message = format!("the file has more than {FILE_BYTES_MAX} bytes");
        return Err(Report::whole(path, message, "is this the right file?"));
    }
    String::from_utf8(bytes)
        .map_err(|error| unreadable(std::io::Error::new(std::io::ErrorKind::InvalidData, error)))
}

/// Checks a text; `path` names it in messages, and relative SQLite files are taken from its folder.
///
/// # Errors
/// Every mistake in it.
pub(crate) fn parse(path: &Path, text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Config, Report> {
    let reader = Reader::new(env, SECTIONS);
    let (document, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        for error in &errors {
            let span = error.span().unwrap_or(0..0);
            reader.hide(secrets_of_line(text, span.start));
            let fix = "see https://toml.io for how it is written";
            reader.mistake(span, error.message().to_owned(), fix);
        }
        let (mistakes, secrets) = reader.into_parts();
        return Err(Report::new(path, text, mistakes, &secrets));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut config = read_all(&reader, document.get_ref(), folder);
    let doubts = reader.take_doubts();
    let (mistakes, secrets) = reader.into_parts();
    let found = Report::new(path, text, doubts, &secrets);
    config.doubts = found
        .mistakes()
        .map(|(place, doubt)| Doubt {
            line: place.map_or(0, |place| place.line),
            message: doubt.message.clone(),
            fix: doubt.fix.clone(),
        })
        .collect();
    if mistakes.is_empty() {
        Ok(config)
    } else {
        Err(Report::new(path, text, mistakes, &secrets))
    }
}

/// What must not be shown of a line that TOML cannot read: everything after `=` where it names a secret.
fn secrets_of_line(text: &str, at: usize) -> std::ops::Range<usize> {
    let at = at.min(text.len());
    let start = text.as_bytes()[..at]
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |n| n + 1);
    let end = text.as_bytes()[start..]
        .iter()
        .position(|b| *b == b'\n')
        .map_or(text.len(), |n| start + n);
    let line = &text.as_bytes()[start..end];
    let fields = SECTIONS.iter().flat_map(|section| section.fields);
    let named = fields
        .filter(|field| field.secret || field.name == "url")
        .any(|field| {
            line.windows(field.name.len())
                .any(|part| part == field.name.as_bytes())
        });
    match line.iter().position(|b| *b == b'=') {
        Some(equals) if named => start + equals + 1..end,
        _ => 0..0,
    }
}

fn read_all<'a>(reader: &'a Reader<'a>, document: &'a DeTable<'a>, folder: &Path) -> Config {
    let root = Table::open(reader, &ROOT, document, 0..0);
    let server = root
        .table("server", &server::SERVER)
        .map_or_else(ServerConfig::default, |table| server::read(&table));
    // The default too: a gateway cannot have it.
    reader.listens_on(server.listen);

    // All names first: a store with a mistake of its own is still one that roles may name.
    let default = root.table("store", &store::STORE);
    let named = root.named_tables("stores", &store::STORES);
    if default.is_some() {
        reader.add_store(store::DEFAULT);
    }
    let mut stores = Vec::new();
    stores.extend(default.and_then(|table| store::read(store::DEFAULT, &table, folder)));
    for (name, table) in named {
        if table.check_name(&name) && name.value == store::DEFAULT {
            let fix = "rename it; [store] is the one called `default`";
            table.mistake(
                name.span.clone(),
                "a store in [stores] cannot be called `default`",
                fix,
            );
        }
        stores.extend(store::read(&name.value, &table, folder));
        reader.add_store(name.value);
    }

    let relays: Vec<RelayConfig> = root
        .tables("relay", &relay::RELAY)
        .iter()
        .filter_map(|table| {
            let relay = relay::read(table)?;
            not_in_memory(table, &stores, &relay.store);
            Some(relay)
        })
        .collect();
    let saga = root.table("saga", &saga::SAGA).and_then(|table| {
        let saga = saga::read(&table)?;
        not_in_memory(&table, &stores, &saga.store);
        Some(saga)
    });
    let api = root.table("api", &api::API).and_then(|table| {
        let api = api::read(&table, folder)?;
        not_in_memory(&table, &stores, &api.store);
        Some(api)
    });
    let destinations = root.table("destinations", &destinations::DESTINATIONS);
    Config {
        relays,
        destinations: destinations.map_or_else(Default::default, |table| destinations::read(&table)),
        gateways: root
            .tables("gateway", &gateway::GATEWAY)
            .iter()
            .filter_map(|table| gateway::read(table, folder))
            .collect(),
        api,
        saga,
        server,
        stores,
        doubts: Vec::new(),
    }
}

/// Relays, sagas and whoever asks the key API need what outlives the process.
fn not_in_memory(table: &Table<'_>, stores: &[StoreConfig], name: &str) {
    if stores
        .iter()
        .any(|store| store.name == name && store.url.is_memory())
    {
        let message = format!(
            "{} cannot use the store `{name}`: it is in memory",
            table.header()
        );
        table.mistake(
            table.span(),
            message,
            "name a store that outlives the process, such as sqlite:semel.db",
        );
    }
}

#[cfg(test)]
mod tests;
