//! An open store of any kind, for `run`, `check` and `migrate`.

use std::sync::Arc;

use semel_core::model::{MemoryKeys, MemoryOutbox, MemorySagas};
use semel_core::store::{OutboxStore, SagaStore};
use semel_core::{ErrorKind, KeyStore, StoreError};
#[cfg(feature = "mysql")]
use semel_mysql::Mysql;
#[cfg(feature = "postgres")]
use semel_postgres::Postgres;
#[cfg(feature = "redis")]
use semel_redis::Redis;
use semel_sqlite::Sqlite;

use crate::config::StoreConfig;
use crate::config::store::StoreUrl;

/// An open store. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) enum Store {
    /// A file.
    Sqlite(Sqlite),
    /// A database.
    #[cfg(feature = "postgres")]
    Postgres(Postgres),
    /// This process, as long as it lives.
    Memory(Memory),
    /// A MariaDB or MySQL: keys and the outbox, no sagas yet.
    #[cfg(feature = "mysql")]
    Mysql(Mysql),
    /// Keys and nothing else.
    #[cfg(feature = "redis")]
    Redis(Redis),
}

/// Keys of this process; its outbox and its sagas are empty, and the configuration lets nobody use them.
#[derive(Clone)]
pub(crate) struct Memory(Arc<MemoryKeys>);

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}

impl Store {
    /// Opens it; changes nothing but makes a missing SQLite file.
    ///
    /// # Errors
    /// It cannot be reached or is none.
    pub(crate) async fn open(config: &StoreConfig) -> Result<Self, StoreError> {
        match &config.url {
            StoreUrl::Memory => Ok(Self::Memory(Memory(Arc::new(MemoryKeys::default())))),
            StoreUrl::Sqlite(path) => {
                let mut sqlite = semel_sqlite::Config::new(path);
                sqlite.busy_timeout = config.acquire_timeout;
                sqlite.readers = config.connections_max.min(SQLITE_READERS_MAX);
                Ok(Self::Sqlite(Sqlite::open(sqlite).await?))
            }
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(url) => {
                let mut postgres = semel_postgres::Config::new(url);
                postgres.connections_max = config.connections_max;
                postgres.acquire_timeout = config.acquire_timeout;
                Ok(Self::Postgres(Postgres::connect(postgres).await?))
            }
            #[cfg(not(feature = "postgres"))]
            StoreUrl::Postgres(_) => Err(StoreError::new(
                ErrorKind::Invalid,
                "open",
                "this build of semel has no PostgreSQL; build it with: cargo build --release --features postgres",
            )),
            #[cfg(feature = "mysql")]
            StoreUrl::Mysql(url) => Ok(Self::Mysql(Mysql::connect(mysql(config, url)).await?)),
            #[cfg(not(feature = "mysql"))]
            StoreUrl::Mysql(_) => Err(StoreError::new(
                ErrorKind::Invalid,
                "open",
                "this build of semel has no MySQL; build it with: cargo build --release --features mysql",
            )),
            #[cfg(feature = "redis")]
            StoreUrl::Redis(url) => {
                let mut redis = semel_redis::Config::new(url);
                redis.cluster = config.redis.cluster;
                redis.replicas_min = config.redis.replicas_min;
                redis.connect_timeout = config.acquire_timeout;
                redis.reply_timeout = config.acquire_timeout;
                if let Some(prefix) = &config.redis.prefix {
                    redis.prefix.clone_from(prefix);
                }
                Ok(Self::Redis(Redis::open(redis).await?))
            }
            #[cfg(not(feature = "redis"))]
            StoreUrl::Redis(_) => Err(StoreError::new(
                ErrorKind::Invalid,
                "open",
                "this build of semel has no Redis; build it with: cargo build --release --features redis",
            )),
        }
    }

    /// Installs or upgrades the schema; how many scripts it ran.
    ///
    /// # Errors
    /// The schema is newer than this build knows, or the store is away.
    pub(crate) async fn migrate(&self) -> Result<usize, StoreError> {
        match self {
            Self::Sqlite(db) => db.migrate().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(db) => db.migrate().await,
            Self::Memory(_) => Ok(0),
            #[cfg(feature = "mysql")]
            Self::Mysql(db) => db.migrate().await,
            // There is nothing to install.
            #[cfg(feature = "redis")]
            Self::Redis(_) => Ok(0),
        }
    }

    /// The schema's version; 0 when there is none.
    ///
    /// # Errors
    /// The schema is newer than this build knows, or the store is away.
    pub(crate) async fn schema_version(&self) -> Result<i64, StoreError> {
        match self {
            Self::Sqlite(db) => db.schema_version().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(db) => db.schema_version().await,
            Self::Memory(_) => Ok(self.schema_known()),
            #[cfg(feature = "mysql")]
            Self::Mysql(db) => db.schema_version().await,
            // Redis has none; what can be wrong with it are its settings.
            #[cfg(feature = "redis")]
            Self::Redis(db) => db.check().await.map(|()| self.schema_known()),
        }
    }

    /// The newest schema this build knows.
    pub(crate) const fn schema_known(&self) -> i64 {
        match self {
            Self::Sqlite(_) => semel_sqlite::SCHEMA_VERSION,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => semel_postgres::SCHEMA_VERSION,
            // There is none.
            Self::Memory(_) => 1,
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => semel_mysql::SCHEMA_VERSION,
            #[cfg(feature = "redis")]
            Self::Redis(_) => 1,
        }
    }

