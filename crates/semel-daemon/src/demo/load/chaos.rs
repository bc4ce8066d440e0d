//! The one who kills.

use super::plan::{Strike, Target};
use crate::demo::moment::Moment;
use crate::demo::process::Keeper;

/// Strikes as planned, counted from `start`.
pub(crate) async fn strike_all<'a>(
    start: Moment,
    strikes: &[Strike],
    process: impl Fn(Target) -> Option<&'a Keeper>,
) {
    for strike in strikes {
        start.plus(strike.at).reached().await;
        if let Some(keeper) = process(strike.target) {
            tracing::info!(process = keeper.name(), blow = ?strike.blow, "struck");
            keeper.strike(strike.blow);
        }
    }
}
