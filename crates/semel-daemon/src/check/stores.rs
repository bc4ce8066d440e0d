//! Stores: reachable, with the right schema, durable.

use semel_core::ErrorKind;
use semel_core::error::chain;

use super::findings::Finding;
use crate::config::StoreConfig;
use crate::config::store::StoreUrl;
use crate::store::Store;

/// Looks at every store.
pub(crate) async fn check(configs: &[StoreConfig], findings: &mut Vec<Finding>) {
    for config in configs {
        let part = format!("store {}", config.name);
        if let StoreUrl::Sqlite(path) = &config.url
            && !path.exists()
        {
            findings.push(missing_file(&part, path, config.migrate));
            continue;
        }
        let store = match Store::open(config).await {
            Ok(store) => store,
            #[cfg(feature = "mysql")]
            Err(error) if semel_mysql::Fault::refused(&error) => {
                findings.extend(refused(&part, config, &error).await);
                continue;
            }
            Err(error) => {
                let found = format!("{}: {}", config.url, chain(&error));
                // A file is nothing to start, and every other error says what to do.
                let away = error.kind() == ErrorKind::Unavailable && !config.url.is_sqlite();
                findings.push(if away {
                    Finding::bad(part, "reachable", found, "start it, or mend `url`")
                } else {
                    Finding::failed(part, "reachable", found)
                });
                continue;
            }
        };
        findings.push(Finding::ok(&part, "reachable", config.url.to_string()));
        if !config.url.is_redis() {
            findings.push(schema(&part, &store, config.migrate).await);
        }
        match durability(&part, &store).await {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(Finding::bad(
                &part,
                "durability",
                format!("the settings cannot be read: {error}"),
                "grant the role the right to read them",
            )),
        }
        #[cfg(feature = "postgres")]
        if let Store::Postgres(db) = &store {
            // Of a schema that is missing or old the line above has spoken.
            match db.keys_moved().await {
                Ok(true) => {
                    let found = "of another cluster or timeline, or of before a dump was loaded";
                    findings.push(Finding::bad(&part, "tokens", found, semel_postgres::KEYS_MOVED));
                }
                Ok(false) => findings.push(Finding::ok(&part, "tokens", "of this cluster and timeline")),
                Err(_) => {}
            }
            findings.extend(partitions(&part, db).await);
        }
        findings.extend(writes(&part, &store).await);
        findings.push(guarantee(&format!("store {}", config.name), &store));
        findings.extend(config.quota.map(|quota| {
            let found = format!(
                "a scope holds at most {} records and {} bytes of outcomes",
                quota.records_max, quota.bytes_max
            );
            Finding::ok(format!("store {}", config.name), "quota", found)
        }));
        store.close().await;
    }
}

/// Of an outbox in partitions: that some are made ahead, and what delays the end of others.
#[cfg(feature = "postgres")]
async fn partitions(part: &str, db: &semel_postgres::Postgres) -> Option<Finding> {
    use semel_core::OutboxStore as _;
    let found = db.partitions().await.ok()??;
    let text = crate::outbox::in_partitions(&found);
    Some(match found.waits.first() {
        Some(wait) => {
            let since = wait.age_ms.unwrap_or_default() / 1_000;
            let text = format!("{text}; {} ({since} s): {}", wait.who, wait.detail);
            Finding::warn(part, "partitions", text, wait.advice.clone())
        }
        None if found.ahead() == 0 => {
            let fix = "start a relay that deletes (keep_ms), as the role that owns the table: it makes them (SEM0281)";
            Finding::warn(part, "partitions", text, fix)
        }
        None => Finding::ok(part, "partitions", text),
    })
}

/// That nobody may write to it. MariaDB says so of itself when it is connected to, a Redis by its role.
async fn writes(part: &str, store: &Store) -> Option<Finding> {
    let found = match store {
        Store::Sqlite(db) => {
            let mut tx = db.begin().await.ok()?;
            // Such a file takes BEGIN IMMEDIATE as the beginning of a reading transaction: only a write tells.
            let written = sqlx::query("CREATE TABLE semel_check (written)")
                .execute(&mut *tx)
                .await;
            // What fails here says nothing of the file.
            drop(tx.rollback().await);
            let error = semel_sqlite::classify("check", written.err()?);
            if !error.is_read_only() {
                return None;
            }
            "the file is read-only, or its folder"
        }
        #[cfg(feature = "postgres")]
        Store::Postgres(db) => {
            let read_only = sqlx::query_scalar(
                "SELECT current_setting('transaction_read_only')::boolean AND NOT pg_is_in_recovery()",
            );
            if !read_only.fetch_one(db.pool()).await.unwrap_or(false) {
                return None;
            }
            "transactions of this role and database are read-only (default_transaction_read_only)"
        }
        _ => return None,
    };
    let fix = "make it writable: until then what is done is replayed, and no new key is taken (SEM0104)";
    Some(Finding::bad(part, "writes", found, fix))
}

