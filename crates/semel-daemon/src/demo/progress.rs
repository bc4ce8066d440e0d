//! One line that says what happens: drawn again and again in a terminal, a line now and then in a pipe. On stderr.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::audit::events_applied;
use super::load::Traffic;
use super::moment::Moment;
use super::process::Counts;
use super::report::Shop;
use crate::out;

const REDRAW: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(5);

/// What the line tells.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) shop: Shop,
    pub(crate) dir: PathBuf,
    /// How long the load lasts; after that the shop settles.
    pub(crate) load: Duration,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) counts: Arc<Counts>,
}

impl Progress {
    /// Tells until `stop`.
    pub(crate) async fn tell(self, stop: CancellationToken) {
        let terminal = std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            bar.set_style(style);
        }
        let start = Moment::now();
        let mut last_line = start;
        while !stop.is_cancelled() {
            let elapsed = start.elapsed();
            if terminal {
                bar.set_message(self.text(elapsed).await);
                bar.tick();
            } else if last_line.elapsed() >= LINE_EVERY {
                last_line = Moment::now();
                out::note(self.text(elapsed).await);
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(REDRAW) => {}
            }
        }
        bar.finish_and_clear();
        out::note(self.text(start.elapsed()).await.replace("settling", "settled"));
    }

    /// A narrow terminal cuts the end off, so what matters most comes first.
    async fn text(&self, elapsed: Duration) -> String {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        // A file that is busy right now is counted next time.
        let events = events_applied(&self.dir).await.unwrap_or(0);
        let phase = if elapsed < self.load { "" } else { ", settling" };
        format!(
            "{} {:.0} s: {}/{} answered, {} again, {events} events, {} killed, {} paused, {} restarted{phase}",
            self.shop.title(),
            elapsed.as_secs_f64(),
            get(&self.traffic.answered),
            get(&self.traffic.placed),
            get(&self.traffic.duplicates),
            get(&self.counts.kills),
            get(&self.counts.pauses),
            get(&self.counts.restarts),
        )
    }
}
