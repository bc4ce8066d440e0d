//! Growth limits of a store, through every listener that uses it.

use semel_testkit::servers::free_port;
use serde_json::json;

use super::daemon::{Folder, json as body, post, run, texts};
use super::receiver::Receiver;

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn a_caller_who_holds_too_much_gets_no_new_key_and_every_old_answer() {
    let upstream = Receiver::start().await;
    let (port, api) = (free_port(), free_port());
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:semel.db\"\nquota = {{ records_max = 2 }}\n[api]\nlisten = \"127.0.0.1:{api}\"\n\
         [[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:{port}\"\nupstream = \"{}\"\nprincipal_header = \"X-User\"\n",
        upstream.url("/"),
    ));
    run(folder.path(), &["migrate"]);
    let (checked, _, _) = texts(&run(folder.path(), &["check"]));
    assert!(
        checked.contains("\tquota\ta scope holds at most 2 records"),
        "{checked}"
    );
    let daemon = folder.start().await;
    daemon.until_ready().await;

    let charge = async |user, key| {
        let headers = [JSON, ("x-user", user), ("idempotency-key", key)];
        post(format!("http://127.0.0.1:{port}/charge"), &headers, "{}").await
    };
    for key in ["a", "b"] {
        assert_eq!(charge("ada", key).await.status(), 204);
    }
    let full = charge("ada", "c").await;
    assert_eq!(full.status(), 429, "{full:?}");
    assert_eq!(body(&full)["code"], "SEM0431");
    assert_eq!(full.headers()["retry-after"], "60");
    assert_eq!(full.headers()["semel-outcome"], "refused");
    let detail = body(&full)["detail"].to_string();
    assert!(detail.contains("records_max"), "{detail}");
    let again = charge("ada", "a").await;
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(charge("bob", "c").await.status(), 204, "another caller has room");
    assert_eq!(upstream.seen().len(), 3);

    let claim = async |id: &str| {
        let body = json!({"scope": "orders", "id": id, "input": "x"}).to_string();
        post(format!("http://127.0.0.1:{api}/v1/keys/claim"), &[JSON], body).await
    };
    for id in ["a", "b"] {
        assert_eq!(claim(id).await.status(), 201);
    }
    let full = claim("c").await;
    assert_eq!(
        (full.status().as_u16(), &body(&full)["code"]),
        (507, &json!("SEM0718"))
    );
    let detail = body(&full)["detail"].to_string();
    assert!(
        detail.contains("the scope orders holds 2 records, records_max = 2"),
        "{detail}"
    );
    assert_eq!(claim("a").await.status(), 409, "it runs, as ever");

    let refused = "semel_keys_quota_refused_total{store=\"default\"}";
    assert_eq!(daemon.metric(refused).await, Some(2.0));
    let counted = "semel_gateway_keys_total{gateway=\"g\",event=\"scope_full\"}";
    assert_eq!(daemon.metric(counted).await, Some(1.0));
    assert_eq!(daemon.stop().await.0, 0);
}
