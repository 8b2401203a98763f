//! Opens connections that stay idle.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Time after which a response counts as lost.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Opens `count` connections and requests `path` once on each, so that the server has allocated all
/// that it needs for them. Fails if a response is not 200.
pub(crate) fn open(address: SocketAddr, path: &str, count: usize) -> io::Result<Vec<TcpStream>> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let mut buffer = [0; 4096];
    let one = |_| {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        stream.write_all(request.as_bytes())?;
        let len = stream.read(&mut buffer)?;
        let answer = buffer.get(..len).unwrap_or_default();
        if answer.starts_with(b"HTTP/1.1 200") {
            Ok(stream)
        } else {
            let said = String::from_utf8_lossy(answer).into_owned();
            Err(io::Error::new(ErrorKind::InvalidData, said))
        }
    };
    (0..count).map(one).collect()
}
