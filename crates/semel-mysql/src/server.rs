//! What a server must be set to, since a session cannot set it for itself (rule K7).

use semel_core::limits::OUTCOME_BYTES_MAX;
use semel_core::{ErrorKind, StoreError};
use sqlx::Row as _;
use sqlx::mysql::MySqlConnection;

use crate::config::Config;
use crate::db::{options, read_settings};
use crate::error::classify;

/// Bytes that the server must take in one statement: the largest outcome as hexadecimal digits, and the rest of its row.
pub(crate) const PACKET_BYTES_MIN: u64 = 2 * OUTCOME_BYTES_MAX as u64 + 64 * 1024;

const ASK: &str = "SELECT CAST(@@version AS CHAR) AS version,
  CAST(@@innodb_flush_log_at_trx_commit AS SIGNED) AS flush_log, CAST(@@log_bin AS SIGNED) AS log_bin,
  CAST(@@sync_binlog AS SIGNED) AS sync_binlog, CAST(@@global.binlog_format AS CHAR) AS binlog_format,
  CAST(@@innodb_doublewrite AS CHAR) AS doublewrite, CAST(@@global.read_only AS SIGNED) AS read_only,
  CAST(@@max_allowed_packet AS SIGNED) AS packet, CAST(@@session.sql_mode AS CHAR) AS sql_mode,
  CAST(@@innodb_rollback_on_timeout AS SIGNED) AS rollback_on_timeout,
  CAST(@@global.auto_increment_increment AS SIGNED) AS step, CAST(DATABASE() AS CHAR) AS db";

/// What matters of a server's settings; read by [`Mysql::settings`](crate::Mysql::settings) or, before connecting, by [`ServerSettings::of`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSettings {
    /// `@@version`, such as `10.11.6-MariaDB`.
    pub version: String,
    /// `@@innodb_flush_log_at_trx_commit`: 1 makes each commit durable before it is acknowledged.
    pub flush_log: i64,
    /// `@@log_bin`.
    pub log_bin: bool,
    /// `@@sync_binlog`: 1 makes the binary log durable with each commit. Of no matter without one.
    pub sync_binlog: i64,
    /// `@@binlog_format`.
    pub binlog_format: String,
    /// `@@innodb_doublewrite`: without it a page torn by a power cut cannot be mended.
    pub doublewrite: bool,
    /// `@@read_only`: a replica.
    pub read_only: bool,
    /// `@@max_allowed_packet`, bytes.
    pub packet_bytes: u64,
    /// `@@global.auto_increment_increment`: no relay starts where it is above 1, for every number left out would be a hole.
    pub step: i64,
    /// `@@sql_mode` of Semel's own session.
    pub sql_mode: String,
}

/// A setting that does not do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The server's name for it.
    pub name: &'static str,
    /// What was found.
    pub found: String,
    /// What to do.
    pub fix: &'static str,
    /// Commits can be forgotten: the only kind that [`Config::accept_lossy_server`](crate::Config) lets pass.
    pub lossy: bool,
}

impl ServerSettings {
    /// Connects once and reads them, without demanding anything of them.
    ///
    /// # Errors
    /// The URL cannot be read, or the server cannot be reached.
    pub async fn of(config: &Config) -> Result<Self, StoreError> {
        read_settings(&options(config)?, config).await
    }

    pub(crate) async fn read(connection: &mut MySqlConnection) -> Result<Self, StoreError> {
        let failed = |error| classify("settings", error);
        let row = sqlx::query(ASK).fetch_one(connection).await.map_err(failed)?;
        let text = |column| row.try_get_unchecked::<Option<String>, _>(column).map_err(failed);
        let number = |column| row.try_get_unchecked::<Option<i64>, _>(column).map_err(failed);
        if text("db")?.is_none() {
            let text = "the URL names no database; add it: mysql://user@host/database";
            return Err(StoreError::new(ErrorKind::Invalid, "connect", text));
        }
        Ok(Self {
            version: text("version")?.unwrap_or_default(),
            flush_log: number("flush_log")?.unwrap_or(0),
            log_bin: number("log_bin")? == Some(1),
            sync_binlog: number("sync_binlog")?.unwrap_or(0),
            binlog_format: text("binlog_format")?.unwrap_or_default(),
            // ON or 1; MySQL also knows DETECT_AND_RECOVER and DETECT_ONLY.
            doublewrite: !matches!(
                text("doublewrite")?.unwrap_or_default().as_str(),
                "0" | "OFF" | "DETECT_ONLY"
            ),
            read_only: number("read_only")? == Some(1),
            packet_bytes: number("packet")?
                .and_then(|it| u64::try_from(it).ok())
                .unwrap_or(0),
            step: number("step")?.unwrap_or(1),
            sql_mode: text("sql_mode")?.unwrap_or_default(),
        })
    }

    /// Whether it is MariaDB; else MySQL.
    #[must_use]
    pub fn is_mariadb(&self) -> bool {
        self.version.contains("MariaDB")
    }

