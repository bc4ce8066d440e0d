//! The processes of the hand-written shop. The pollers and the checkouts run inside the two copies of orders, so a
//! blow at what relays events and runs sagas hits those.

use std::path::Path;

use crate::demo::load::Target;
use crate::demo::process::{Part, Port};
use crate::demo::shop::{Map, service_args};
use crate::demo::stage::Cast;
use crate::demo::trouble::Trouble;

/// Reserves the ports and writes the map.
pub(crate) fn cast(dir: &Path) -> Result<Cast, Trouble> {
    let ports = (0..5).map(|_| Port::reserve()).collect::<Result<Vec<_>, _>>()?;
    let [orders_1, orders_2, payments, stock, shipping] = std::array::from_fn(|n| ports[n].number());
    let map = Map {
        orders: [orders_1, orders_2],
        payments,
        stock,
        shipping,
    };
    map.save(dir)?;
    let part = |name, service: &str, port: u16, targets: &[Target]| Part {
        name,
        targets: targets.to_vec(),
        args: service_args("by-hand", service, dir, port),
        port,
    };
    let parts = vec![
        part(
            "orders-1",
            "orders",
            orders_1,
            &[Target::Orders(0), Target::Engine(0)],
        ),
        part(
            "orders-2",
            "orders",
            orders_2,
            &[Target::Orders(1), Target::Engine(1)],
        ),
        part("payments", "payments", payments, &[Target::Payments]),
        part("stock", "stock", stock, &[Target::Stock]),
        part("shipping", "shipping", shipping, &[Target::Shipping]),
    ];
    Ok(Cast {
        parts,
        orders: map.orders,
        _ports: ports,
    })
}
