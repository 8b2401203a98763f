//! Drives a real browser by the W3C `WebDriver` protocol. Needs Debian's `chromium` and
//! `chromium-driver`, and axe-core, which `xtask setup --test` installs.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use testkit::eventually;
use testkit::http1::Connection;
use testkit::process::Process;

/// Starts chromedriver on a port that it chooses and prints.
fn start_driver() -> (Process, SocketAddr) {
    let process = Process::spawn_for_stdout(Command::new("chromedriver").arg("--port=0"));
    let line = process.wait_for("successfully on port ");
    let port = line.trim_end_matches('.').rsplit(' ').next().unwrap();
    (process, (Ipv4Addr::LOCALHOST, port.parse().unwrap()).into())
}

/// A browser with a new profile.
pub struct Browser {
    driver: SocketAddr,
    session: String,
    _running: Process,
    _profile: tempfile::TempDir,
}

/// Window size and color scheme of a page view.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    pub name: &'static str,
    pub width: u32,
    pub is_dark: bool,
}

/// Desktop and phone, light and dark.
pub const LOOKS: [Look; 4] = [
    Look {
        name: "desk-light",
        width: 1200,
        is_dark: false,
    },
    Look {
        name: "desk-dark",
        width: 1200,
        is_dark: true,
    },
    Look {
        name: "phone-light",
        width: 390,
        is_dark: false,
    },
    Look {
        name: "phone-dark",
        width: 390,
        is_dark: true,
    },
];

impl Browser {
    pub fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let (running, driver) = start_driver();
        let mut browser = Self {
            driver,
            session: String::new(),
            _running: running,
            _profile: profile,
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
            &format!("--user-data-dir={}", browser._profile.path().display()),
        ];
        let options = json!({ "args": arguments });
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let session = browser.ask("POST", "", &wanted);
        browser.session = format!("/{}", session["sessionId"].as_str().unwrap());
        browser
    }

    pub fn ask(&self, method: &str, command: &str, body: &Value) -> Value {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let request = format!(
            "{method} /session{}{command} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n{body}",
            self.session,
            self.driver,
            body.len()
        );
        // chromedriver ignores `Connection: close`.
        let mut connection = Connection::connect(self.driver);
        connection.send(&request);
        let answer = connection.begin_reading(false);
        let mut body = Vec::new();
        let read = connection.body(|piece| body.extend_from_slice(piece));
        read.unwrap();
        let mut said: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(answer.status, 200, "{command}: {said}");
        said["value"].take()
    }

    /// Sends a command of the Chrome `DevTools` protocol; returns the result.
    pub fn tell(&self, command: &str, parameters: Value) -> Value {
        let body = json!({ "cmd": command, "params": parameters });
        self.ask("POST", "/goog/cdp/execute", &body)
    }

    pub fn open(&self, url: &str) {
        self.ask("POST", "/url", &json!({ "url": url }));
    }

    pub fn url(&self) -> String {
        self.ask("GET", "/url", &Value::Null)
            .as_str()
            .unwrap()
            .to_owned()
    }

    pub fn run(&self, script: &str) -> Value {
        self.ask(
            "POST",
            "/execute/sync",
            &json!({ "script": script, "args": [] }),
        )
    }

    /// Returns console messages and policy violations of the page since the last call.
    pub fn complaints(&self) -> Vec<String> {
        let entries = self.ask("POST", "/se/log", &json!({ "type": "browser" }));
        let entries = entries.as_array().unwrap().iter();
        entries.map(|entry| entry["message"].to_string()).collect()
    }

    fn element(&self, css: &str) -> String {
        let wanted = json!({ "using": "css selector", "value": css });
        let found = self.ask("POST", "/element", &wanted);
        let (_, id) = found.as_object().unwrap().iter().next().unwrap();
        format!("/element/{}", id.as_str().unwrap())
    }

    /// Types text by key events; `\u{e007}` is the enter key.
    pub fn type_into(&self, css: &str, text: &str) {
        let element = self.element(css);
        self.ask(
            "POST",
            &format!("{element}/value"),
            &json!({ "text": text }),
        );
    }

    pub fn click(&self, css: &str) {
        let element = self.element(css);
        self.ask("POST", &format!("{element}/click"), &json!({}));
    }

    /// Waits until a condition is true. It is false while it reads an element that does not exist
    /// yet.
    #[track_caller]
    pub fn wait_until(&self, condition: &str) {
        let script = format!("try {{ return !!({condition}) }} catch {{ return false }}");
        eventually(&script, || self.run(&script) == true);
    }

    /// Applies this window size and color scheme from now on.
    pub fn look(&self, look: Look) {
        let metrics = json!({
            "width": look.width, "height": 900, "deviceScaleFactor": 1,
            "mobile": look.width < 600,
        });
        self.tell("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = if look.is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.tell(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
    }

    /// Enables or disables scripts of pages from now on.
    pub fn allow_scripts(&self, are_allowed: bool) {
        self.tell(
            "Emulation.setScriptExecutionDisabled",
            json!({ "value": !are_allowed }),
        );
    }

    /// Takes a screenshot of the whole page; fails if it scrolls sideways.
    #[track_caller]
    pub fn picture(&self, name: &str) {
        let script = "return JSON.stringify([innerWidth, document.documentElement.scrollWidth])";
        let widths: [u32; 2] = serde_json::from_str(self.run(script).as_str().unwrap()).unwrap();
        assert!(
            widths[1] <= widths[0],
            "{name} scrolls sideways: {widths:?}"
        );
        self.save_picture(name, true);
    }

    /// Takes a screenshot of the part of the page that the window shows.
    pub fn picture_of_window(&self, name: &str) {
        self.save_picture(name, false);
    }

    fn save_picture(&self, name: &str, is_whole: bool) {
        let wanted = json!({ "format": "png", "captureBeyondViewport": is_whole });
        let png = self.tell("Page.captureScreenshot", wanted);
        let text = png["data"].as_str().unwrap();
        let png = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text);
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.png"));
        std::fs::write(file, png.unwrap()).unwrap();
    }

    /// Fails on accessibility problems that axe finds.
    #[track_caller]
    pub fn assert_accessible(&self, name: &str) {
        let axe = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../.samovar/tools/axe/node_modules/axe-core/axe.min.js");
        let axe = std::fs::read_to_string(axe)
            .expect("axe-core is missing: run `cargo run -p xtask -- setup --test`");
        if self.run("return !window.axe") == true {
            self.run(&axe);
        }
        let script = "axe.run(document).then(found => arguments[0](JSON.stringify(\
             found.violations.map(one => `${one.id}: ${one.help}: ${one.nodes.map(node => \
             node.html + ' ' + node.failureSummary).join('; ')}`))), \
             error => arguments[0](JSON.stringify([`${error}`])))";
        let asked = json!({ "script": script, "args": [] });
        let found = self.ask("POST", "/execute/async", &asked);
        assert_eq!(found, "[]", "{name}");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.ask("DELETE", "", &Value::Null);
        }
    }
}
