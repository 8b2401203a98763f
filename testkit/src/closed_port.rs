//! A port that refuses connections.

use std::net::{SocketAddr, TcpListener, TcpStream};

/// Address on the loopback interface that refuses connections.
///
/// The port of a closed listener would not do: a test that runs at the same time could be given
/// it. This one is the local port of an open connection, so no listener can have it until drop.
#[derive(Debug)]
pub struct ClosedPort {
    addr: SocketAddr,
    _ends: Vec<TcpStream>,
}

impl ClosedPort {
    /// Reserves a port.
    #[expect(clippy::new_without_default, reason = "it is no default value")]
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        Self {
            addr: client.local_addr().unwrap(),
            _ends: vec![client, peer],
        }
    }

    /// Reserves the port of a server that will end, by a connection. The server's end of it stays
    /// half closed for a minute after the server has ended, unless this value is dropped before.
    #[track_caller]
    pub fn of_server(addr: SocketAddr) -> Self {
        Self {
            addr,
            _ends: vec![TcpStream::connect(addr).unwrap()],
        }
    }

    /// Address that refuses connections.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn a_closed_port_refuses_connections_and_listeners() {
        let closed = ClosedPort::new();
        let refused = TcpStream::connect(closed.addr()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let taken = TcpListener::bind(closed.addr()).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }
}
