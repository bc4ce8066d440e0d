//! The processes of the shop with Semel.

use std::ffi::OsString;
use std::path::Path;

use crate::demo::load::Target;
use crate::demo::process::{Part, Port};
use crate::demo::shop::{Map, service_args};
use crate::demo::stage::Cast;
use crate::demo::trouble::{Doing as _, Trouble};

/// Reserves the ports, and writes the map and the engines' configuration.
pub(crate) fn cast(dir: &Path) -> Result<Cast, Trouble> {
    let ports = (0..7).map(|_| Port::reserve()).collect::<Result<Vec<_>, _>>()?;
    let [orders_1, orders_2, payments, stock, shipping, engine_1, engine_2] =
        std::array::from_fn(|n| ports[n].number());
    let map = Map {
        orders: [orders_1, orders_2],
        payments,
        stock,
        shipping,
    };
    map.save(dir)?;
    let service = |name, service: &str, port: u16, target: Target| Part {
        name,
        targets: vec![target],
        args: service_args("semel", service, dir, port),
        port,
    };
    let parts = vec![
        service("orders-1", "orders", orders_1, Target::Orders(0)),
        service("orders-2", "orders", orders_2, Target::Orders(1)),
        service("payments", "payments", payments, Target::Payments),
        service("stock", "stock", stock, Target::Stock),
        service("shipping", "shipping", shipping, Target::Shipping),
        engine(dir, "engine-1", engine_1, &map, Target::Engine(0))?,
        engine(dir, "engine-2", engine_2, &map, Target::Engine(1))?,
    ];
    Ok(Cast {
        parts,
        orders: map.orders,
        _ports: ports,
    })
}

/// A copy of `semel run`, relay and coordinator in one. Both copies share the files; leases say who does what.
fn engine(dir: &Path, name: &'static str, port: u16, map: &Map, target: Target) -> Result<Part, Trouble> {
    let file = dir.join(format!("{name}.toml"));
    std::fs::write(&file, config(port, map)).doing(format!("write {}", file.display()))?;
    let mut args: Vec<OsString> = ["run", "-c"].iter().map(OsString::from).collect();
    args.push(file.into());
    Ok(Part {
        name,
        targets: vec![target],
        args,
        port,
    })
}

fn config(port: u16, map: &Map) -> String {
    let shipping = map.shipping;
    format!(
        r#"# Written by `semel demo`. Time is short there, so leases and waits are shorter than one would choose.

[server]
listen = "127.0.0.1:{port}"

[store]
url = "sqlite:engine.db"

[stores.orders]
url = "sqlite:orders.db"

# What happened to orders goes to shipping.
[[relay]]
name = "events"
store = "orders"
streams = ["events"]
sink = {{ webhook = {{ url = "http://127.0.0.1:{shipping}/events" }} }}
lease_ms = 2000
send_timeout_ms = 1000
retry_cap_ms = 500

# Each order's saga is submitted by delivering an event to the coordinator, here in this same process.
[[relay]]
name = "sagas"
store = "orders"
streams = ["sagas"]
sink = {{ webhook = {{ url = "http://127.0.0.1:{port}/sagas" }} }}
lease_ms = 2000
send_timeout_ms = 1000
retry_cap_ms = 500

[saga]
lease_ms = 2000
poll_ms = 100
"#
    )
}
