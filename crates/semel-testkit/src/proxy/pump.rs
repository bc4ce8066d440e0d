//! Moves the data of one connection.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::Shared;
use super::rules::{Direction, Verdict};

/// As much of the past as a rule's text may need to be found across two pieces.
const PAST: usize = 4_096;

/// The connection is to be cut.
struct Cut;

/// Runs until both sides have said all, or a rule cuts the connection.
pub(super) async fn both(client: TcpStream, server: TcpStream, shared: &Shared) {
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    let swallow = AtomicBool::new(false);
    // Either one's cut ends both.
    let _ = tokio::try_join!(
        one_way(Direction::ToServer, client_in, server_out, shared, &swallow),
        one_way(Direction::ToClient, server_in, client_out, shared, &swallow),
    );
}

async fn one_way(
    direction: Direction,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    swallow: &AtomicBool,
) -> Result<(), Cut> {
    let mut paused = shared.paused.subscribe();
    let mut past = Vec::new();
    let mut piece = vec![0; 16_384];
    loop {
        let count = from.read(&mut piece).await.map_err(|_| Cut)?;
        let delay = shared.rules().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        paused.wait_for(|paused| !paused).await.map_err(|_| Cut)?;
        if count == 0 {
            // One side has said all; the other may still answer.
            return to.shutdown().await.map_err(|_| Cut);
        }
        let data = &piece[..count];
        if direction == Direction::ToClient && swallow.load(Ordering::SeqCst) {
            shared.hits.send_modify(|hits| *hits += 1);
            return Err(Cut);
        }
        let verdict = shared.rules().judge(direction, &past, data);
        match verdict {
            Verdict::Forward => {}
            // Before the request leaves, so that no reply is faster.
            Verdict::ForwardAndSwallowReply => swallow.store(true, Ordering::SeqCst),
            Verdict::CutAt(left) => {
                to.write_all(&data[..left]).await.map_err(|_| Cut)?;
                shared.hits.send_modify(|hits| *hits += 1);
                return Err(Cut);
            }
        }
        to.write_all(data).await.map_err(|_| Cut)?;
        past.extend_from_slice(data);
        let excess = past.len().saturating_sub(PAST);
        past.drain(..excess);
    }
}
