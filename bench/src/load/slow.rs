//! Slow readers of a large body.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Receive buffer of a reader, in bytes: small, so that the server has to wait.
const RECEIVE_BUFFER_LEN: usize = 16 << 10;

/// Bytes per read, and the pause between reads; together a rate of 80 KB/s.
const SIP_LEN: usize = 8 << 10;
const SIP_PAUSE: Duration = Duration::from_millis(100);

/// Connections on which a response is in progress.
#[derive(Debug)]
pub(crate) struct Readers(Vec<TcpStream>);

impl Readers {
    /// Requests `path` on `count` connections.
    pub(crate) fn open(address: SocketAddr, path: &str, count: usize) -> io::Result<Self> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let one = |_| {
            // wrk, which is started meanwhile, must not inherit these descriptors: its event loop
            // accepts low descriptor numbers only.
            let flags = SocketFlags::CLOEXEC;
            let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
            let socket = rustix::net::socket_with(family, kind, flags, None)?;
            sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_LEN)?;
            rustix::net::connect(&socket, &address)?;
            let mut stream = TcpStream::from(socket);
            stream.write_all(request.as_bytes())?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        (0..count).map(one).collect::<io::Result<_>>().map(Self)
    }

    /// Reads slowly until `is_done`; returns the number of bytes read. Fails if a connection ends.
    pub(crate) fn sip(&mut self, is_done: &AtomicBool) -> io::Result<u64> {
        let mut sip = [0; SIP_LEN];
        let mut read_len = 0;
        while !is_done.load(Ordering::Relaxed) {
            for stream in &mut self.0 {
                match stream.read(&mut sip) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(len) => read_len += len as u64,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            std::thread::sleep(SIP_PAUSE);
        }
        Ok(read_len)
    }
}
