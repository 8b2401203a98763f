//! A proxy with the delay and the rate of a network line.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Number of pieces that are on their way in one direction of a connection.
const PIECE_COUNT: usize = 64;
const PIECE_LEN: usize = 64 << 10;

/// Time that the line makes up for, because threads wake up late.
const LATENESS_MAX: Duration = Duration::from_millis(2);

/// One direction of a line, which all connections share.
#[derive(Debug)]
struct Direction {
    delay: Duration,
    /// Time of one bit in seconds; 0 without a limit.
    seconds_per_bit: f64,
    /// Time when the last piece is on its way.
    free_at: Mutex<Instant>,
}

impl Direction {
    fn new(delay: Duration, rate: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            delay,
            seconds_per_bit: rate.map_or(0.0, |rate| f64::from(rate).recip()),
            free_at: Mutex::new(Instant::now()),
        })
    }

    /// Waits until a piece of this length is on its way. Returns the time of its arrival.
    fn send(&self, len: usize) -> Instant {
        let bits = f64::from(u32::try_from(len * 8).unwrap_or(u32::MAX));
        let duration = Duration::from_secs_f64(bits * self.seconds_per_bit);
        let sent_at = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            let earliest = Instant::now().checked_sub(LATENESS_MAX);
            *free_at = earliest.map_or(*free_at, |earliest| earliest.max(*free_at)) + duration;
            *free_at
        };
        let now = Instant::now();
        if !duration.is_zero() {
            thread::sleep(sent_at.saturating_duration_since(now));
        }
        sent_at.max(now) + self.delay
    }
}

/// Starts a proxy for `server` that delays the bytes of both directions by `delay`, and sends at
/// most `rate` bits per second in each; it runs until this process ends. Returns its address.
pub(crate) fn start(
    server: SocketAddr,
    delay: Duration,
    rate: Option<u32>,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let directions = [(); 2].map(|()| Direction::new(delay, rate));
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // If the server refuses the connection, the client's is closed by its drop.
            drop(connect(client, server, &directions));
        }
    });
    Ok(address)
}

fn connect(
    client: TcpStream,
    server: SocketAddr,
    [there, back]: &[Arc<Direction>; 2],
) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    pump(client.try_clone()?, server.try_clone()?, Arc::clone(there));
    pump(server, client, Arc::clone(back));
    Ok(())
}

/// Starts the threads of one direction of a connection.
fn pump(mut from: TcpStream, mut to: TcpStream, direction: Arc<Direction>) {
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
            if sender.send((direction.send(len), piece)).is_err() {
                break;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In bits per second.
    const RATE: u32 = 100_000_000;

    #[test]
    fn bytes_arrive_complete_after_the_delay_and_at_the_rate() {
        let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = echo.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = echo.accept().unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        });
        let delay = Duration::from_millis(20);
        let mut client = TcpStream::connect(start(server, delay, Some(RATE)).unwrap()).unwrap();
        let message = vec![7; 1_000_000];
        let started = Instant::now();
        client.write_all(&message).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer == message, "{} bytes", answer.len());
        // The echo begins after the last byte, so each direction takes 80 ms.
        let least = (delay + Duration::from_millis(80) - LATENESS_MAX) * 2;
        assert!(started.elapsed() >= least, "{:?}", started.elapsed());
    }
}
