//! Roles that own nothing and have only the rights that `docs/sql.md` writes down, through a pooler in transaction mode.

use std::sync::OnceLock;

use semel_postgres::{Config, Postgres};
use semel_testkit::servers::{PgBouncer, postgres};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

const DOCS: &str = include_str!("../../../../docs/sql.md");

/// A role as the docs call it.
pub(crate) struct Role {
    called: &'static str,
    pub(crate) name: &'static str,
    /// A pooler that logs in as it.
    pooler: OnceLock<PgBouncer>,
}

/// What a service needs for keys, events and barriers.
pub(crate) static SHOP: Role = Role::new("shop", "ordinary_shop");
/// What a relay needs.
pub(crate) static RELAY: Role = Role::new("relay", "ordinary_relay");

impl Role {
    const fn new(called: &'static str, name: &'static str) -> Self {
        Self {
            called,
            name,
            pooler: OnceLock::new(),
        }
    }

    /// Every line of the docs that grants it something.
    fn rights(&self) -> String {
        let end = format!(" TO {};", self.called);
        let lines = DOCS.lines().filter(|line| line.starts_with("GRANT "));
        let mine: Vec<String> = lines
            .filter_map(|line| line.strip_suffix(&end))
            .map(|line| format!("{line} TO {};", self.name))
            .collect();
        assert!(mine.len() > 3, "{mine:?}");
        mine.concat()
    }

    /// The way of this role to a database.
    pub(crate) async fn connect(&'static self, url: &str) -> Postgres {
        let name = self.name;
        // Rights belong to the database, the role to the server: whoever is first makes it.
        let sql = format!(
            "SELECT pg_advisory_xact_lock(42);
             DO $$BEGIN CREATE ROLE {name} LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN END$$; {}",
            self.rights()
        );
        let mut admin = PgConnection::connect(url).await.unwrap();
        let mut tx = admin.begin().await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        let pooler = self
            .pooler
            .get_or_init(|| PgBouncer::logging_in(postgres().port(), name));
        let db = Postgres::connect(Config::new(pooler.url(url))).await.unwrap();
        let (user, owns): (String, bool) = sqlx::query_as(
            "SELECT current_user::text, bool_or(tableowner = current_user)
               OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
             FROM pg_tables WHERE schemaname = 'semel'",
        )
        .persistent(false)
        .fetch_one(db.pool())
        .await
        .unwrap();
        assert_eq!((user.as_str(), owns), (name, false));
        db
    }
}
