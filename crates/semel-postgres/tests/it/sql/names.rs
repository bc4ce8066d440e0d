//! Names and hashes are the same bytes in SQL and in Rust.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use semel_core::{Fingerprint, Key, Scope};

use crate::keys::Lent;

#[test]
fn ids_scopes_and_fingerprints_are_the_same_bytes_as_in_rust() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (_lent, db) = runtime.block_on(Lent::take());
    let parts = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..5);
    let mut runner = TestRunner::new(Config {
        cases: 200,
        failure_persistence: None,
        ..Config::default()
    });
    let same = runner.run(&parts, |parts| {
        let refs: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let scope = Scope::of_parts(&refs);
        let id = Key::derive(scope.clone(), &refs);
        let fingerprint = refs
            .iter()
            .fold(Fingerprint::builder(), |it, part| it.part(part))
            .finish();
        let sql = "SELECT semel.derive_id(VARIADIC $1), semel.scope_of(VARIADIC $1), semel.fingerprint(VARIADIC $1)";
        let found: (Vec<u8>, Vec<u8>, Vec<u8>) =
            runtime.block_on(async { sqlx::query_as(sql).bind(&parts).fetch_one(db.pool()).await.unwrap() });
        let ours = (id.id().to_vec(), scope.as_bytes().to_vec(), fingerprint.to_bytes().to_vec());
        if found == ours {
            Ok(())
        } else {
            Err(TestCaseError::fail(format!("{found:?} in SQL, {ours:?} in Rust")))
        }
    });
    same.unwrap_or_else(|difference| panic!("{difference}"));
}
