//! Channels over WebSocket: clients subscribe to channels and publish to them, and several servers
//! exchange the messages through PostgreSQL. A heartbeat finds clients that have gone.
//!
//! ```text
//! cargo run --example advanced_websockets 127.0.0.1:8080 postgresql:///postgres
//! cargo run --example advanced_websockets 127.0.0.1:8081 postgresql:///postgres
//! xdg-open http://127.0.0.1:8080/
//! xdg-open http://127.0.0.1:8081/
//! ```
//!
//! A client sends `subscribe CHANNEL`, `unsubscribe CHANNEL` or `publish CHANNEL TEXT`, and gets
//! `subscribed CHANNEL`, `unsubscribed CHANNEL`, `message CHANNEL TEXT` or `error REASON`. The
//! third argument of the program is the time between two pings, in milliseconds.

mod bus;
mod hub;

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use samovar_http::http::Status;
use samovar_http::log::Logger;
use samovar_http::ws::{Closed, Handler, Limits, Message, Socket, Upgrade};
use samovar_http::{Request, Response, Router};

use bus::Bus;
use hub::Hub;

const PAGE: &str = include_str!("page.html");
/// Maximum length of a message, in bytes: a notification of PostgreSQL has less than 8000.
const MESSAGE_LEN_MAX: usize = 4000;
/// Maximum number of channels of one client.
const CHANNELS_MAX: usize = 100;
/// Maximum length of a channel's name, in bytes.
const NAME_LEN_MAX: usize = 50;

/// The handler of one client's socket.
struct Client {
    hub: Arc<Hub>,
    bus: Arc<Bus>,
    log: Logger,
    channels: BTreeSet<String>,
}

impl Client {
    /// Executes a command, and returns the reply; `None` if there is none.
    fn execute(&mut self, socket: &Socket, line: &str) -> Result<Option<String>, &'static str> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (channel, text) = rest.split_once(' ').unwrap_or((rest, ""));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if !(1..=NAME_LEN_MAX).contains(&channel.len()) || !channel.bytes().all(is_plain) {
            return Err("a channel has 1 to 50 letters, digits or hyphens");
        }
        match command {
            "subscribe" => {
                if self.channels.len() >= CHANNELS_MAX {
                    return Err("too many channels");
                }
                self.channels.insert(channel.to_owned());
                self.hub.subscribe(channel, socket);
                Ok(Some(format!("subscribed {channel}")))
            }
            "unsubscribe" => {
                self.channels.remove(channel);
                self.hub.unsubscribe(channel, socket);
                Ok(Some(format!("unsubscribed {channel}")))
            }
            "publish" => {
                // Subscribers of this server get the message by way of the database, too, so all
                // subscribers get all messages in the same order.
                self.bus.publish(channel, text).map_err(|error| {
                    self.log.error(format_args!("cannot publish: {error}"));
                    "the message was not sent, try again later"
                })?;
                Ok(None)
            }
            _ => Err("unknown command"),
        }
    }
}

impl Handler for Client {
    fn open(&mut self, socket: &Socket) {
        self.hub.enter(socket);
    }

    /// May wait for the database: it runs on a worker. Events of other sockets are not delayed.
    fn message(&mut self, socket: &Socket, message: Message<'_>) {
        let outcome = match message {
            Message::Text(line) => self.execute(socket, line),
            Message::Binary(_) => Err("commands are text"),
        };
        match outcome {
            Ok(Some(reply)) => socket.send(&reply),
            Ok(None) => {}
            Err(reason) => socket.send(&format!("error {reason}")),
        }
    }

    fn observes_pings(&self) -> bool {
        true
    }

    fn pong(&mut self, socket: &Socket, _: &[u8]) {
        self.hub.heard(socket);
    }

    fn close(&mut self, socket: &Socket, _: &Closed) {
        for channel in &self.channels {
            self.hub.unsubscribe(channel, socket);
        }
        self.hub.leave(socket);
    }
}

/// Opens a socket. This is an ordinary handler: a real server would authenticate the user here.
fn open(hub: &Arc<Hub>, bus: &Arc<Bus>, log: &Logger, request: &mut Request) -> Response {
    let client = Client {
        hub: Arc::clone(hub),
        bus: Arc::clone(bus),
        log: log.clone(),
        channels: BTreeSet::new(),
    };
    let limits = Limits {
        message_len_max: MESSAGE_LEN_MAX,
        // The hub sends pings of its own.
        ping_time: Duration::ZERO,
        ..Limits::default()
    };
    Upgrade::new(client).limits(limits).accept(request)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |default: &str| arguments.next().unwrap_or(default.to_owned());
    let addr = argument("127.0.0.1:8080");
    let database = argument("postgresql:///postgres");
    let interval = Duration::from_millis(argument("15000").parse()?);
    let log = Logger::stderr()?;
    let hub = Arc::new(Hub::default());
    // Listen to the database first: a client that has subscribed must not miss a message.
    bus::listen(&database, Arc::clone(&hub), log.clone())?;
    let bus = Arc::new(Bus::new(database));
    let heart = Arc::clone(&hub);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(interval);
            heart.ping();
        }
    });
    Router::new()
        .get("/", |_| Response::html(Status::OK, PAGE))
        .get("/socket", move |request: &mut Request| {
            open(&hub, &bus, &log, request)
        })
        .serve(addr)?;
    Ok(())
}
