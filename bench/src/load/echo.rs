//! Sends WebSocket messages: echo and broadcast.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use testkit::http1::Connection;
use testkit::websocket::{TEXT, frame, handshake};

use super::Seen;
use super::poll::Fleet;

/// Time after which a message counts as lost.
const MESSAGE_SECONDS_MAX: Duration = Duration::from_secs(20);

/// Opens `count` sockets and sends messages of `len` bytes on each: the next one after the echo of
/// the previous one.
pub(crate) fn echo(address: SocketAddr, count: usize, len: u16, seconds: f64) -> io::Result<Seen> {
    let (message, answer_len) = (text(len), answer_len(len));
    let mut fleet = Fleet::new(open(address, "/ws", count)?)?;
    let started = Instant::now();
    let mut asked = vec![started; count];
    let mut received_len = vec![0; count];
    for mut stream in &fleet.streams {
        stream.write_all(&message)?;
    }
    let mut seen = Seen::default();
    let mut buffer = vec![0; 65536];
    while started.elapsed().as_secs_f64() < seconds {
        let keys = fleet.wait(MESSAGE_SECONDS_MAX)?;
        if keys.is_empty() {
            return Err(ErrorKind::TimedOut.into());
        }
        for key in keys {
            let (Some(mut stream), Some(asked), Some(received_len)) = (
                fleet.streams.get(key),
                asked.get_mut(key),
                received_len.get_mut(key),
            ) else {
                continue;
            };
            *received_len += read(stream, &mut buffer)?;
            if *received_len >= answer_len {
                *received_len -= answer_len;
                seen.latencies_us.push(asked.elapsed().as_secs_f64() * 1e6);
                seen.count += 1;
                *asked = Instant::now();
                stream.write_all(&message)?;
            }
        }
    }
    seen.duration = started.elapsed();
    seen.latencies_us.sort_by(f64::total_cmp);
    Ok(seen)
}

/// Opens `count` sockets that receive each other's messages, and sends `messages` messages one
/// after the other. The latency of a message ends when the last socket has received it.
///
/// Calls `begin` when all sockets are open, so that the caller can exclude the handshakes.
pub(crate) fn broadcast(
    address: SocketAddr,
    count: usize,
    len: u16,
    messages: u32,
    begin: impl FnOnce(),
) -> io::Result<Seen> {
    let (message, answer_len) = (text(len), answer_len(len));
    let mut fleet = Fleet::new(open(address, "/broadcast", count)?)?;
    let mut buffer = vec![0; 65536];
    // This first message is not counted. It shows that every socket is subscribed.
    say(&mut fleet, &message, answer_len, &mut buffer)?;
    begin();
    let started = Instant::now();
    let mut seen = Seen::default();
    for _ in 0..messages {
        let sent = Instant::now();
        say(&mut fleet, &message, answer_len, &mut buffer)?;
        seen.latencies_us.push(sent.elapsed().as_secs_f64() * 1e6);
        seen.count += 1;
    }
    seen.duration = started.elapsed();
    seen.latencies_us.sort_by(f64::total_cmp);
    Ok(seen)
}

/// Sends a message on the first socket and waits until all sockets have received it.
fn say(fleet: &mut Fleet, message: &[u8], answer_len: usize, buffer: &mut [u8]) -> io::Result<()> {
    let mut left_len = vec![answer_len; fleet.streams.len()];
    let mut left_count = left_len.len();
    if let Some(mut first) = fleet.streams.first() {
        first.write_all(message)?;
    }
    while left_count > 0 {
        let keys = fleet.wait(MESSAGE_SECONDS_MAX)?;
        if keys.is_empty() {
            let text = format!("{left_count} sockets have not received the message");
            return Err(io::Error::new(ErrorKind::TimedOut, text));
        }
        for key in keys {
            let (Some(stream), Some(left_len)) = (fleet.streams.get(key), left_len.get_mut(key))
            else {
                continue;
            };
            let len = read(stream, buffer)?;
            if len > *left_len {
                return Err(io::Error::new(ErrorKind::InvalidData, "more than was sent"));
            }
            *left_len -= len;
            left_count -= usize::from(len > 0 && *left_len == 0);
        }
    }
    Ok(())
}

/// Opens `count` WebSockets at `path`. Fails if the server does not switch protocols.
pub(crate) fn open(address: SocketAddr, path: &str, count: usize) -> io::Result<Vec<TcpStream>> {
    let one = |_| {
        let mut connection = Connection::try_connect(address)?;
        connection.try_send(handshake(path, ""))?;
        let head = connection.try_head(false)?;
        if head.is_none_or(|head| head.status != 101) || !connection.unused().is_empty() {
            let text = "not upgraded, or a message from the server before the first request";
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        Ok(connection.stream)
    };
    (0..count).map(one).collect()
}

/// Returns a text message of `len` bytes as a masked client frame.
fn text(len: u16) -> Vec<u8> {
    frame(TEXT, vec![b'x'; usize::from(len)])
}

/// Returns the length of the same message as an unmasked server frame.
fn answer_len(len: u16) -> usize {
    let head_len = if len < 126 { 2 } else { 4 };
    head_len + usize::from(len)
}

/// Reads the bytes that are available. Returns 0 after a spurious wake-up.
fn read(mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    match stream.read(buffer) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        read => read,
    }
}
