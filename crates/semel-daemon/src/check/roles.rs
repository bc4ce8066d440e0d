//! Roles: free ports, reachable receivers and upstreams, and the guarantee in force.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::findings::Finding;
use crate::config::Config;
use crate::config::sink::SinkConfig;
use crate::store::Store;

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(3);

/// Looks at the daemon's address and at every role.
pub(crate) async fn check(config: &Config, _stores: &[(String, Store)], findings: &mut Vec<Finding>) {
    findings.push(port("server", config.server.listen).await);
    for relay in &config.relays {
        let part = format!("relay {}", relay.name);
        match &relay.sink {
            SinkConfig::Webhook(webhook) => findings.push(reachable(&part, "receiver", &webhook.url).await),
            SinkConfig::Kafka(_) => {}
        }
    }
    for gateway in &config.gateways {
        let part = format!("gateway {}", gateway.name);
        findings.push(port(&part, gateway.listen.value).await);
        findings.push(reachable(&part, "upstream", &gateway.upstream).await);
    }
}

/// Whether a port can be had, or a semel has it already.
async fn port(part: &str, address: SocketAddr) -> Finding {
    match TcpListener::bind(address).await {
        Ok(_) => Finding::ok(part, "port", format!("{address} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            if is_semel(address).await {
                let fix = "that may be the daemon you mean; a second one cannot have the port";
                return Finding::warn(part, "port", format!("a semel listens on {address}"), fix);
            }
            let fix = format!(
                "stop the other process (`ss -ltnp 'sport = :{}'`) or set another port",
                address.port()
            );
            Finding::bad(part, "port", format!("{address} is in use"), fix)
        }
        Err(error) => Finding::bad(
            part,
            "port",
            format!("{address}: {error}"),
            "set an address that can be had",
        ),
    }
}

async fn is_semel(address: SocketAddr) -> bool {
    let client = semel_client::HttpClient::new(semel_client::Limits::default());
    let Ok(request) = http::Request::get(format!("http://{address}/healthz")).body(bytes::Bytes::new())
    else {
        return false;
    };
    match client.send(request, CONNECT).await {
        Ok(answer) => answer.body().as_ref() == b"alive\n",
        Err(_) => false,
    }
}

/// Whether something accepts connections where the URL points.
async fn reachable(part: &str, check: &'static str, url: &http::Uri) -> Finding {
    let host = url.host().unwrap_or_default();
    let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("https") {
        443
    } else {
        80
    });
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let trouble = match timeout(CONNECT, TcpStream::connect((bare, port))).await {
        Ok(Ok(_)) => return Finding::ok(part, check, format!("{host}:{port} accepts connections")),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", CONNECT.as_secs()),
    };
    Finding::bad(
        part,
        check,
        format!("{host}:{port}: {trouble}"),
        "start it, or mend the URL",
    )
}
