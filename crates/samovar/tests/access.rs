//! Real Nix clients at a cache that is not for everybody.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn sample_root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.samovar/sample");
    root.canonicalize().expect(
        "there is no sample store: run `cargo run -p xtask -- sample-store .samovar/sample`",
    )
}

/// A small path of the sample store, without references.
fn sample() -> String {
    let manifest = fs::read_to_string(sample_root().join("sample.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    manifest["fixed"].as_str().unwrap().to_owned()
}

fn bare(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("NIX_") || name.starts_with("SAMOVAR_") {
            command.env_remove(&*name);
        }
    }
    command.stdin(Stdio::null());
    command
}

fn samovar() -> Command {
    bare(env!("CARGO_BIN_EXE_samovar"))
}

/// The line for a users file.
fn user(name: &str, password: &str) -> String {
    let mut command = samovar();
    command.args(["password", name]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{password}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn secret_file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

struct Server {
    child: Child,
    addr: String,
}

impl Server {
    fn start(config: &Path) -> Self {
        let mut command = samovar();
        command.args(["serve", "--config"]).arg(config);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("on http://") {
            line.clear();
            assert_ne!(errors.read_line(&mut line).unwrap(), 0, "it ended");
        }
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        let addr = line.split("http://").nth(1).unwrap();
        let addr = addr.trim().split('/').next().unwrap().to_owned();
        Self { child, addr }
    }

    /// The status of an answer.
    fn ask(&self, path: &str, fields: &str) -> u16 {
        let mut stream = TcpStream::connect(&self.addr).unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer)[9..12].parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A fresh client with this netrc file; realises a path from these substituters.
fn realise(substituters: &str, netrc: &str) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    let netrc = secret_file(home, "netrc", netrc);
    let mut command = bare("nix-store");
    command
        .env("HOME", home)
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_DATA_HOME", home.join("data"))
        .env("NIX_CONF_DIR", home.join("no-conf"))
        .env(
            "NIX_CONFIG",
            "build-users-group =\nsandbox = false\nrequire-sigs = false\n",
        )
        .arg("--store")
        .arg(home.join("store"))
        .args(["--realise", &sample(), "--option", "max-jobs", "0"])
        .args(["--option", "substituters", substituters])
        .arg("--option")
        .arg("netrc-file")
        .arg(netrc);
    command.output().unwrap()
}

const OTHERS: &str = "
[caches.nobody]
[caches.nobody.access]
networks = [\"192.0.2.0/24\"]
[caches.hidden]
[caches.hidden.access]
networks = [\"192.0.2.0/24\"]
refuse-with = \"404\"
[caches.open]
";

#[test]
fn nix_with_and_without_credentials() {
    let dir = tempfile::tempdir().unwrap();
    let users = user("ada", "secret") + &user("", "nameless");
    let users = secret_file(dir.path(), "users", &users);
    let token = samovar().args(["token", "ci"]).output().unwrap();
    let tokens = String::from_utf8(token.stdout).unwrap();
    let tokens = secret_file(dir.path(), "tokens", &tokens);
    let token = String::from_utf8(token.stderr).unwrap();
    let store = format!("local?root={}", sample_root().display());
    let config = dir.path().join("samovar.toml");
    let text = format!(
        "store = {store:?}\nlisten = \"127.0.0.1:0\"\nadmin.listen = []\n\
         [caches.ours]\n[caches.ours.access]\nusers-file = {users:?}\ntokens-file = {tokens:?}\n\
         {OTHERS}"
    );
    fs::write(&config, text).unwrap();
    let server = Server::start(&config);
    let ours = format!("http://{}/ours", server.addr);
    let token = token.trim();
    for (netrc, is_in) in [
        ("machine 127.0.0.1 login ada password secret\n", true),
        (
            &*format!("machine 127.0.0.1 login whoever password {token}\n"),
            true,
        ),
        ("machine 127.0.0.1 password nameless\n", true),
        ("machine 127.0.0.1 login ada password wrong\n", false),
        ("", false),
    ] {
        let output = realise(&ours, netrc);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), is_in, "{netrc}{text}");
    }
    // The next cache of a list, behind each kind of refusal.
    for first in ["ours", "nobody", "hidden"] {
        let list = format!("http://{0}/{first} http://{0}/open", server.addr);
        let output = realise(&list, "");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{first}: {text}");
    }
}

#[test]
fn guessing_by_many_hurts_nobody_who_is_known() {
    const GUESSERS: usize = 50;
    let dir = tempfile::tempdir().unwrap();
    let users = secret_file(dir.path(), "users", &user("ada", "secret"));
    let store = format!("local?root={}", sample_root().display());
    let config = dir.path().join("samovar.toml");
    let text = format!(
        "store = {store:?}\nlisten = \"127.0.0.1:0\"\nadmin.listen = []\n\
         [access]\nusers-file = {users:?}\ntrusted-proxies = [\"127.0.0.1\"]\n"
    );
    fs::write(&config, text).unwrap();
    let server = Server::start(&config);
    // ada:secret
    let known = "Authorization: Basic YWRhOnNlY3JldA==\r\nX-Forwarded-For: 192.0.2.1\r\n";
    let path = format!("/{}.narinfo", &sample()["/nix/store/".len()..][..32]);
    assert_eq!(server.ask(&path, known), 200);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let mut times = std::thread::scope(|scope| {
        for guesser in 0..GUESSERS {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || {
                for number in 0_u32.. {
                    if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    // Each from many addresses: the limit by address does not help.
                    let from = format!("X-Forwarded-For: 198.51.{guesser}.{}", number % 256);
                    let guess = format!("Authorization: Bearer x\r\n{from}\r\n");
                    assert_eq!(server.ask("/nix-cache-info", &guess), 401);
                    let guess = format!("Authorization: Basic {}\r\n{from}\r\n", base64(number));
                    let status = server.ask("/nix-cache-info", &guess);
                    assert!([401, 429, 503].contains(&status), "{status}");
                }
            });
        }
        let times: Vec<Duration> = (0..300)
            .map(|_| {
                let start = Instant::now();
                assert_eq!(server.ask(&path, known), 200);
                start.elapsed()
            })
            .collect();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        times
    });
    times.sort_unstable();
    let (median, late) = (times[150], times[297]);
    eprintln!("median {median:?}, 99th of a hundred {late:?}");
    assert!(late < Duration::from_secs(1), "{late:?}");
}

/// `ada:` and ten digits.
fn base64(number: u32) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text = format!("ada:{number:011}");
    let group = |bytes: &[u8]| {
        let bits = bytes
            .iter()
            .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        [18, 12, 6, 0].map(|shift| char::from(DIGITS[(bits >> shift & 63) as usize]))
    };
    text.as_bytes().chunks(3).flat_map(group).collect()
}
