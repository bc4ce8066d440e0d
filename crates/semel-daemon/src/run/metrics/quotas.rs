//! Keys that the quotas of stores refuse.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

type Refused = Box<dyn Fn() -> u64 + Send + Sync>;

/// The quotas that are watched, by the names of their stores.
#[derive(Clone, Default)]
pub(super) struct Quotas(Arc<Mutex<Vec<(String, Refused)>>>);

impl fmt::Debug for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Quotas")
    }
}

impl Quotas {
    /// Shows what this store's quota has refused.
    pub(super) fn watch(&self, store: &str, refused: impl Fn() -> u64 + Send + Sync + 'static) {
        let mut quotas = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        quotas.push((store.to_owned(), Box::new(refused)));
    }
}

impl Collector for Quotas {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let quotas = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if quotas.is_empty() {
            return Ok(());
        }
        let kind = ConstCounter::new(0_u64);
        let mut metric = encoder.encode_descriptor(
            "keys_quota_refused",
            "New keys that were refused because their scope holds as much as it may",
            None,
            kind.metric_type(),
        )?;
        for (store, refused) in quotas.iter() {
            let labels = [("store", store.as_str())];
            ConstCounter::new(refused()).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
