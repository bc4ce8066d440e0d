//! The command line.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::exit::Exit;
use crate::{api, audit, check, conformance, demo, keys, migrate, out, outbox, run};

const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 understood but failed (a server away, a port in use, a check or audit that found something); \
2 wrong use or a mistake in the configuration; `semel keys` and `semel outbox` also 3 and 4, see their help.
Data goes to stdout, everything else to stderr. Colours and tables appear in a terminal only.";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "semel", version, about = "An effect that has a name happens once", after_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Watch a small shop stay right while its processes are killed, beside a hand-written one
    Demo(demo::DemoArgs),
    /// Run what the configuration names: relays, gateways, the key API, the saga coordinator
    Run(RunArgs),
    /// Read the configuration, name every mistake, then try each server it names
    Check(CheckArgs),
    /// Install or upgrade Semel's tables
    Migrate(MigrateArgs),
    /// Look at keys, and settle those that wait for a person
    Keys(keys::KeysArgs),
    /// Look at an outbox, and settle what was set aside
    Outbox(outbox::OutboxArgs),
    /// Compare what was promised with what happened
    Audit(audit::AuditArgs),
    /// The key API's description
    Api(ApiArgs),
    /// Ask a running service, Semel's or any other, whether it keeps what idempotency keys promise
    Conformance(conformance::ConformanceArgs),
    /// A process of the demo
    #[command(hide = true)]
    DemoChild(demo::ChildArgs),
}

/// `semel run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArg,
    /// How log lines look; they go to stderr
    #[arg(long, value_enum, default_value_t = LogFormat::Text, env = "SEMEL_LOG_FORMAT")]
    pub(crate) log_format: LogFormat,
    /// What is logged: a level, or targets with levels such as `info,semel_outbox=debug`
    #[arg(
        long,
        default_value = "info,sqlx=warn,lapin=error",
        env = "SEMEL_LOG",
        value_name = "FILTER"
    )]
    pub(crate) log: String,
}

/// `semel check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArg,
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Read the file only; try no server
    #[arg(long)]
    pub(crate) offline: bool,
    /// Print every section and field there is, with defaults, and stop
    #[arg(long, conflicts_with_all = ["json", "offline"])]
    pub(crate) fields: bool,
}

/// `semel migrate`.
#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// The configuration file: every store in it is migrated
    #[arg(short, long, value_name = "FILE", conflicts_with = "url")]
    pub(crate) config: Option<PathBuf>,
    /// One store, such as `sqlite:semel.db` or `postgres://user@host/database`
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Print the SQL instead of running it
    #[arg(long)]
    pub(crate) print: bool,
}

/// `semel api`.
#[derive(Debug, Args)]
struct ApiArgs {
    #[command(subcommand)]
    command: ApiCommand,
}

#[derive(Debug, Subcommand)]
enum ApiCommand {
    /// Print the OpenAPI 3.1 document, as `/v1/openapi.json` serves it where tokens are asked for
    Openapi,
}

/// Where the configuration is.
#[derive(Debug, Args)]
pub(crate) struct ConfigArg {
    /// The configuration file
    #[arg(
        short = 'c',
        long = "config",
        value_name = "FILE",
        default_value = "semel.toml"
    )]
    pub(crate) path: PathBuf,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// Parses the arguments and does what they ask.
pub(crate) fn main() -> Exit {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap writes help to stdout and mistakes to stderr.
            let printed = error.print();
            if error.use_stderr() {
                return Exit::Usage;
            }
            out::wrote(printed.and_then(|()| std::io::stdout().flush()));
            return Exit::Ok;
        }
    };
    match cli.command {
        None => {
            welcome();
            Exit::Ok
        }
        Some(Command::Demo(args)) => demo::run(args),
        Some(Command::DemoChild(args)) => demo::child(args),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Check(args)) => check::run(&args),
        Some(Command::Migrate(args)) => migrate::run(&args),
        Some(Command::Keys(args)) => keys::run(&args),
        Some(Command::Outbox(args)) => outbox::run(&args),
        Some(Command::Audit(args)) => audit::run(&args),
        Some(Command::Api(ApiArgs {
            command: ApiCommand::Openapi,
        })) => {
            out::data(api::openapi::text(true));
            Exit::Ok
        }
        Some(Command::Conformance(args)) => conformance::run(&args),
    }
}

/// What `semel` says when it is asked nothing.
fn welcome() {
    let dim = |text: &str| out::paint(std::io::stdout().is_terminal(), out::Colour::Dim, text);
    out::data(format_args!(
        "semel {version}: an effect that has a name happens once.

  semel demo                        {demo}
  semel check   -c semel.toml       {check}
  semel migrate -c semel.toml       {migrate}
  semel run     -c semel.toml       {run}
  semel keys    list                {keys}
  semel outbox  why                 {outbox}

Options of each: semel <command> --help.",
        version = env!("CARGO_PKG_VERSION"),
        demo = dim("see it work: a shop whose processes are killed, then an audit"),
        check = dim("name every mistake in the configuration, try each server"),
        migrate = dim("install or upgrade the tables"),
        run = dim("run the relays, gateways, key API and sagas of the file"),
        outbox = dim("say what holds events back, send again what was set aside"),
        keys = dim("look at keys, settle those that wait for a person"),
    ));
}
