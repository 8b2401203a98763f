//! A socket for a kettle: measurements go up, commands come down when they are given. It saves the
//! kettle asking, and half of the messages. A command of a later time comes when that has come.
//!
//! Up: a measurement, as `POST /measurement` takes it. Down: `{"stored":"<time>"}` when it is
//! durable, `{"error":"…"}` or `{"retry":"<time>"}` when it is not, and `{"command":{…}}`.

use std::sync::Arc;

use samovar_http::ws::{Closed, Handler, Limits, Message, Origins, Socket, Upgrade};
use samovar_http::{Request, Response};

use crate::api::App;
use crate::command::{Command, Commands};
use crate::device::DeviceId;
use crate::ingest::Work;
use crate::json;
use crate::time::Time;

/// A kettle says little at once.
const LIMITS: Limits = Limits {
    frame_len_max: 4096,
    message_len_max: 4096,
    inbound_len_max: 16 * 1024,
    outbound_len_max: 64 * 1024,
    ping_time: std::time::Duration::from_secs(60),
    pong_time: std::time::Duration::from_secs(20),
    close_time: std::time::Duration::from_secs(10),
};

/// Answers a kettle that asks for a socket.
pub fn open(app: &Arc<App>, request: &mut Request) -> Response {
    let device = match app.device_of(request) {
        Ok(device) => device,
        Err(answer) => return *answer,
    };
    let kettle = Kettle {
        app: Arc::clone(app),
        device,
    };
    // Nothing in it blocks, and messages are too short to be worth compressing.
    let upgrade = Upgrade::new(kettle).limits(LIMITS).inline();
    // A browser cannot set the header that names a kettle, so no page can get this far.
    upgrade
        .compression(None)
        .origins(Origins::Any)
        .accept(request)
}

/// Tells a kettle its newest command, if there is one that it does not know.
pub fn tell_news(commands: &Commands, device: DeviceId, socket: &Socket) {
    if let Some(command) = commands.news(device, Time::now()) {
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
        // Whether it heard what another socket was told is not known.
        if let Some(command) = self.app.commands.tell(self.device, Time::now()) {
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
        // It may have opened another one since.
        if sockets.get(&self.device) == Some(socket) {
            sockets.remove(&self.device);
        }
    }
}
