//! A proxy that delays every byte, as a long network connection does.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

/// Number of pieces that are on their way in one direction of a connection.
const PIECE_COUNT: usize = 64;
const PIECE_LEN: usize = 256 << 10;

/// Starts a proxy for `server` that delays the bytes of both directions by `delay`; it runs until
/// this process ends. Returns its address.
pub(crate) fn start(server: SocketAddr, delay: Duration) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // If the server refuses the connection, the client's is closed by its drop.
            drop(connect(client, server, delay));
        }
    });
    Ok(address)
}

fn connect(client: TcpStream, server: SocketAddr, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    pump(client.try_clone()?, server.try_clone()?, delay);
    pump(server, client, delay);
    Ok(())
}

/// Starts the threads of one direction.
fn pump(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, receiver) = sync_channel::<(Instant, Vec<u8>)>(PIECE_COUNT);
    thread::spawn(move || {
        for (due, piece) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Write).ok();
    });
    thread::spawn(move || {
        let mut buffer = vec![0; PIECE_LEN];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            let piece = buffer.get(..len).unwrap_or_default().to_vec();
            if sender.send((Instant::now() + delay, piece)).is_err() {
                break;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_complete_and_not_before_the_delay() {
        let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = echo.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = echo.accept().unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        });
        let delay = Duration::from_millis(20);
        let mut client = TcpStream::connect(start(server, delay).unwrap()).unwrap();
        let message = vec![7; 1_000_000];
        let started = Instant::now();
        client.write_all(&message).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer == message, "{} bytes", answer.len());
        assert!(started.elapsed() >= delay * 2);
    }
}