    /// Refuses a schema that is missing or older than this build needs.
    ///
    /// # Errors
    /// `Schema`, saying what to run.
    pub(crate) async fn check_schema(&self, name: &str) -> Result<(), StoreError> {
        let (found, known) = (self.schema_version().await?, self.schema_known());
        if found == known {
            return Ok(());
        }
        let what = if found == 0 {
            format!("the store `{name}` has no tables of Semel")
        } else {
            format!("the schema of the store `{name}` is version {found}, this build needs {known}")
        };
        let text = format!("{what}: run `semel migrate`, or set migrate = true for it");
        Err(StoreError::new(ErrorKind::Schema, "check", text))
    }

    /// Its keys.
    pub(crate) fn keys(&self) -> Arc<dyn KeyStore> {
        match self {
            Self::Sqlite(db) => Arc::new(db.clone()),
            #[cfg(feature = "postgres")]
            Self::Postgres(db) => Arc::new(db.clone()),
            Self::Memory(memory) => memory.0.clone(),
            #[cfg(feature = "mysql")]
            Self::Mysql(db) => Arc::new(db.clone()),
            #[cfg(feature = "redis")]
            Self::Redis(db) => Arc::new(db.clone()),
        }
    }

    /// Its sagas.
    ///
    /// # Errors
    /// It holds none; the configuration was to refuse it.
    pub(crate) fn sagas(&self) -> Result<Arc<dyn SagaStore>, StoreError> {
        Ok(match self {
            Self::Sqlite(db) => Arc::new(db.clone()),
            #[cfg(feature = "postgres")]
            Self::Postgres(db) => Arc::new(db.clone()),
            Self::Memory(_) => Arc::new(MemorySagas::default()),
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => return Err(mysql_no_sagas()),
            #[cfg(feature = "redis")]
            Self::Redis(_) => return Err(keys_only()),
        })
    }

    /// Its outbox.
    ///
    /// # Errors
    /// It holds keys and nothing else; the configuration was to refuse it.
    pub(crate) fn outbox(&self) -> Result<Arc<dyn OutboxStore>, StoreError> {
        Ok(match self {
            Self::Sqlite(db) => Arc::new(db.clone()),
            #[cfg(feature = "postgres")]
            Self::Postgres(db) => Arc::new(db.clone()),
            Self::Memory(_) => Arc::new(MemoryOutbox::default()),
            #[cfg(feature = "mysql")]
            Self::Mysql(db) => Arc::new(db.clone()),
            #[cfg(feature = "redis")]
            Self::Redis(_) => return Err(keys_only()),
        })
    }

    /// Shards of a stream when the configuration does not say: as many as processes may want to share.
    pub(crate) const fn shards_default(&self) -> u16 {
        match self {
            Self::Sqlite(_) | Self::Memory(_) => 1,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => 4,
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => 4,
            #[cfg(feature = "redis")]
            Self::Redis(_) => 1,
        }
    }

    /// Closes its connections.
    pub(crate) async fn close(&self) {
        match self {
            Self::Sqlite(db) => db.close().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(db) => db.close().await,
            Self::Memory(_) => {}
            #[cfg(feature = "mysql")]
            Self::Mysql(db) => db.close().await,
            #[cfg(feature = "redis")]
            Self::Redis(db) => db.close(),
        }
    }
}

/// The settings of a connection to MariaDB or MySQL.
#[cfg(feature = "mysql")]
pub(crate) fn mysql(config: &StoreConfig, url: &str) -> semel_mysql::Config {
    let mut mysql = semel_mysql::Config::new(url);
    mysql.connections_max = config.connections_max;
    mysql.acquire_timeout = config.acquire_timeout;
    mysql
}

#[cfg(feature = "mysql")]
fn mysql_no_sagas() -> StoreError {
    let text = "sagas are not built for MariaDB and MySQL yet; name a SQLite or PostgreSQL store for them";
    StoreError::new(ErrorKind::Invalid, "open", text).with_code("SEM0222")
}

#[cfg(feature = "redis")]
fn keys_only() -> StoreError {
    let text = "a Redis holds keys only; name an SQL store for this role";
    StoreError::new(ErrorKind::Invalid, "open", text).with_code("SEM0239")
}

/// Reading connections to a SQLite file at most: each is a thread.
const SQLITE_READERS_MAX: u32 = 4;

/// The schema of a kind of store as one script.
pub(crate) fn script(url: &StoreUrl) -> String {
    match url {
        StoreUrl::Sqlite(_) => semel_sqlite::script(),
        StoreUrl::Memory => String::new(),
        #[cfg(feature = "postgres")]
        StoreUrl::Postgres(_) => semel_postgres::script(),
        #[cfg(not(feature = "postgres"))]
        StoreUrl::Postgres(_) => String::new(),
        #[cfg(feature = "mysql")]
        StoreUrl::Mysql(_) => semel_mysql::script(),
        #[cfg(not(feature = "mysql"))]
        StoreUrl::Mysql(_) => String::new(),
        StoreUrl::Redis(_) => "-- Redis: nothing to install".to_owned(),
    }
}
