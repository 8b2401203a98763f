#![expect(
    clippy::panic,
    reason = "a handler that panics is what some tests are about"
)]
//! A server whose WebSocket handlers report each call to the test.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use samovar_http::ws::{CloseCode, Closed, Handler, Message, SendError, Socket, Upgrade};
use samovar_http::{Request, Response, Server, Service};

use super::serve;

/// Time limit for events that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A service that calls a function for each request.
pub(crate) struct App<F>(pub(crate) F);

impl<F: Fn(&mut Request) -> Response + Send + Sync + 'static> Service for App<F> {
    type Local = ();

    fn local(&self) {}

    fn handle(&self, request: &mut Request) -> Response {
        self.0(request)
    }
}

/// A WebSocket handler that reports the calls of its methods, and echoes messages except `hush`.
struct Recorder {
    events: Sender<String>,
    /// Time that the handler spends on each message and each ping.
    pause: Duration,
    observes_pings: bool,
}

impl Recorder {
    fn spend_time(&self) {
        std::thread::sleep(self.pause);
    }

    fn say(&self, event: impl Into<String>) {
        self.events.send(event.into()).unwrap();
    }
}

impl Handler for Recorder {
    fn observes_pings(&self) -> bool {
        self.observes_pings
    }

    fn ping(&mut self, _: &Socket, payload: &[u8]) {
        self.spend_time();
        self.say(format!("ping {}", String::from_utf8_lossy(payload)));
    }

    fn pong(&mut self, _: &Socket, payload: &[u8]) {
        self.say(format!("pong {}", String::from_utf8_lossy(payload)));
    }

    fn open(&mut self, _: &Socket) {
        self.say("open");
    }

    fn message(&mut self, socket: &Socket, message: Message<'_>) {
        self.spend_time();
        match message {
            Message::Text("panic") => panic!("as asked"),
            Message::Text("hush") => {}
            Message::Text("bye") => socket.close(CloseCode::NORMAL, "as asked"),
            _ => socket.send(message),
        }
        self.say(String::from_utf8_lossy(message.as_bytes()));
    }

    fn close(&mut self, socket: &Socket, closed: &Closed) {
        assert_eq!(socket.try_send("late"), Err(SendError::Closed));
        self.say(format!("close {} {}", closed.code, closed.is_clean));
    }
}

/// A function that responds to a request.
type Answer = Box<dyn Fn(&mut Request) -> Response + Send + Sync>;

pub(crate) struct Fixture {
    pub(crate) addr: SocketAddr,
    pub(crate) events: Receiver<String>,
    sockets: Receiver<Socket>,
    _server: Server<App<Answer>>,
}

/// Starts a server whose WebSocket handlers report their events. For `/inline`, the handler runs on
/// the I/O thread. For paths that end in `/pings`, it gets pings and pongs.
pub(crate) fn record(
    pause: Duration,
    shape: impl Fn(Upgrade) -> Upgrade + Send + Sync + 'static,
) -> Fixture {
    let (events_in, events) = channel();
    let (sockets_in, sockets) = channel();
    let both = Mutex::new((events_in, sockets_in));
    let app: Answer = Box::new(move |request| {
        let (events, sockets) = both.lock().unwrap().clone();
        let path = request.head().path();
        let mut upgrade = shape(Upgrade::new(Recorder {
            events,
            pause,
            observes_pings: path.ends_with(b"/pings"),
        }));
        if path.starts_with(b"/inline") {
            upgrade = upgrade.inline();
        }
        match upgrade.try_accept(request) {
            Ok((socket, response)) => {
                sockets.send(socket).unwrap();
                response
            }
            Err(error) => Response::text(error.status(), error.to_string()),
        }
    });
    let (server, addr) = serve(App(app), |builder| builder.io_threads(1));
    Fixture {
        addr,
        events,
        sockets,
        _server: server,
    }
}

impl Fixture {
    #[track_caller]
    pub(crate) fn expect(&self, expected: &str) {
        assert_eq!(self.events.recv_timeout(PATIENCE).unwrap(), expected);
    }

    pub(crate) fn socket(&self) -> Socket {
        self.sockets.recv_timeout(PATIENCE).unwrap()
    }
}

pub(crate) fn plain(upgrade: Upgrade) -> Upgrade {
    upgrade
}
