//! Ports that stay ours while the process that listens on them is dead.

use std::net::SocketAddr;

use tokio::net::TcpSocket;

use crate::demo::trouble::{Doing as _, Trouble};

/// A port on the loopback interface, free when it was chosen.
///
/// On Linux it is held by a bound socket that never listens: the child may bind beside it, but the system gives the
/// port to nobody else, neither as a listener's free port nor as the source of a connection. Elsewhere the port is
/// only remembered, and a child whose port was taken meanwhile tries again for a while.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _held: Option<TcpSocket>,
}

impl Port {
    /// A free one.
    pub(crate) fn reserve() -> Result<Self, Trouble> {
        let socket = TcpSocket::new_v4().doing("make a socket")?;
        socket.set_reuseaddr(true).doing("reserve a port")?;
        socket
            .bind(SocketAddr::from(([127, 0, 0, 1], 0)))
            .doing("reserve a port on 127.0.0.1")?;
        let number = socket.local_addr().doing("reserve a port")?.port();
        Ok(Self {
            number,
            _held: cfg!(target_os = "linux").then_some(socket),
        })
    }

    /// Its number.
    pub(crate) const fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reserved_port_can_be_listened_on_again_and_again_and_goes_to_nobody_else() {
        let port = Port::reserve().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
        for _ in 0..2 {
            let listener = tokio::net::TcpListener::bind(address).await.unwrap();
            tokio::net::TcpStream::connect(address).await.unwrap();
            drop(listener);
        }
        let others: Vec<_> = (0..50).map(|_| Port::reserve().unwrap()).collect();
        assert!(others.iter().all(|other| other.number() != port.number()));
    }
}