/// What this kind of store can do.
fn guarantee(part: &str, store: &Store) -> Finding {
    let can = store.keys().capabilities();
    let mut words = Vec::new();
    if can.joins_user_transaction {
        words.push("atomic where business tables live in the same store");
    }
    words.push(if can.fences {
        "stale owners are refused by token"
    } else {
        "stale owners are not refused"
    });
    words.push(if can.token_survives_failover {
        "tokens never go back"
    } else {
        "tokens may go back after a fail-over"
    });
    words.push(match store {
        Store::Memory(_) => "of this process alone",
        _ if can.shared_by_machines => "shared by any number of machines",
        _ => "shared by processes of one machine",
    });
    if !can.durable {
        words.push("a crash of the store may forget the last answers");
    }
    Finding::ok(part, "guarantee", words.join(", "))
}

/// A SQLite file that is not there is made at start, if its folder is.
fn missing_file(part: &str, path: &std::path::Path, migrate: bool) -> Finding {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        let found = format!("{}: its folder is not there", path.display());
        return Finding::bad(part, "reachable", found, "make the folder, or mend `url`");
    }
    let found = format!("{}: not there yet", path.display());
    if migrate {
        Finding::warn(part, "reachable", found, "`semel run` makes it")
    } else {
        Finding::bad(part, "reachable", found, "run `semel migrate`")
    }
}

async fn schema(part: &str, store: &Store, migrate: bool) -> Finding {
    let known = store.schema_known();
    match store.schema_version().await {
        Ok(found) if found == known => Finding::ok(part, "schema", format!("version {found}")),
        Ok(found) => {
            let text = match found {
                0 => format!("no tables yet, this build needs version {known}"),
                _ => format!("version {found}, this build needs {known}"),
            };
            if migrate {
                Finding::warn(part, "schema", text, "`semel run` installs it")
            } else {
                Finding::bad(part, "schema", text, "run `semel migrate`")
            }
        }
        // A newer schema's error says that a newer semel is needed; others say other things.
        Err(error) => Finding::failed(part, "schema", chain(&error)),
    }
}

async fn durability(part: &str, store: &Store) -> Result<Vec<Finding>, sqlx::Error> {
    match store {
        Store::Memory(_) => {
            let found =
                "memory of one process: every key is forgotten when semel stops, and a retry is sent again";
            let fix = "use it for tries and benches; sqlite:semel.db needs no server either";
            Ok(vec![Finding::warn(part, "durability", found, fix)])
        }
        Store::Sqlite(db) => {
            let journal: String = sqlx::query_scalar("PRAGMA journal_mode")
                .fetch_one(db.readers())
                .await?;
            let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous")
                .fetch_one(db.readers())
                .await?;
            let found = format!("journal_mode={journal}, synchronous={synchronous} (2 is FULL)");
            Ok(vec![if journal == "wal" && synchronous >= 2 {
                Finding::ok(part, "durability", found)
            } else {
                let fix = "use a local disk: this file system does not let SQLite write a WAL";
                Finding::bad(part, "durability", found, fix)
            }])
        }
        #[cfg(feature = "postgres")]
        Store::Postgres(db) => {
            let (version, standby, fsync, commit, pages): (i32, bool, String, String, String) = sqlx::query_as(
                "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('fsync'), \
                 current_setting('synchronous_commit'), current_setting('full_page_writes')",
            )
            .fetch_one(db.pool())
            .await?;
            let mut findings = Vec::new();
            let number = format!("PostgreSQL {}.{}", version / 10_000, version % 10_000);
            findings.push(if version >= 150_000 {
                Finding::ok(part, "version", number)
            } else {
                Finding::bad(part, "version", number, "use PostgreSQL 15 or later")
            });
            if standby {
                let fix = "connect to the primary";
                findings.push(Finding::bad(part, "primary", "this server is a standby", fix));
            }
            let found =
                format!("fsync={fsync}, synchronous_commit={commit} (ours), full_page_writes={pages}");
            findings.push(if fsync == "on" && pages == "on" && commit != "off" {
                Finding::ok(part, "durability", found)
            } else {
                let fix =
                    "turn fsync and full_page_writes on: without them a crash forgets what was acknowledged";
                Finding::bad(part, "durability", found, fix)
            });
            Ok(findings)
        }
        #[cfg(feature = "mysql")]
        Store::Mysql(db) => Ok(mysql(part, db).await),
        #[cfg(feature = "redis")]
        Store::Redis(db) => Ok(redis(part, db).await),
    }
}

