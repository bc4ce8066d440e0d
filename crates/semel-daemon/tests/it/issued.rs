//! A form that a browser sends twice, through a gateway, with a key that the key API gave out.

use semel_testkit::servers::free_port;
use serde_json::json;

use super::daemon::{Folder, json as body, post};
use super::receiver::Receiver;

#[tokio::test]
async fn a_form_with_an_issued_key_is_sent_once_and_answered_to_its_owner_alone() {
    let upstream = Receiver::start().await;
    let (port, api) = (free_port(), free_port());
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:semel.db\"\n[api]\nlisten = \"127.0.0.1:{api}\"\nissue_secret = \"${{SECRET}}\"\n\
         [[gateway]]\nname = \"shop\"\nlisten = \"127.0.0.1:{port}\"\nupstream = \"{}\"\n\
         principal_header = \"X-User\"\nissue_secret = \"${{SECRET}}\"\n\
         [[gateway.route]]\npaths = [\"/orders\"]\nkey = \"required\"\nkey_fields = [\"order_key\"]\nissued_keys = \"required\"\n",
        upstream.url("/"),
    ));
    let daemon = folder.spawn(&[("SECRET", "0123456789abcdef0123456789abcdef")]);
    daemon.until_alive().await;
    daemon.until_ready().await;

    let json = [("content-type", "application/json")];
    let issue = json!({"gateway": "shop", "principal": "ada"}).to_string();
    let issued = post(format!("http://127.0.0.1:{api}/v1/keys/issue"), &json, issue).await;
    assert_eq!(issued.status(), 201, "{issued:?}");
    let key = body(&issued)["id"].as_str().unwrap().to_owned();

    let send = async |user: &str, key: &str| {
        let headers = [
            ("content-type", "application/x-www-form-urlencoded"),
            ("x-user", user),
        ];
        let form = format!("teapots=2&order_key={key}");
        post(format!("http://127.0.0.1:{port}/orders"), &headers, form).await
    };
    for (user, key) in [("bob", key.as_str()), ("ada", "order-7")] {
        let refused = send(user, key).await;
        assert_eq!(
            (refused.status().as_u16(), body(&refused)["code"].as_str()),
            (422, Some("SEM0432"))
        );
    }
    assert_eq!(upstream.seen().len(), 0);
    assert_eq!(send("ada", &key).await.status(), 204);
    let again = send("ada", &key).await;
    assert_eq!(
        (again.status().as_u16(), &again.headers()["idempotent-replayed"]),
        (204, &"true".parse().unwrap())
    );
    assert_eq!(upstream.seen().len(), 1);
    let (code, log) = daemon.stop().await;
    assert!(code == 0 && !log.contains("0123456789abcdef"), "{log}");
}
