//! A process that holds WebSockets. It opens them, answers the server's pings, and sends a message
//! on each when its standard input asks for it.

use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use testkit::websocket::{PING, PONG, TEXT, frame, parse_frame};

use crate::load::echo;
use crate::load::poll::Fleet;

/// Number of sockets to open before the others are served.
const BATCH_COUNT: usize = 64;

/// Time between two looks at standard input.
const STEP: Duration = Duration::from_millis(20);

/// Time after which a message counts as lost.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// The open sockets.
struct Crowd {
    fleet: Fleet,
    /// When a message was sent on each socket that has not been answered yet.
    asked: Vec<Option<Instant>>,
    latencies_us: Vec<f64>,
    /// Number of pings of the server that were answered.
    ping_count: u64,
    /// Number of sockets that the server closed.
    closed_count: u64,
    buffer: Vec<u8>,
}

/// Opens `count` sockets, and prints a line of JSON. Prints one more for each line of standard
/// input: `text` or `ping`, which sends a message on each socket, or `state`.
pub(super) fn run(address: SocketAddr, count: usize) -> Result<()> {
    let mut crowd = Crowd {
        fleet: Fleet::new(Vec::new())?,
        asked: Vec::with_capacity(count),
        latencies_us: Vec::new(),
        ping_count: 0,
        closed_count: 0,
        buffer: vec![0; 65536],
    };
    while crowd.asked.len() < count {
        let batch_count = BATCH_COUNT.min(count - crowd.asked.len());
        let number = crowd.asked.len();
        let opened = echo::open(address, "/ws", batch_count);
        for stream in opened.with_context(|| format!("after {number} sockets"))? {
            crowd.fleet.add(stream)?;
            crowd.asked.push(None);
        }
        crowd.serve(Duration::ZERO)?;
    }
    println!("{}", crowd.state());
    let orders = orders();
    loop {
        crowd.serve(STEP)?;
        match orders.try_recv() {
            Ok(order) => match &*order {
                "text" => println!("{}", crowd.ask(TEXT)?),
                "ping" => println!("{}", crowd.ask(PING)?),
                _ => println!("{}", crowd.state()),
            },
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
    }
}

/// Reads the lines of standard input on a thread of its own.
fn orders() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if line.is_ok_and(|line| sender.send(line).is_err()) {
                return;
            }
        }
    });
    receiver
}

impl Crowd {
    fn state(&self) -> serde_json::Value {
        json!({
            "closed": self.closed_count,
            "pings": self.ping_count,
        })
    }

    /// Sends a frame on each socket and waits for all answers. Returns the number of answers and
    /// their latencies.
    fn ask(&mut self, first: u8) -> Result<serde_json::Value> {
        self.latencies_us.clear();
        let message = frame(first, "0123456789abcdef0123456789abcdef");
        let started = Instant::now();
        for number in 0..self.asked.len() {
            if let (Some(mut stream), Some(asked)) =
                (self.fleet.streams.get(number), self.asked.get_mut(number))
            {
                *asked = Some(Instant::now());
                stream.write_all(&message)?;
            }
            if number % BATCH_COUNT == 0 {
                self.serve(Duration::ZERO)?;
            }
        }
        while self.latencies_us.len() < self.asked.len() {
            if started.elapsed() > ANSWER_TIME_MAX {
                let count = self.latencies_us.len();
                bail!("{count} of {} messages were answered", self.asked.len());
            }
            self.serve(STEP)?;
        }
        self.latencies_us.sort_by(f64::total_cmp);
        let percentile = |part: usize| {
            let at = self.latencies_us.len() * part / 100;
            self.latencies_us.get(at).copied().unwrap_or_default()
        };
        Ok(json!({
            "answered": self.latencies_us.len(),
            "p50_us": percentile(50),
            "p99_us": percentile(99),
        }))
    }

    /// Reads what the server has sent, after at most `timeout`.
    fn serve(&mut self, timeout: Duration) -> Result<()> {
        for key in self.fleet.wait(timeout)? {
            let Some(mut stream) = self.fleet.streams.get(key) else {
                continue;
            };
            let len = match stream.read(&mut self.buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                read => read?,
            };
            if len == 0 {
                self.closed_count += 1;
                self.fleet.forget(key)?;
                continue;
            }
            let mut bytes = self.buffer.get(..len).unwrap_or_default();
            while !bytes.is_empty() {
                // The frames are so short that each arrives whole.
                let frame = parse_frame(bytes)?.context("half a frame")?;
                if frame.first == PING {
                    answer(stream, frame.payload)?;
                    self.ping_count += 1;
                } else if let Some(asked) = self.asked.get_mut(key).and_then(Option::take) {
                    let latency = asked.elapsed().as_secs_f64() * 1e6;
                    self.latencies_us.push(latency);
                }
                bytes = bytes.get(frame.len..).unwrap_or_default();
            }
        }
        Ok(())
    }
}

fn answer(mut stream: &TcpStream, payload: &[u8]) -> io::Result<()> {
    stream.write_all(&frame(PONG, payload))
}
