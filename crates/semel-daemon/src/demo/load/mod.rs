//! The load: what is sent and what is struck, and by whom.

mod chaos;
mod client;
mod plan;
mod rng;

pub(crate) use chaos::strike_all;
#[cfg(test)]
pub(crate) use client::Answer;
pub(crate) use client::{Client, Heard, Traffic};
pub(crate) use plan::{
    Blow, DECLINED_CARD, NO_SUCH_ADDRESS, NewOrder, OrderPlan, SOLD_OUT_ITEM, Strike, Target, orders, strikes,
};
