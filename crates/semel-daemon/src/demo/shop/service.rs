//! The life of a service process.

use std::ffi::OsString;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use semel_core::host::dice;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::demo::trouble::{Doing as _, Trouble};

/// How often a taken port is tried again, and how long between.
const BIND_TRIES: u32 = 100;
const BIND_PAUSE: Duration = Duration::from_millis(100);

/// Where everything of a shop is: `shop.json` in its folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Map {
    pub(crate) orders: [u16; 2],
    pub(crate) payments: u16,
    pub(crate) stock: u16,
    pub(crate) shipping: u16,
}

impl Map {
    pub(crate) fn save(&self, shop: &Path) -> Result<(), Trouble> {
        let text = serde_json::to_vec_pretty(self).doing("write shop.json")?;
        std::fs::write(shop.join("shop.json"), text).doing(format!("write {}/shop.json", shop.display()))
    }

    pub(crate) fn load(shop: &Path) -> Result<Self, Trouble> {
        let text =
            std::fs::read(shop.join("shop.json")).doing(format!("read {}/shop.json", shop.display()))?;
        serde_json::from_slice(&text).doing("understand shop.json")
    }
}

/// The database files of a shop: one per service.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    pub(crate) orders: PathBuf,
    pub(crate) payments: PathBuf,
    pub(crate) stock: PathBuf,
    pub(crate) shipping: PathBuf,
}

impl Files {
    pub(crate) fn of(shop: &Path) -> Self {
        Self {
            orders: shop.join("orders.db"),
            payments: shop.join("payments.db"),
            stock: shop.join("stock.db"),
            shipping: shop.join("shipping.db"),
        }
    }
}

/// Serves until the process is killed, or until its parent is gone.
pub(crate) async fn serve(port: u16, router: Router) -> Result<(), Trouble> {
    leave_with_parent();
    let listener = bind(port).await?;
    axum::serve(listener, router).await.doing("serve")
}

async fn bind(port: u16) -> Result<TcpListener, Trouble> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut tries = 0;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) if tries < BIND_TRIES => {
                tracing::warn!(%address, %error, "port taken, trying again");
                tries += 1;
                sleep(BIND_PAUSE).await;
            }
            error => return error.doing(format!("listen on {address}")),
        }
    }
}

/// Ends this process when the demo's end of standard input closes. The watchdog would do it too; this is quicker,
/// and it covers the moment before the watchdog's kill.
fn leave_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
}

/// The time the work itself takes: a card network, a warehouse, a mail server.
pub(crate) async fn think() {
    sleep(Duration::from_millis(5 + (dice() * 20.0) as u64)).await;
}

/// The arguments by which this binary becomes a service of a shop.
pub(crate) fn service_args(shop: &str, service: &str, dir: &Path, port: u16) -> Vec<OsString> {
    let mut args: Vec<OsString> = ["demo-child", shop, "--service", service, "--port"]
        .iter()
        .map(OsString::from)
        .collect();
    args.push(port.to_string().into());
    args.push("--shop".into());
    args.push(dir.into());
    args
}
