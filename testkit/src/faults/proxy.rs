//! The proxy: four threads per connection, which follow the rule that is in force.
//!
//! In each direction one thread reads and one writes. Between them is a queue, so that delayed
//! bytes are on their way while more arrive. A full queue stops the reading thread, and thereby the
//! sender.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use super::line::{Line, PIECE_LEN_MAX, Rule, Step, Way};
use super::{End, Faults};

/// Number of pieces in the queue of a direction: 4 MiB.
const QUEUE_COUNT_MAX: usize = 256;

/// Duration after which a thread that cannot write looks whether its connection was reset.
const WRITE_TIMEOUT: Duration = Duration::from_millis(100);

/// A TCP proxy in front of one server, which disturbs connections. Dropping it resets them.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    server: SocketAddr,
    rule: Rule,
    /// Number of changes of the rule.
    change: u64,
    /// Number of cuts until there are no faults.
    times_left: Option<u32>,
    lines: BTreeMap<u64, Line>,
    connection_count: u64,
    cut_count: u64,
    forwarded: [u64; 2],
    /// Number of bytes forwarded since the last change, for faults that count them in total.
    since_change: [u64; 2],
    is_over: bool,
}

/// Bytes that were received at a time.
type Piece = (Instant, Vec<u8>);

impl FaultProxy {
    /// Starts a proxy without faults in front of a server.
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            server,
            rule: Rule::Same(Faults::NONE),
            change: 0,
            times_left: None,
            lines: BTreeMap::new(),
            connection_count: 0,
            cut_count: 0,
            forwarded: [0; 2],
            since_change: [0; 2],
            is_over: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let proxy = Self {
            address,
            shared: Arc::clone(&shared),
        };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.lock().is_over {
                    return;
                }
                accept(client, &shared);
            }
        });
        proxy
    }

    /// Returns the address of the proxy.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL of the server behind the proxy, with `http`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Gives all connections these faults: the open ones from their next byte on, and new ones.
    pub fn set(&self, faults: Faults) {
        self.change(Rule::Same(faults));
    }

    /// Gives a share of the connections, in percent, faults that follow from `seed` and the number
    /// of the connection.
    pub fn set_random(&self, seed: u64, percent: u64) {
        self.change(Rule::Random { seed, percent });
    }

    fn change(&self, rule: Rule) {
        let mut state = self.shared.lock();
        state.times_left = rule.times();
        state.rule = rule;
        state.change += 1;
        state.since_change = [0; 2];
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Resets all open connections.
    pub fn disconnect(&self) {
        let mut state = self.shared.lock();
        let numbers: Vec<u64> = state.lines.keys().copied().collect();
        for number in numbers {
            state.end(number, End::Reset);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Connects new connections to another server.
    pub fn redirect(&self, server: SocketAddr) {
        self.shared.lock().server = server;
    }

    /// Returns the number of connections so far.
    pub fn connection_count(&self) -> u64 {
        self.shared.lock().connection_count
    }

    /// Returns the number of connections so far that were cut or refused.
    pub fn cut_count(&self) -> u64 {
        self.shared.lock().cut_count
    }

    /// Returns the numbers of bytes that were forwarded to the server, and to clients.
    pub fn forwarded(&self) -> [u64; 2] {
        self.shared.lock().forwarded
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.disconnect();
        // Ends the thread that accepts connections.
        TcpStream::connect(self.address).ok();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Waits until bytes that have arrived may be forwarded. Returns their number and the pause
    /// after them; `None` if the connection has ended.
    fn permit(&self, number: u64, way: Way, piece: &Piece, at: usize) -> Option<(usize, Duration)> {
        let (arrived, bytes) = piece;
        let mut state = self.lock();
        if way == Way::Requests && at == 0 {
            state.line(number)?.look_for_trigger(bytes);
        }
        loop {
            let mut total = state.since_change;
            let line = state.line(number)?;
            let step = line.step(way, bytes.len() - at, arrived.elapsed(), &mut total);
            state.since_change = total;
            match step {
                Step::Forward(len, pause) => {
                    state.forwarded[way as usize] += len as u64;
                    return Some((len, pause));
                }
                Step::Wait(limit) => {
                    let limit = limit.unwrap_or(Duration::MAX);
                    state = self.changed.wait_timeout(state, limit).unwrap().0;
                }
                Step::Cut(end) => {
                    state.count_cut();
                    state.end(number, end);
                    drop(state);
                    self.changed.notify_all();
                    return None;
                }
            }
        }
    }

    /// Waits for this duration, or until something has changed.
    fn pause(&self, duration: Duration) {
        if !duration.is_zero() {
            let state = self.lock();
            let change = state.change;
            let is_same = |state: &mut State| state.change == change && !state.is_over;
            drop(self.changed.wait_timeout_while(state, duration, is_same));
        }
    }

    fn end(&self, number: u64, end: End) {
        self.lock().end(number, end);
        self.changed.notify_all();
    }
}

impl State {
    /// Returns the connection with the faults that are in force; `None` if it has ended.
    fn line(&mut self, number: u64) -> Option<&mut Line> {
        let line = self.lines.get_mut(&number)?;
        match self.times_left {
            Some(0) => line.follow(&Rule::Same(Faults::NONE), u64::MAX, number),
            _ => line.follow(&self.rule, self.change, number),
        }
        Some(line)
    }

    fn count_cut(&mut self) {
        self.cut_count += 1;
        self.times_left = self.times_left.map(|left| left.saturating_sub(1));
    }

    /// Ends a connection. Its threads notice that nothing more arrives. A reset is sent when the
    /// last of them has dropped its socket.
    fn end(&mut self, number: u64, end: End) {
        let Some(line) = self.lines.remove(&number) else {
            return;
        };
        for stream in [&line.client, &line.server] {
            match end {
                End::Close => stream.shutdown(Shutdown::Both).ok(),
                End::Reset | End::Hold => {
                    reset_at_close(stream);
                    // This sends nothing, and wakes the thread that reads.
                    stream.shutdown(Shutdown::Read).ok()
                }
            };
        }
    }
}

/// Makes the kernel send a reset when the socket is closed.
fn reset_at_close(stream: &TcpStream) {
    set_socket_linger(stream, Some(Duration::ZERO)).ok();
}

/// Counts a connection, and forwards it in threads of its own, or resets it.
fn accept(client: TcpStream, shared: &Arc<Shared>) {
    let mut state = shared.lock();
    let number = state.connection_count;
    state.connection_count += 1;
    let is_refused = state.times_left != Some(0) && state.rule.faults(number).is_refused;
    if is_refused {
        state.count_cut();
        reset_at_close(&client);
        return;
    }
    let server = state.server;
    drop(state);
    let shared = Arc::clone(shared);
    // A server that is stopped may let connections wait.
    thread::spawn(move || match TcpStream::connect(server) {
        Ok(server) => start(client, server, &shared, number),
        Err(_) => reset_at_close(&client),
    });
}

/// Forwards in both directions.
fn start(client: TcpStream, server: TcpStream, shared: &Arc<Shared>, number: u64) {
    for stream in [&client, &server] {
        stream.set_nodelay(true).ok();
        stream.set_write_timeout(Some(WRITE_TIMEOUT)).ok();
    }
    let (client, server) = (Arc::new(client), Arc::new(server));
    let line = Line::new(Arc::clone(&client), Arc::clone(&server));
    shared.lock().lines.insert(number, line);
    let ways = [
        (Way::Requests, Arc::clone(&client), Arc::clone(&server)),
        (Way::Responses, server, client),
    ];
    let is_other_over = Arc::new(AtomicBool::new(false));
    for (way, from, to) in ways {
        let (sender, receiver) = sync_channel(QUEUE_COUNT_MAX);
        let (reading, writing) = (Arc::clone(shared), Arc::clone(shared));
        let is_other_over = Arc::clone(&is_other_over);
        thread::spawn(move || receive(&from, &sender, &reading, number));
        thread::spawn(move || {
            let is_whole = forward(&receiver, &to, &writing, number, way);
            // Ends the thread that reads, if it waits for room in the queue.
            drop(receiver);
            if is_whole {
                to.shutdown(Shutdown::Write).ok();
                if is_other_over.swap(true, Ordering::SeqCst) {
                    writing.lock().lines.remove(&number);
                }
            }
        });
    }
}

/// Puts all that arrives into the queue.
fn receive(mut from: &TcpStream, queue: &SyncSender<Piece>, shared: &Shared, number: u64) {
    let mut buffer = vec![0; PIECE_LEN_MAX];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(len) => {
                let piece = (Instant::now(), buffer[..len].to_vec());
                if queue.send(piece).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return shared.end(number, End::Reset),
        }
    }
}

/// Forwards what is in the queue. Returns whether all of it was forwarded to its end.
fn forward(
    queue: &Receiver<Piece>,
    to: &TcpStream,
    shared: &Shared,
    number: u64,
    way: Way,
) -> bool {
    for piece in queue {
        let mut at = 0;
        while at < piece.1.len() {
            let Some((len, pause)) = shared.permit(number, way, &piece, at) else {
                return false;
            };
            if !write(to, &piece.1[at..at + len], shared, number) {
                shared.end(number, End::Reset);
                return false;
            }
            at += len;
            shared.pause(pause);
        }
    }
    shared.lock().lines.contains_key(&number)
}

/// Writes all bytes. Returns false if the connection has ended.
fn write(mut to: &TcpStream, mut bytes: &[u8], shared: &Shared, number: u64) -> bool {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return false,
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if !shared.lock().lines.contains_key(&number) {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
    true
}
