//! The one who kills.

use tokio::time::{Instant, sleep_until};

use super::plan::{Strike, Target};
use crate::demo::process::Keeper;

/// Strikes as planned, counted from `start`.
pub(crate) async fn strike_all<'a>(
    start: Instant,
    strikes: &[Strike],
    process: impl Fn(Target) -> Option<&'a Keeper>,
) {
    for strike in strikes {
        sleep_until(start + strike.at).await;
        if let Some(keeper) = process(strike.target) {
            tracing::info!(process = keeper.name(), blow = ?strike.blow, "struck");
            keeper.strike(strike.blow);
        }
    }
}
