//! Asks on many connections at once, and counts the answers.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::poll::Fleet;

/// What became of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Number of responses 200.
    pub(crate) answered_count: u64,
    /// Number of other responses, and of connections that the server closed.
    pub(crate) refused_count: u64,
    /// Number of requests without a response when the time was over.
    pub(crate) unanswered_count: u64,
}

/// Requests `path` once on each connection, and waits for the responses, at most `time_max`.
pub(crate) fn ask(
    connections: Vec<TcpStream>,
    address: SocketAddr,
    path: &str,
    time_max: Duration,
) -> io::Result<Outcome> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let mut is_waiting = vec![true; connections.len()];
    let mut outcome = Outcome {
        answered_count: 0,
        refused_count: 0,
        unanswered_count: connections.len() as u64,
    };
    let mut fleet = Fleet::new(connections)?;
    let started = Instant::now();
    for mut stream in &fleet.streams {
        stream.write_all(request.as_bytes())?;
    }
    let mut buffer = [0; 4096];
    while outcome.unanswered_count > 0 && started.elapsed() < time_max {
        for key in fleet.wait(time_max.saturating_sub(started.elapsed()))? {
            let (Some(mut stream), Some(is_waiting)) =
                (fleet.streams.get(key), is_waiting.get_mut(key))
            else {
                continue;
            };
            let len = match stream.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                read => read.unwrap_or(0),
            };
            // A body may arrive after its head. It does not count again.
            if std::mem::take(is_waiting) {
                let answer = buffer.get(..len).unwrap_or_default();
                let is_answered = answer.starts_with(b"HTTP/1.1 200");
                outcome.answered_count += u64::from(is_answered);
                outcome.refused_count += u64::from(!is_answered);
                outcome.unanswered_count -= 1;
            }
            if len == 0 {
                // A closed connection would be readable forever.
                fleet.forget(key)?;
            }
        }
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn answers_refusals_and_silence_are_counted_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connect = |_| TcpStream::connect(address).unwrap();
        let clients: Vec<TcpStream> = (0..4).map(connect).collect();
        let mut servers: Vec<TcpStream> = (0..4).map(|_| listener.accept().unwrap().0).collect();
        servers[0]
            .write_all(b"HTTP/1.1 200 OK\r\n\r\nbody")
            .unwrap();
        servers[1].write_all(b"HTTP/1.1 503 No\r\n\r\n").unwrap();
        drop(servers.remove(2));
        let seen = ask(clients, address, "/", Duration::from_millis(300)).unwrap();
        let expected = Outcome {
            answered_count: 1,
            refused_count: 2,
            unanswered_count: 1,
        };
        assert_eq!(seen, expected);
    }
}