/// What each server of a Redis says about itself.
#[cfg(feature = "redis")]
async fn redis(part: &str, db: &semel_redis::Redis) -> Vec<Finding> {
    let mut findings = Vec::new();
    let judged = db.check().await;
    let all = match db.facts().await {
        Ok(all) => all,
        Err(error) => return vec![Finding::failed(part, "settings", chain(&error))],
    };
    for facts in all {
        let found = format!(
            "Redis {}, {}, maxmemory-policy {}",
            facts.version,
            if facts.replica { "a replica" } else { "a primary" },
            facts.policy
        );
        findings.push(Finding::ok(part, "settings", found));
        let found = format!(
            "appendonly {}, appendfsync {}, {} replicas",
            if facts.append_only { "yes" } else { "no" },
            facts.append_fsync.as_deref().unwrap_or("not readable"),
            facts.replicas
        );
        findings.push(match facts.warning() {
            None => Finding::ok(part, "durability", found),
            Some(warning) => Finding::warn(part, "durability", found, warning),
        });
    }
    if let Err(error) = judged {
        findings.push(Finding::failed(part, "fits", chain(&error)));
    }
    findings
}

/// A MariaDB or MySQL that Semel does not work with: each setting by name.
#[cfg(feature = "mysql")]
async fn refused(part: &str, config: &StoreConfig, error: &semel_core::StoreError) -> Vec<Finding> {
    let StoreUrl::Mysql(url) = &config.url else {
        return vec![Finding::failed(part, "reachable", chain(error))];
    };
    match semel_mysql::ServerSettings::of(&crate::store::mysql(config, url)).await {
        Ok(settings) => {
            let mut findings = vec![Finding::ok(part, "reachable", config.url.to_string())];
            findings.extend(faults(part, &settings));
            findings
        }
        Err(error) => vec![Finding::failed(part, "reachable", chain(&error))],
    }
}

#[cfg(feature = "mysql")]
fn faults(part: &str, settings: &semel_mysql::ServerSettings) -> Vec<Finding> {
    let one = |fault: semel_mysql::Fault| {
        let check = match (fault.name, fault.lossy) {
            ("version", _) => "version",
            ("read_only", _) => "primary",
            (_, true) => "durability",
            (_, false) => "settings",
        };
        let found = format!("{}: {} = {}", fault.code(), fault.name, fault.found);
        Finding::bad(part, check, found, fault.fix)
    };
    settings.faults().into_iter().map(one).collect()
}

/// What a MariaDB or MySQL says about itself, and whether the user has the rights.
#[cfg(feature = "mysql")]
async fn mysql(part: &str, db: &semel_mysql::Mysql) -> Vec<Finding> {
    let settings = match db.settings().await {
        Ok(settings) => settings,
        Err(error) => return vec![Finding::failed(part, "settings", chain(&error))],
    };
    let mut findings = faults(part, &settings);
    if settings.is_supported() {
        let kind = if settings.is_mariadb() { "" } else { "MySQL " };
        findings.push(Finding::ok(
            part,
            "version",
            format!("{kind}{}", settings.version),
        ));
    }
    if settings.is_durable() {
        let log = if settings.log_bin {
            format!("sync_binlog={}", settings.sync_binlog)
        } else {
            "no binary log".to_owned()
        };
        let found = format!(
            "innodb_flush_log_at_trx_commit={}, innodb_doublewrite=on, {log}",
            settings.flush_log
        );
        findings.push(Finding::ok(part, "durability", found));
    }
    let strict = settings.sql_mode.contains("STRICT_ALL_TABLES");
    findings.push(if strict {
        Finding::ok(
            part,
            "strictness",
            "sql_mode of our sessions has STRICT_ALL_TABLES",
        )
    } else {
        let found = format!("sql_mode of our sessions is {}", settings.sql_mode);
        let fix =
            "something between semel and the server sets it: connect without it, or let it pass sql_mode on";
        Finding::bad(part, "strictness", found, fix)
    });
    if settings.step > 1 {
        let found = format!("auto_increment_increment = {}", settings.step);
        let fix = "set auto_increment_increment = 1 (on Galera wsrep_auto_increment_control = OFF, all writers on one node): \
                   no relay starts (SEM0221), for every number left out would have to be filled";
        findings.push(Finding::warn(part, "outbox", found, fix));
    }
    match db.check_rights().await {
        Ok(()) => findings.push(Finding::ok(part, "rights", "may read and write Semel's tables")),
        // Of a schema that is missing another line speaks, of a replica, too.
        Err(error) if matches!(error.kind(), ErrorKind::Schema | ErrorKind::Unavailable) => {}
        Err(error) => findings.push(Finding::failed(part, "rights", chain(&error))),
    }
    findings
}
