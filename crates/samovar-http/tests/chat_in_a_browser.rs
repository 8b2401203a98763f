//! Two pages of the chat example exchange messages in a real browser. The test needs Debian's
//! `chromium` and `chromium-driver`, which `xtask setup --test` installs.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

#[path = "../examples/chat/main.rs"]
#[expect(dead_code, reason = "its `main` is not called here")]
mod chat;
mod support;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Reader, connect, serve};

const PATIENCE: Duration = Duration::from_secs(60);

/// A child process and its output. The process ends with the test.
struct Running {
    child: Child,
    _output: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Starts chromedriver, which chooses a port and prints it.
fn start_driver() -> (Running, SocketAddr) {
    let mut command = Command::new("chromedriver");
    command.arg("--port=0").stdout(Stdio::piped());
    let mut child = command.spawn().expect("chromedriver is installed");
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    let port = loop {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "no port");
        let said = line.trim_end().trim_end_matches('.');
        if let Some((_, port)) = said.split_once("successfully on port ") {
            break port.parse::<u16>().unwrap();
        }
    };
    let running = Running {
        child,
        _output: output,
    };
    (running, (Ipv4Addr::LOCALHOST, port).into())
}

/// A browser driven by the W3C `WebDriver` protocol.
struct Browser {
    driver: SocketAddr,
    session: String,
    _running: Running,
}

impl Browser {
    fn start(profile: &Path) -> Self {
        let (running, driver) = start_driver();
        let mut browser = Self {
            driver,
            session: String::new(),
            _running: running,
        };
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--force-prefers-reduced-motion",
            "--window-size=1000,800",
            &format!("--user-data-dir={}", profile.display()),
        ];
        let options = json!({ "args": arguments });
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options,
        } } });
        let session = browser.ask("POST", "", &wanted);
        browser.session = format!("/{}", session["sessionId"].as_str().unwrap());
        browser
    }

    fn ask(&self, method: &str, command: &str, body: &Value) -> Value {
        let mut reader = Reader::new(connect(self.driver));
        reader.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        reader.send(format!(
            "{method} /session{}{command} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n{body}",
            self.session,
            self.driver,
            body.len()
        ));
        let answer = reader.next(false).unwrap();
        let mut said: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(answer.status, 200, "{command}: {said}");
        said["value"].take()
    }

    fn element(&self, css: &str) -> String {
        let found = self.ask(
            "POST",
            "/element",
            &json!({ "using": "css selector", "value": css }),
        );
        let (_, id) = found.as_object().unwrap().iter().next().unwrap();
        format!("/element/{}", id.as_str().unwrap())
    }

    /// Types text by key events; `\u{e007}` is the enter key.
    fn type_into(&self, css: &str, text: &str) {
        let element = self.element(css);
        self.ask(
            "POST",
            &format!("{element}/value"),
            &json!({ "text": text }),
        );
    }

    fn run(&self, script: &str) -> Value {
        self.ask(
            "POST",
            "/execute/sync",
            &json!({ "script": script, "args": [] }),
        )
    }

    /// Waits until an element exists and contains this text.
    #[track_caller]
    fn wait_for(&self, css: &str, text: &str) {
        let script = format!("return document.querySelector('{css}')?.innerText");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.run(&script);
            if shown.as_str().is_some_and(|shown| shown.contains(text)) {
                return;
            }
            assert!(Instant::now() < deadline, "{text:?} is not in {shown:?}");
        }
    }

    fn switch_to(&self, page: &Value) {
        self.ask("POST", "/window", &json!({ "handle": page }));
    }

    fn screenshot(&self, name: &str) {
        let script = "return JSON.stringify([innerWidth, document.documentElement.scrollWidth])";
        let widths: [u32; 2] = serde_json::from_str(self.run(script).as_str().unwrap()).unwrap();
        assert!(
            widths[1] <= widths[0],
            "{name} scrolls sideways: {widths:?}"
        );
        let png = self.ask("GET", "/screenshot", &Value::Null);
        let png = base64::Engine::decode(
            &base64::engine::general_purpose::STANDARD,
            png.as_str().unwrap(),
        );
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(file, png.unwrap()).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.ask("DELETE", "", &Value::Null);
        }
    }
}

#[test]
fn two_pages_exchange_messages() {
    let (_server, addr) = serve(chat::router(), |builder| builder);
    let profile = tempfile::tempdir().unwrap();
    let browser = Browser::start(profile.path());
    let url = json!({ "url": format!("http://{addr}/") });
    browser.ask("POST", "/url", &url);
    let ann = browser.ask("GET", "/window", &Value::Null);
    browser.screenshot("chat-door.png");
    browser.type_into("#name", "Ann\u{e007}");
    browser.wait_for("#status", "alone");

    let ben = browser.ask("POST", "/window/new", &json!({ "type": "window" }))["handle"].take();
    browser.switch_to(&ben);
    browser.ask("POST", "/url", &url);
    browser.type_into("#name", "Ben\u{e007}");
    browser.wait_for("#status", "2 people");
    browser.type_into("#text", "Good evening! Is the tea ready?\u{e007}");
    browser.wait_for(".own", "Is the tea ready?");

    browser.switch_to(&ann);
    browser.wait_for("#log", "Ben has come in");
    browser.wait_for(".say:not(.own)", "Is the tea ready?");
    browser.type_into(
        "#text",
        "It is. <b>Sugar</b>, milk, or a slice of lemon?\u{e007}",
    );
    browser.type_into("#text", "Come in and take a seat by the samovar.\u{e007}");
    browser.wait_for(".own", "<b>Sugar</b>");

    browser.switch_to(&ben);
    browser.wait_for("#log", "take a seat by the samovar");
    browser.type_into("#text", "Lemon, please: ein Stück, спасибо ✓\u{e007}");
    browser.wait_for("#log", "спасибо ✓");
    browser.ask(
        "POST",
        "/window/rect",
        &json!({ "width": 500, "height": 900 }),
    );
    browser.screenshot("chat-narrow.png");

    browser.switch_to(&ann);
    browser.wait_for("#log", "спасибо ✓");
    browser.screenshot("chat.png");
    browser.switch_to(&ben);
    browser.ask("DELETE", "/window", &Value::Null);
    browser.switch_to(&ann);
    browser.wait_for("#log", "Ben has left");
    browser.wait_for("#status", "alone");
}
