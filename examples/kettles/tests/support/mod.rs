//! The built server, and a client that is not ours to trust: bytes over a socket.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    dead_code,
    reason = "clippy allows these only inside functions marked as tests; no test uses all"
)]

pub(crate) mod fleet;
pub(crate) mod postgres;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// `kettles serve` on a port of its own.
pub(crate) struct Kettles {
    child: Child,
    pub(crate) addr: SocketAddr,
    output: BufReader<ChildStdout>,
}

impl Kettles {
    /// Serves the store in `folder`.
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
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "no address");
        let (_, url) = line.trim_end().split_once("http://").unwrap();
        let addr = url.split('/').next().unwrap().parse().unwrap();
        Self {
            child,
            addr,
            output,
        }
    }

    /// What it says next on its standard output.
    pub(crate) fn next_line(&mut self) -> String {
        let mut line = String::new();
        assert!(
            self.output.read_line(&mut line).unwrap() > 0,
            "it said no more"
        );
        line.trim_end().to_owned()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it in order.
    pub(crate) fn terminate(self) -> ExitStatus {
        self.end_by("TERM")
    }

    pub(crate) fn end_by(mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        self.child.wait().unwrap()
    }

    /// Ends it without a word.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(status.unwrap().success());
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    /// A new kettle.
    pub(crate) fn login(&self) -> String {
        let answer = self.client().post("/login", None, r#"{"username":"tea"}"#);
        assert_eq!(answer.status, 200);
        answer.json()["username"].as_str().unwrap().to_owned()
    }

    pub(crate) fn statistics(&self) -> Value {
        self.client().get("/statistics", None).json()
    }

    /// The value of a sample, by its name and labels.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let answer = self.client().get("/metrics", None);
        let text = String::from_utf8(answer.body).unwrap();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map(|value| value.parse().unwrap())
    }
}

impl Drop for Kettles {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// One connection.
pub(crate) struct Client(BufReader<TcpStream>);

/// What came back.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = fields.find(|(field, _)| field.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }
}

impl Client {
    pub(crate) fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
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
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
    }

    /// The status, if there is an answer at all.
    pub(crate) fn try_get(&mut self, path: &str, device: Option<&str>) -> Option<u16> {
        let device = device.unwrap_or_default();
        let fields = format!("Host: kettles\r\nservant-auth-cookie: {device}\r\n");
        let request = format!("GET {path} HTTP/1.1\r\n{fields}\r\n");
        self.0.get_mut().write_all(request.as_bytes()).ok()?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.0.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let mut fields = head.lines().filter_map(|line| line.split_once(": "));
        let (_, len) = fields.find(|(name, _)| *name == "Content-Length")?;
        let mut body = vec![0; len.parse().ok()?];
        self.0.read_exact(&mut body).ok()?;
        head.split(' ').nth(1)?.parse().ok()
    }

    /// A head whose body never comes.
    pub(crate) fn send_head(&mut self, method: &str, path: &str, fields: &[&str]) {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: kettles\r\n{fields}\r\n");
        self.0.get_mut().write_all(head.as_bytes()).unwrap();
    }

    pub(crate) fn receive(&mut self) -> Answer {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.0.read_line(&mut head).unwrap() > 0, "{head}");
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let answer = Answer {
            status,
            head,
            body: Vec::new(),
        };
        let len = answer
            .header("Content-Length")
            .map_or(0, |len| len.parse().unwrap());
        let mut body = vec![0; len];
        self.0.read_exact(&mut body).unwrap();
        Answer { body, ..answer }
    }
}

/// A measurement as kettles send it.
pub(crate) fn measurement(time: &str, charge: i32, water_temp: f64, water_level: i32) -> String {
    format!(
        r#"{{"time":"{time}","charge_now":{charge},"charge_full":100,"charge_rate":-1.5,"ambient_temp":20.5,"water_temp":{water_temp:?},"water_level":{water_level}}}"#
    )
}

/// Waits until `is_so`.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
