//! An HTTP proxy that records, refuses and holds requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// The proxy's reaction to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Forward,
    /// Responds with this status, without forwarding the request.
    Refuse(u16),
    /// Closes the connection without a response.
    Close,
    /// Forwards the request, and closes the connection instead of forwarding the response.
    Lose,
    /// Holds the request until [`Proxy::resume`], then closes its connection.
    Hold,
}

/// A forwarded or refused request with the status of its response.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    /// Method and target of the request.
    pub(crate) line: String,
    /// The head of the request, as the server received it.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    pub(crate) status: u16,
}

type Rule = Box<dyn Fn(&str) -> Action + Send + Sync>;

struct State {
    server: SocketAddr,
    /// Decides about each request. `None` after [`Proxy::resume`]: all requests are forwarded.
    rule: Option<Arc<Rule>>,
    exchanges: Vec<Exchange>,
    held_count: usize,
}

/// A proxy in front of one server. Each connection carries one request.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Proxy {
    /// Starts a proxy. `rule` gets the method and the target of each request.
    pub(crate) fn start(
        server: SocketAddr,
        rule: impl Fn(&str) -> Action + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            server,
            rule: Some(Arc::new(Box::new(rule))),
            exchanges: Vec::new(),
            held_count: 0,
        };
        let shared = Arc::new((Mutex::new(state), Condvar::new()));
        let proxy = Self {
            address,
            shared: Arc::clone(&shared),
        };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, shared) = (client.unwrap(), Arc::clone(&shared));
                std::thread::spawn(move || serve(client, &shared));
            }
        });
        proxy
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the number of requests that are being held.
    pub(crate) fn held_count(&self) -> usize {
        self.shared.0.lock().unwrap().held_count
    }

    /// Closes the held connections, and forwards all later requests to `server`.
    pub(crate) fn resume(&self, server: SocketAddr) {
        let (state, changed) = &*self.shared;
        let mut state = state.lock().unwrap();
        state.server = server;
        state.rule = None;
        changed.notify_all();
    }

    /// Returns the exchanges whose method and target contain `part`.
    pub(crate) fn exchanges(&self, part: &str) -> Vec<Exchange> {
        let state = self.shared.0.lock().unwrap();
        let found = state.exchanges.iter().filter(|one| one.line.contains(part));
        found.cloned().collect()
    }
}

/// Starts a proxy that makes a server appear not to support the push protocol.
pub(crate) fn without_protocol(server: SocketAddr) -> Proxy {
    Proxy::start(server, |line| match line.contains("/upload/push/") {
        true => Action::Refuse(404),
        false => Action::Forward,
    })
}

/// Serves the one request of a connection. Returns `None` if a connection is closed early.
fn serve(client: TcpStream, shared: &(Mutex<State>, Condvar)) -> Option<()> {
    let (state, changed) = shared;
    // Use the rule of the time at which the client connected: a request that a client sent before
    // it was killed must not be forwarded after `resume`.
    let rule = state.lock().unwrap().rule.clone();
    let mut reader = BufReader::new(&client);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let line = head
        .lines()
        .next()?
        .trim_end_matches(" HTTP/1.1")
        .to_owned();
    let is = |line: &str, name: &str| line.to_ascii_lowercase().starts_with(name);
    let len = head.lines().find(|line| is(line, "content-length:"));
    let len = len.map_or(0, |line| line[15..].trim().parse().unwrap());
    if head.lines().any(|line| is(line, "expect:")) {
        (&client).write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    let action = rule.map_or(Action::Forward, |rule| rule(&line));
    match action {
        Action::Forward | Action::Lose => {}
        Action::Refuse(status) => {
            let text =
                format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return (&client).write_all(text.as_bytes()).ok();
        }
        Action::Close => return None,
        Action::Hold => {
            let mut state = state.lock().unwrap();
            state.held_count += 1;
            drop(
                changed
                    .wait_while(state, |state| state.rule.is_some())
                    .unwrap(),
            );
            return None;
        }
    }
    let is_kept = |line: &&str| !is(line, "expect:") && !is(line, "connection:");
    let lines: Vec<&str> = head.trim_end().split("\r\n").filter(is_kept).collect();
    let head = format!("{}\r\nConnection: close\r\n\r\n", lines.join("\r\n"));
    let mut server = TcpStream::connect(state.lock().unwrap().server).ok()?;
    server.write_all(&[head.as_bytes(), &body].concat()).ok()?;
    let mut response = Vec::new();
    server.read_to_end(&mut response).ok()?;
    let status = String::from_utf8_lossy(response.get(9..12)?).parse().ok()?;
    state.lock().unwrap().exchanges.push(Exchange {
        line,
        head,
        body,
        status,
    });
    if action == Action::Lose {
        return None;
    }
    (&client).write_all(&response).ok()
}
