//! One shop's run: set up, start, load and strike, let settle, kill everything, count.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::audit::{Books, audit, read};
use super::folder::Folder;
use super::load::{Client, Heard, OrderPlan, Strike, Traffic, strike_all};
use super::moment::Moment;
use super::process::{Counts, Part, Port, Troupe};
use super::progress::Progress;
use super::report::{Ordeal, Report, Shop};
use super::trouble::{Doing as _, Trouble};
use super::{by_hand, semel};

/// How often the books are looked at while the shop settles.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// When nothing has changed for so long, whatever is open stays open: well beyond every lease, time-out and pause
/// between retries of that shop.
const fn quiet(shop: Shop) -> Duration {
    match shop {
        Shop::ByHand => Duration::from_secs(6),
        Shop::Semel => Duration::from_secs(15),
    }
}
/// After a minute and this long per order it is counted, however much still happens.
const SETTLE_PER_ORDER: Duration = Duration::from_millis(200);

/// Who plays in a shop.
#[derive(Debug)]
pub(crate) struct Cast {
    pub(crate) parts: Vec<Part>,
    /// Where the two copies of orders listen.
    pub(crate) orders: [u16; 2],
    /// Held as long as the shop runs.
    pub(crate) _ports: Vec<Port>,
}

/// What is done to a shop; the same for both.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) orders: Vec<OrderPlan>,
    pub(crate) strikes: Vec<Strike>,
    pub(crate) load: Duration,
}

/// Runs a shop. When this future is dropped, all its processes are killed.
pub(crate) async fn perform(shop: Shop, folder: &Folder, script: &Script) -> Result<Report, Trouble> {
    let begun = Moment::now();
    let dir = &folder.path;
    std::fs::create_dir_all(dir).doing(format!("make {}", dir.display()))?;
    let cast = match shop {
        Shop::ByHand => by_hand::cast(dir)?,
        Shop::Semel => semel::cast(dir)?,
    };
    let counts = Arc::new(Counts::default());
    let troupe = Troupe::start(dir, folder.temporary.as_deref(), &cast.parts, &counts).await?;

    let start = Moment::now();
    let traffic = Arc::new(Traffic::default());
    let done = CancellationToken::new();
    let progress = Progress {
        shop,
        dir: dir.clone(),
        load: script.load,
        traffic: Arc::clone(&traffic),
        counts: Arc::clone(&counts),
    };
    let telling = tokio::spawn(progress.tell(done.clone()));
    let client = Client::new(cast.orders, Arc::clone(&traffic), done.clone());
    let mut customers: JoinSet<Heard> = JoinSet::new();
    for plan in &script.orders {
        customers.spawn(client.clone().place(start, plan.clone()));
    }
    strike_all(start, &script.strikes, |target| troupe.hit(target)).await;
    start.plus(script.load).reached().await;
    settle(dir, quiet(shop), script.orders.len(), &traffic).await?;

    done.cancel();
    let heard = customers.join_all().await;
    telling.await.doing("finish the progress line")?;
    // Everything is killed before anything is counted: what only stood in a process's memory does not count.
    troupe.stop().await;
    drop(cast);
    let audit = audit(&heard, &read(dir).await?);
    Ok(Report {
        shop,
        ordeal: Ordeal::of(&traffic, &counts),
        audit,
        took_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
    })
}

/// Waits until every customer has an answer and every order and event is through, or until nothing moves any more.
async fn settle(dir: &Path, quiet: Duration, orders: usize, traffic: &Traffic) -> Result<(), Trouble> {
    let longest = Duration::from_secs(60) + SETTLE_PER_ORDER * u32::try_from(orders).unwrap_or(u32::MAX);
    let begun = Moment::now();
    let mut last = (Books::default(), 0);
    let mut changed = Moment::now();
    while begun.elapsed() < longest && changed.elapsed() < quiet {
        let now = (read(dir).await?, traffic.answered.load(Ordering::Relaxed));
        if now.1 == orders as u64 && now.0.at_rest() {
            return Ok(());
        }
        if now != last {
            last = now;
            changed = Moment::now();
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}
