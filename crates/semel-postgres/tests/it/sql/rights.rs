//! What a role needs for each function, as `docs/sql.md` says it: all of it, and nothing of it may be missing.

use semel_core::claim::Nonce;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::keys::Lent;

/// A role of its own with no rights but to look into the schema.
struct Role {
    name: String,
    admin: PgConnection,
    app: PgConnection,
}

impl Role {
    async fn new(url: &str) -> Self {
        // Roles belong to the whole server.
        let name = format!("rights_{}", semel_core::key::hex(&Nonce::random().0));
        let mut admin = PgConnection::connect(url).await.unwrap();
        let made = format!("CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA semel TO {name}");
        sqlx::raw_sql(AssertSqlSafe(made))
            .execute(&mut admin)
            .await
            .unwrap();
        let app = PgConnection::connect(&url.replace("postgres@", &format!("{name}@")));
        let app = app.await.unwrap();
        Self { name, admin, app }
    }

    async fn change(&mut self, verb: &str, right: &str, preposition: &str) {
        let sql = format!("{verb} {right} {preposition} {}", self.name);
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut self.admin)
            .await
            .unwrap();
    }

    /// Calls in one transaction; the SQLSTATE of what failed.
    async fn calls(&mut self, sql: &'static str) -> Option<String> {
        let mut tx = self.app.begin().await.unwrap();
        let called = sqlx::raw_sql(sql).execute(&mut *tx).await;
        let code = called
            .err()
            .map(|error| error.as_database_error().unwrap().code().unwrap().into_owned());
        tx.rollback().await.unwrap();
        code
    }

    /// The calls work with these rights, and without any one of them they do not.
    async fn needs(&mut self, rights: &[&str], sql: &'static str) {
        for right in rights {
            self.change("GRANT", right, "TO").await;
        }
        assert_eq!(self.calls(sql).await, None, "with all of {rights:?}");
        for right in rights {
            self.change("REVOKE", right, "FROM").await;
            let code = self.calls(sql).await;
            assert_eq!(code.as_deref(), Some("42501"), "without {right}");
            self.change("GRANT", right, "TO").await;
        }
        for right in rights {
            self.change("REVOKE", right, "FROM").await;
        }
    }
}

#[tokio::test]
async fn each_function_needs_the_rights_that_are_written_down_and_no_others() {
    let (lent, _db) = Lent::take().await;
    let mut role = Role::new(&lent.url).await;
    role.needs(
        &["INSERT ON semel.outbox", "SELECT (event_id) ON semel.outbox"],
        "SELECT semel.lock_key('order-7'), semel.enqueue('orders', 'order.placed', data => '{}', key => 'order-7', \
         content_type => 'application/json', headers => '[[\"a\", \"b\"]]');
         SELECT semel.enqueue('orders', 'order.placed', repeated => 'ignore');
         SELECT semel.enqueue_many(ARRAY['orders'], ARRAY['order.placed'])",
    )
    .await;
    role.needs(
        &[
            "SELECT (event_id) ON semel.outbox",
            "INSERT ON semel.outbox_delayed",
            "SELECT (event_id) ON semel.outbox_delayed",
            "DELETE ON semel.outbox_delayed",
        ],
        "SELECT semel.cancel_delayed(semel.enqueue('orders', 'order.late', not_before => now() + interval '1 hour'))",
    )
    .await;
    role.needs(
        &[
            "SELECT ON semel.barrier",
            "INSERT ON semel.barrier",
            "UPDATE ON semel.barrier",
            "DELETE ON semel.barrier",
        ],
        "SELECT semel.barrier('order-7', 'charge', 'action', 1);
         SELECT semel.barrier_store('order-7', 'charge', 'action', 's', '');
         SELECT semel.barrier('order-7', 'charge', 'action', 1);
         SELECT semel.barrier('order-7', 'charge', 'compensation', 1, action_succeeded => true)",
    )
    .await;
    role.needs(
        &[
            "SELECT ON semel.key",
            "UPDATE ON semel.key_home",
            "UPDATE ON SEQUENCE semel.token",
        ],
        "SELECT semel.adopt_keys()",
    )
    .await;
    role.app.close().await.unwrap();
    let gone = format!("DROP OWNED BY {0}; DROP ROLE {0}", role.name);
    sqlx::raw_sql(AssertSqlSafe(gone))
        .execute(&mut role.admin)
        .await
        .unwrap();
}
