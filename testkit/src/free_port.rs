//! A port for servers that cannot choose one themselves.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};

/// First port of the range, and number of its ports. It is below the range from which the kernel
/// chooses ports (`ip_local_port_range`), so no other socket is given one before the server starts.
const PORT_MIN: u16 = 20_000;
const PORT_COUNT: u32 = 12_000;

/// Returns a port on which no program listens, and which other tests do not use.
///
/// Each call returns another port; processes begin at different ones. No socket is bound to try the
/// port: a child of another thread could inherit it and keep the port in use for a moment.
pub fn free_port() -> u16 {
    static CALL_COUNT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(61);
    loop {
        let number = first.wrapping_add(CALL_COUNT.fetch_add(1, Ordering::Relaxed)) % PORT_COUNT;
        let port = PORT_MIN + u16::try_from(number).unwrap();
        if TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_err() {
            return port;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let (one, other) = (free_port(), free_port());
        assert_ne!(one, other);
        for port in [one, other] {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }
}
