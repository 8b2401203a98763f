//! Starts the server's program, and sends requests to it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    dead_code,
    unused_imports,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

pub(crate) mod fleet;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitStatus};

use serde_json::Value;
use testkit::http1::Connection;
pub(crate) use testkit::http1::Response as Answer;
use testkit::process::Process;
pub(crate) use testkit::{PATIENCE, eventually as wait_until};

/// A `kettles serve` process on its own port.
pub(crate) struct Kettles {
    process: Process,
    pub(crate) addr: SocketAddr,
}

impl Kettles {
    /// Starts a server on the store in `folder`.
    pub(crate) fn start(folder: &Path, options: &[&str]) -> Self {
        Self::spawn(Self::command(folder).args(options))
    }

    pub(crate) fn command(folder: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kettles"));
        command.args(["serve", "--port", "0", "--retain", "0", "--database"]);
        command.arg(folder.join("kettles.db"));
        command
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let process = Process::spawn_for_stdout(command);
        let line = process.wait_for("http://");
        let (_, url) = line.split_once("http://").unwrap();
        let addr = url.split('/').next().unwrap().parse().unwrap();
        Self { process, addr }
    }

    /// Waits for the next line on its standard output.
    pub(crate) fn next_line(&mut self) -> String {
        self.process.wait_for("")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Stops the server with TERM.
    pub(crate) fn terminate(self) -> ExitStatus {
        self.end_by("TERM")
    }

    pub(crate) fn end_by(mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        self.process.child.wait().unwrap()
    }

    /// Kills the server.
    pub(crate) fn kill(self) {
        drop(self.process);
    }

    pub(crate) fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    /// Logs in a new kettle; returns its identity.
    pub(crate) fn login(&self) -> String {
        let answer = self.client().post("/login", None, r#"{"username":"tea"}"#);
        assert_eq!(answer.status, 200);
        answer.json()["username"].as_str().unwrap().to_owned()
    }

    pub(crate) fn statistics(&self) -> Value {
        self.client().get("/statistics", None).json()
    }

    /// Returns the value of a metric's sample, by name and labels.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let answer = self.client().get("/metrics", None);
        let text = String::from_utf8(answer.body).unwrap();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map(|value| value.parse().unwrap())
    }
}

/// A client connection that can send requests of a device.
pub(crate) struct Client(Connection);

impl Client {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        Self(Connection::connect(addr))
    }

    pub(crate) fn get(&mut self, path: &str, device: Option<&str>) -> Answer {
        self.send("GET", path, device, &[], "");
        self.receive()
    }

    pub(crate) fn post(&mut self, path: &str, device: Option<&str>, body: &str) -> Answer {
        self.send("POST", path, device, &[], body);
        self.receive()
    }

    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        device: Option<&str>,
        fields: &[&str],
        body: &str,
    ) {
        let device = device.map(|device| format!("servant-auth-cookie: {device}\r\n"));
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let (device, len) = (device.unwrap_or_default(), body.len());
        let fields = format!("{device}{fields}Content-Length: {len}\r\n");
        let request = format!("{method} {path} HTTP/1.1\r\nHost: kettles\r\n{fields}\r\n{body}");
        self.0.send(request);
    }

    /// Returns the status, or `None` if no response arrives.
    pub(crate) fn try_get(&mut self, path: &str, device: Option<&str>) -> Option<u16> {
        let device = format!("servant-auth-cookie: {}", device.unwrap_or_default());
        let response = self.0.try_request("GET", path, &[&device]);
        Some(response.ok()?.status)
    }

    /// Sends the head of a request whose body never follows.
    pub(crate) fn send_head(&mut self, method: &str, path: &str, fields: &[&str]) {
        self.0.send_request(method, path, fields);
    }

    pub(crate) fn receive(&mut self) -> Answer {
        self.0.response(false)
    }
}

/// Returns the JSON of a measurement as kettles send it.
pub(crate) fn measurement(time: &str, charge: i32, water_temp: f64, water_level: i32) -> String {
    format!(
        r#"{{"time":"{time}","charge_now":{charge},"charge_full":100,"charge_rate":-1.5,"ambient_temp":20.5,"water_temp":{water_temp:?},"water_level":{water_level}}}"#
    )
}
