//! What people and quotas ask: pages of records, and how much a scope holds.

use std::collections::BTreeSet;

use semel_core::claim::{StateName, succeeded};
use semel_core::host::random_16;
use semel_core::key::hex;
use semel_core::store::{KeyPage, KeyQuery, Usage};
use semel_core::{Claim, Key, Scope};

use super::World;

/// A scope in which nothing is stored yet.
fn scope() -> Scope {
    Scope::new(hex(&random_16())).unwrap()
}

fn request(w: &World, scope: &Scope, id: &[u8]) -> Claim {
    Claim {
        key: Key::new(scope.clone(), id).unwrap(),
        ..w.request()
    }
}

async fn page(w: &World, query: &KeyQuery) -> KeyPage {
    let page = w.store.list(query).await.unwrap();
    assert!(page.records.len() <= query.limit as usize);
    page
}

/// All pages of a query.
async fn all(w: &World, mut query: KeyQuery) -> Vec<(Key, Option<StateName>)> {
    let mut all = Vec::new();
    for _ in 0..1_000 {
        let page = page(w, &query).await;
        all.extend(
            page.records
                .into_iter()
                .map(|(key, record)| (key, record.state.name())),
        );
        if page.next.is_none() {
            return all;
        }
        query.from = page.next;
    }
    panic!("the pages never end");
}

/// Ids of any bytes, pages smaller than the scope, another scope beside it whose name begins alike.
pub async fn list_pages_through_a_scope_and_shows_each_record_once(w: &World) {
    let scope = scope();
    let longer = Scope::new([scope.as_bytes(), b"x"].concat()).unwrap();
    let ids: [&[u8]; 7] = [b"a", b"b", b"\0", b"\xff\xfe", b"{t}", b"*", b"a b"];
    let mut expected = BTreeSet::new();
    for id in ids {
        let claim = request(w, &scope, id);
        w.granted(&claim).await;
        expected.insert(claim.key);
        w.granted(&request(w, &longer, id)).await;
    }
    for limit in [1, 3, 100] {
        let query = KeyQuery {
            scope: Some(scope.clone()),
            limit,
            ..KeyQuery::default()
        };
        let listed = all(w, query).await;
        assert_eq!(listed.len(), ids.len(), "none twice");
        assert_eq!(
            listed.into_iter().map(|(key, _)| key).collect::<BTreeSet<_>>(),
            expected
        );
    }
    let everywhere = KeyQuery {
        limit: 100,
        ..KeyQuery::default()
    };
    assert!(all(w, everywhere).await.len() >= 2 * ids.len());
}

/// Swept or not: an expired claim is unknown, an outcome past its retention a tombstone, a released key is nowhere.
pub async fn list_by_state_tells_what_records_read_as_now(w: &World) {
    let scope = scope();
    let [lost, gone, free, running, done] =
        [&b"lost"[..], b"gone", b"free", b"running", b"done"].map(|id| request(w, &scope, id));
    w.granted(&lost).await;
    let lease = w.granted(&gone).await;
    w.complete(&gone, lease, "old").await;
    w.pass_ms(super::KEEP.retention_ms).await;
    let lease = w.granted(&free).await;
    w.release(&free, lease).await;
    w.granted(&running).await;
    let lease = w.granted(&done).await;
    w.complete(&done, lease, "new").await;
    let expected = [
        (&lost, StateName::Unknown),
        (&gone, StateName::Tombstone),
        (&running, StateName::Claimed),
        (&done, StateName::Done),
    ];
    let query = KeyQuery {
        scope: Some(scope.clone()),
        limit: 2,
        ..KeyQuery::default()
    };
    assert_eq!(all(w, query.clone()).await.len(), expected.len());
    for (claim, state) in expected {
        let query = KeyQuery {
            state: Some(state),
            ..query.clone()
        };
        assert_eq!(all(w, query).await, [(claim.key.clone(), Some(state))]);
    }
}

/// Counted up to a maximum; another scope does not count.
pub async fn usage_counts_records_and_bytes_of_a_scope(w: &World) {
    let scope = scope();
    if !w.store.capabilities().counts_scopes {
        let error = w.store.usage(&scope, 1).await.unwrap_err();
        assert_eq!(error.kind(), semel_core::ErrorKind::Invalid);
        return;
    }
    assert_eq!(w.store.usage(&scope, 10).await.unwrap(), Usage::default());
    for (id, output) in [(&b"1"[..], "abc"), (b"2", ""), (b"3", "defgh")] {
        let claim = request(w, &scope, id);
        let lease = w.granted(&claim).await;
        w.complete_with(&claim, lease, succeeded(output)).await;
    }
    w.granted(&request(w, &scope, b"4")).await;
    w.granted(&w.request()).await;
    let usage = Usage { records: 4, bytes: 8 };
    assert_eq!(w.store.usage(&scope, 10).await.unwrap(), usage);
    assert_eq!(w.store.usage(&scope, 2).await.unwrap().records, 2);
}
