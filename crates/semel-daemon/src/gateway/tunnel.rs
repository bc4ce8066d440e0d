//! WebSockets and other protocols that a connection changes to: bytes both ways, until one side ends.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio_util::sync::CancellationToken;

use super::body::Watch;
use super::stats::Stats;

/// The place that the client's connection has among those that are open at a time. Lies in the extensions of a request that
/// asks for another protocol: its tunnel is the same connection.
#[derive(Clone)]
pub(crate) struct Place(#[expect(dead_code, reason = "held until dropped")] Arc<dyn Any + Send + Sync>);

impl Place {
    pub(crate) fn new(place: Arc<dyn Any + Send + Sync>) -> Self {
        Self(place)
    }
}

/// Bytes that are read at once.
const BUFFER: usize = 16 << 10;

/// Joins both ends as soon as the answer has been sent. Ends when both directions have, when nothing has moved for
/// `idle`, or when the daemon stops.
pub(super) fn join(
    (client, place): (OnUpgrade, Option<Place>),
    mut answer: Response<Incoming>,
    idle: Duration,
    stop: CancellationToken,
    stats: Arc<Stats>,
) -> Response<Incoming> {
    let upstream = hyper::upgrade::on(&mut answer);
    tokio::spawn(async move {
        let (client, upstream) = match tokio::join!(client, upstream) {
            (Ok(client), Ok(upstream)) => (client, upstream),
            (Err(error), _) | (_, Err(error)) => {
                tracing::debug!(error = %error, "a connection did not change its protocol");
                return;
            }
        };
        let _open = (stats.tunnel(), place);
        let watch = Watch::default();
        watch.moved();
        let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
        let (from_upstream, to_upstream) = tokio::io::split(TokioIo::new(upstream));
        let both = async {
            tokio::join!(
                copy(from_client, to_upstream, &watch),
                copy(from_upstream, to_client, &watch)
            )
        };
        tokio::select! {
            _ = both => {}
            () = watch.still_for(idle) => {}
            () = stop.cancelled() => {}
        }
    });
    answer
}

async fn copy(mut from: ReadHalf<TokioIo<Upgraded>>, mut to: WriteHalf<TokioIo<Upgraded>>, watch: &Watch) {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer).await {
            Ok(read) if read > 0 => {
                let Some(bytes) = buffer.get(..read) else { return };
                watch.moved();
                if to.write_all(bytes).await.is_err() || to.flush().await.is_err() {
                    return;
                }
                watch.moved();
            }
            _ => {
                // The other direction may still have something to say.
                let _ = to.shutdown().await;
                return;
            }
        }
    }
}
