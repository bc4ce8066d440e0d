//! Keys are bytes: what these servers' collations, comparisons and types would fold, trim or refuse is told apart.

use std::collections::HashSet;

use semel_core::claim::{Claim, ClaimReply, Completion, Nonce, succeeded};
use semel_core::store::KeyQuery;
use semel_core::{Fingerprint, Key, KeyStore, Scope};
use semel_mysql::tx::{Once, OnceOptions, once};
use semel_testkit::laws::keys::{KEEP, is_ok};

use super::{Lent, request};

fn keys() -> Vec<Key> {
    let long = vec![b'x'; 255];
    let mut longer = long.clone();
    longer[254] = b'y';
    let ids: Vec<&[u8]> = vec![
        b"a",
        b"A",
        b"a ",
        b"a  ",
        b" a",
        b"a\0",
        b"a\0\0",
        b"\0a",
        b"a\t",
        b"a\n",
        b"\xff",
        b"\xff\xff",
        b"\xfe",
        b"\x80",
        "\u{e4}".as_bytes(),
        "a\u{308}".as_bytes(),
        "\u{c4}".as_bytes(),
        "ß".as_bytes(),
        b"ss",
        b"1",
        b"01",
        b"1.0",
        b"1e0",
        b"0x61",
        b"'",
        b"\\'",
        b"\"",
        b"%",
        b"_",
        b"NULL",
        b"\0",
        b" ",
        &long,
        &longer,
    ];
    let scopes: Vec<&[u8]> = vec![b"s", b"S", b"s ", b"s\0", b"\xff", &long];
    let mut keys = Vec::new();
    for scope in scopes {
        for id in &ids {
            keys.push(Key::new(Scope::new(scope).unwrap(), id).unwrap());
        }
    }
    // ("ab", "c") is not ("a", "bc").
    keys.push(Key::new(Scope::new("ab").unwrap(), "c").unwrap());
    keys.push(Key::new(Scope::new("a").unwrap(), "bc").unwrap());
    keys
}

#[tokio::test]
async fn keys_that_any_collation_would_fold_are_different_keys() {
    let (_lent, db) = Lent::take().await;
    let keys = keys();
    let claims: Vec<Claim> = keys
        .iter()
        .map(|key| Claim {
            key: key.clone(),
            fingerprint: Fingerprint::of(&key.to_bytes()),
            nonce: Nonce::random(),
            ..request()
        })
        .collect();
    let mut done = Vec::new();
    for (claim, reply) in claims.iter().zip(db.claim_many(&claims).await) {
        let ClaimReply::Granted { lease, .. } = reply.unwrap() else {
            panic!("{} is another key", claim.key)
        };
        done.push(Completion {
            key: claim.key.clone(),
            lease,
            outcome: succeeded(claim.key.to_bytes()),
            keep: KEEP,
        });
    }
    for reply in db.complete_many(&done).await {
        assert!(is_ok(reply.unwrap()));
    }
    // One by one, and in a transaction of the user's: each has its own outcome.
    for claim in &claims {
        let mut tx = db.begin().await.unwrap();
        let answer = once(&mut tx, &claim.key, claim.fingerprint, OnceOptions::default()).await;
        let Once::Done { outcome, .. } = answer.unwrap() else {
            panic!("{} is not done", claim.key)
        };
        assert_eq!(outcome.bytes(), claim.key.to_bytes());
        tx.rollback().await.unwrap();
    }
    let mut listed = HashSet::new();
    let mut from = None;
    loop {
        let query = KeyQuery {
            from,
            limit: 7,
            ..KeyQuery::default()
        };
        let page = db.list(&query).await.unwrap();
        listed.extend(page.records.into_iter().map(|(key, _)| key));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(listed, keys.into_iter().collect());
}

/// The columns for people show the bytes of scope and id.
#[tokio::test]
async fn scope_and_id_can_be_read_in_sql() {
    let (_lent, db) = Lent::take().await;
    let key = Key::new(Scope::new("s ").unwrap(), b"\xff\0 ").unwrap();
    let claim = Claim { key, ..request() };
    assert!(db.claim_many(&[claim]).await[0].is_ok());
    let (scope, id): (Vec<u8>, Vec<u8>) = sqlx::query_as("SELECT scope, id FROM semel_key")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(
        (scope.as_slice(), id.as_slice()),
        (b"s ".as_slice(), b"\xff\0 ".as_slice())
    );
}
