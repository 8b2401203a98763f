//! The WebSocket of a kettle: the kettle sends measurements, and the server sends commands when
//! they become due. So kettles need not poll for commands; polls are half of their requests.
//!
//! From the kettle: measurements, as for `POST /measurement`. From the server:
//! `{"stored":"<time>"}` once a measurement is durable, `{"error":"…"}` or `{"retry":"<time>"}` if
//! it was not stored, and `{"command":{…}}`.

use std::sync::Arc;
use std::time::Duration;

use samovar_http::ws::{Closed, Handler, Limits, Message, Origins, Socket, Upgrade};
use samovar_http::{Request, Response};

use crate::api::App;
use crate::command::{Command, Commands};
use crate::device::DeviceId;
use crate::ingest::Work;
use crate::json;
use crate::time::Time;

/// Limits of a kettle's socket: its messages are short.
fn limits() -> Limits {
    Limits {
        message_len_max: 4096,
        inbound_len_max: 16 * 1024,
        outbound_len_max: 64 * 1024,
        ping_time: Duration::from_secs(60),
        ..Limits::default()
    }
}

/// Upgrades a kettle's request.
pub fn open(app: &Arc<App>, request: &mut Request) -> Response {
    let device = match app.device_of(request) {
        Ok(device) => device,
        Err(answer) => return *answer,
    };
    let kettle = Kettle {
        app: Arc::clone(app),
        device,
    };
    // Inline, because nothing blocks.
    let upgrade = Upgrade::new(kettle).limits(limits()).inline();
    // Origins need no check: a browser cannot set the device header, so no web page can open this
    // WebSocket.
    upgrade.origins(Origins::Any).accept(request)
}

/// Sends a kettle its newest command, unless that was already sent.
pub fn send_unsent_command(commands: &Commands, device: DeviceId, socket: &Socket) {
    if let Some(command) = commands.take_unsent(device, Time::now()) {
        send(socket, command);
    }
}

fn send(socket: &Socket, command: Command) {
    socket.send(&format!("{{\"command\":{}}}", command.to_json()));
}

struct Kettle {
    app: Arc<App>,
    device: DeviceId,
}

impl Handler for Kettle {
    fn open(&mut self, socket: &Socket) {
        self.app.sockets().insert(self.device, socket.clone());
        // Sends the command again, because it may have been lost on an earlier WebSocket.
        if let Some(command) = self.app.commands.deliver(self.device, Time::now()) {
            send(socket, command);
        }
    }

    fn message(&mut self, socket: &Socket, message: Message<'_>) {
        match json::measurement(message.as_bytes(), self.device, self.app.window()) {
            Ok(measurement) => {
                let socket = socket.clone();
                let acknowledge = move |outcome: Result<(), _>| {
                    let word = if outcome.is_ok() { "stored" } else { "retry" };
                    socket.send(&format!("{{\"{word}\":\"{}\"}}", measurement.time));
                };
                let work = Work::One(measurement);
                self.app.ingest.push(work, Box::new(acknowledge));
            }
            Err(wrong) => socket.send(&json::error(&wrong.to_string())),
        }
    }

    fn close(&mut self, socket: &Socket, _: &Closed) {
        let mut sockets = self.app.sockets();
        // The kettle may have opened another WebSocket in the meantime.
        if sockets.get(&self.device) == Some(socket) {
            sockets.remove(&self.device);
        }
    }
}