    /// Whether what it acknowledges is on stable storage.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        !self.faults().iter().any(|fault| fault.lossy)
    }

    /// Whether the version is one that Semel is written for.
    #[must_use]
    pub fn is_supported(&self) -> bool {
        let mut parts = self
            .version
            .split(['.', '-'])
            .map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        version >= if self.is_mariadb() { (10, 6) } else { (8, 0) }
    }

    /// Everything that does not do, each with what to do about it.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let fault = |wrong: bool, name, found: String, fix, lossy| {
            wrong.then_some(Fault {
                name,
                found,
                fix,
                lossy,
            })
        };
        let Self {
            flush_log,
            sync_binlog,
            binlog_format,
            packet_bytes,
            ..
        } = self;
        [
            fault(
                !self.is_supported(),
                "version",
                self.version.clone(),
                "use MariaDB 10.6 or later, or MySQL 8",
                false,
            ),
            fault(
                *flush_log != 1,
                "innodb_flush_log_at_trx_commit",
                flush_log.to_string(),
                "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration: a session cannot \
                 set it for itself, and without it a crash forgets what was acknowledged",
                true,
            ),
            fault(
                !self.doublewrite,
                "innodb_doublewrite",
                "off".to_owned(),
                "turn innodb_doublewrite on in the server's configuration: without it a power cut can destroy pages",
                true,
            ),
            fault(
                self.log_bin && *sync_binlog != 1,
                "sync_binlog",
                sync_binlog.to_string(),
                "SET GLOBAL sync_binlog = 1, and in the server's configuration: without it a crash can make the \
                 binary log, and so every replica and backup from it, differ from what was acknowledged",
                true,
            ),
            fault(
                self.log_bin && binlog_format.eq_ignore_ascii_case("STATEMENT"),
                "binlog_format",
                binlog_format.clone(),
                "set binlog_format to ROW or MIXED: transactions at READ COMMITTED cannot be logged as statements",
                false,
            ),
            fault(
                self.read_only,
                "read_only",
                "1".to_owned(),
                "connect to the primary: this server takes no writes",
                false,
            ),
            fault(
                *packet_bytes < PACKET_BYTES_MIN,
                "max_allowed_packet",
                packet_bytes.to_string(),
                "SET GLOBAL max_allowed_packet = 16777216, and in the server's configuration: the largest outcome \
                 does not fit",
                false,
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Refuses a server on which a stored outcome would be cut, refused or forgotten.
    pub(crate) fn demand(&self, accept_lossy: bool) -> Result<(), StoreError> {
        for Fault {
            name,
            found,
            fix,
            lossy,
        } in self.faults()
        {
            // A replica that is promoted later, or is only read: its writes are refused one by one.
            if name == "read_only" {
                continue;
            }
            if lossy && accept_lossy {
                tracing::warn!(
                    setting = name,
                    found,
                    "this server can forget what it acknowledged; {fix}"
                );
                continue;
            }
            let text = format!("the server has {name} = {found}; {fix}");
            return Err(StoreError::new(ErrorKind::Invalid, "connect", text).with_code(code(name, lossy)));
        }
        Ok(())
    }
}

const LOSSY: &str = "SEM0220";
pub(crate) const UNFIT: &str = "SEM0221";

fn code(name: &str, lossy: bool) -> &'static str {
    match (name, lossy) {
        ("read_only", _) => ErrorKind::Unavailable.code(),
        (_, true) => LOSSY,
        (_, false) => UNFIT,
    }
}

impl Fault {
    /// The page that explains it.
    #[must_use]
    pub fn code(&self) -> &'static str {
        code(self.name, self.lossy)
    }

    /// Whether an error of connecting was such a fault.
    #[must_use]
    pub fn refused(error: &StoreError) -> bool {
        [LOSSY, UNFIT].contains(&error.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> ServerSettings {
        ServerSettings {
            version: "10.11.6-MariaDB-0+deb12u1".to_owned(),
            flush_log: 1,
            log_bin: true,
            sync_binlog: 1,
            binlog_format: "MIXED".to_owned(),
            doublewrite: true,
            read_only: false,
            packet_bytes: 16 << 20,
            step: 1,
            sql_mode: "STRICT_ALL_TABLES".to_owned(),
        }
    }

    fn names(settings: &ServerSettings) -> Vec<&'static str> {
        settings.faults().iter().map(|fault| fault.name).collect()
    }

    #[test]
    fn each_setting_that_does_not_do_is_named() {
        assert_eq!(names(&good()), Vec::<&str>::new());
        let without_log = ServerSettings {
            log_bin: false,
            sync_binlog: 0,
            ..good()
        };
        assert_eq!(names(&without_log), Vec::<&str>::new());
        let bad = ServerSettings {
            version: "10.5.3-MariaDB".to_owned(),
            flush_log: 2,
            log_bin: true,
            sync_binlog: 0,
            binlog_format: "STATEMENT".to_owned(),
            doublewrite: false,
            read_only: true,
            packet_bytes: 1 << 20,
            step: 2,
            sql_mode: String::new(),
        };
        let all = [
            "version",
            "innodb_flush_log_at_trx_commit",
            "innodb_doublewrite",
            "sync_binlog",
            "binlog_format",
            "read_only",
            "max_allowed_packet",
        ];
        assert_eq!(names(&bad), all);
    }

    #[test]
    fn versions_of_both_servers_are_told_apart() {
        for (version, supported) in [
            ("10.6.0-MariaDB", true),
            ("11.4.2-MariaDB-log", true),
            ("10.5.9-MariaDB", false),
            ("8.0.36", true),
            ("8.4.0", true),
            ("5.7.44-log", false),
        ] {
            let settings = ServerSettings {
                version: version.to_owned(),
                ..good()
            };
            assert_eq!(settings.is_supported(), supported, "{version}");
        }
    }
}
