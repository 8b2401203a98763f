//! Behind Varnish, with the configuration in the book, clients get what the server itself sends:
//! NARs may come from Varnish, everything else from the server.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "clippy allows these only inside functions marked as tests"
)]

mod support;
mod support_uploads;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{ask, realise, samovar, sample, sample_store, secret_file, user};
use support_uploads::{Running, Site};
use testkit::nix::{OwnStore, hash_part, local};
use testkit::process::{Process, output};
use testkit::{eventually, free_port};

const PROGRAM: &str = "/usr/sbin/varnishd";

/// A running Varnish in front of a server.
struct Varnish {
    _process: Process,
    _dir: tempfile::TempDir,
    url: String,
}

impl Varnish {
    /// Starts Varnish with the configuration in the book. Returns `None` if it is not installed.
    fn before(server: &Running) -> Option<Self> {
        let book = include_str!("../../../docs/book/nginx.md");
        let (_, text) = book.split_once("```vcl\n").unwrap();
        let (text, _) = text.split_once("```").unwrap();
        let own = format!("\"{}\"", server.address.port());
        Self::start(&text.replace("\"5000\"", &own))
    }

    /// Starts Varnish without any configuration.
    fn plain(server: &Running) -> Option<Self> {
        let (address, port) = (server.address.ip(), server.address.port());
        let backend = format!("backend samovar {{ .host = \"{address}\"; .port = \"{port}\"; }}");
        Self::start(&format!("vcl 4.1;\n{backend}\n"))
    }

    fn start(vcl: &str) -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            println!("SKIPPED: there is no {PROGRAM} here");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("default.vcl");
        fs::write(&file, vcl).unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new(PROGRAM);
        command.args(["-F", "-j", "none", "-a", &address, "-s", "malloc,64m", "-f"]);
        command.arg(&file).arg("-n").arg(dir.path().join("work"));
        let process = Process::spawn(&mut command);
        let url = format!("http://{address}");
        let varnish = Self {
            _process: process,
            _dir: dir,
            url,
        };
        eventually("Varnish answers", || {
            varnish
                .curl("/nix-cache-info", &[])
                .starts_with("HTTP/1.1 ")
        });
        Some(varnish)
    }

    /// Requests a URL with these arguments of curl. Returns head and body.
    fn curl(&self, target: &str, arguments: &[&str]) -> String {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-i"]).args(arguments);
        let done = curl.arg(format!("{}{target}", self.url)).output().unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Whether the response to a request comes from Varnish: it then names two requests.
    fn is_hit(&self, target: &str) -> bool {
        let head = self.curl(target, &["-o", "/dev/null", "-D", "-"]);
        let mut lines = head.lines();
        let ids = lines.find_map(|line| line.strip_prefix("X-Varnish: "));
        ids.unwrap().split_ascii_whitespace().count() == 2
    }
}

/// A server with the sample store and uploads.
fn site() -> (Site, Running) {
    let site = Site::new();
    site.configure(&sample_store(), "");
    let server = site.start();
    (site, server)
}

fn nar_of(server: &Running, path: &str) -> String {
    let narinfo = server.get(&format!("/{}.narinfo", hash_part(path))).text();
    let url = narinfo.lines().find_map(|line| line.strip_prefix("URL: "));
    format!("/{}", url.unwrap())
}

#[test]
fn nars_are_kept_and_narinfos_are_not() {
    let (_site, server) = site();
    let Some(varnish) = Varnish::before(&server) else {
        return;
    };
    let top = sample("top");
    let done = realise(&varnish.url, &top, "");
    assert!(done.status.success(), "{done:?}");
    let nar = nar_of(&server, &top);
    assert!(varnish.is_hit(&nar));
    let hash = hash_part(&top);
    for target in [
        format!("/{hash}.narinfo"),
        format!("/{hash}.ls"),
        format!("/nar/{hash}.nar"),
        "/nix-cache-info".to_owned(),
        "/".to_owned(),
    ] {
        for _ in 0..2 {
            assert!(!varnish.is_hit(&target), "{target}");
        }
    }
    // The second client gets the same.
    let done = realise(&varnish.url, &top, "");
    assert!(done.status.success(), "{done:?}");
    // A client that continues a download.
    let whole = ask(&server.address.to_string(), &nar, "");
    let (_, whole) = whole.split_once("\r\n\r\n").unwrap();
    let part = varnish.curl(&nar, &["-r", "7-"]);
    let (head, part) = part.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 206 "), "{head}");
    assert_eq!(part, &whole[7..]);
}

/// Two kinds of clients push through Varnish, after the paths were requested in vain.
#[test]
fn an_uploaded_path_is_found_at_once() {
    let (site, server) = site();
    let Some(varnish) = Varnish::before(&server) else {
        return;
    };
    let token = site.token(&[]);
    let store = OwnStore::new();
    let own = local(store.root());
    let paths = ["one", "two"].map(|name| store.add_file(name, name.repeat(100_000).as_bytes()));
    let status = |path: &str| varnish.curl(&format!("/{}.narinfo", hash_part(path)), &[]);
    for path in &paths {
        assert!(status(path).starts_with("HTTP/1.1 404 "), "{path}");
    }
    let mut push = samovar();
    push.args(["push", "--store", &own, &varnish.url, &paths[0]]);
    output(push.env("SAMOVAR_TOKEN", &token));
    let text = format!("machine 127.0.0.1 login nobody password {token}\n");
    let netrc = secret_file(site.dir(), "netrc", &text);
    let mut copy = store.command("nix");
    copy.args(["--extra-experimental-features", "nix-command", "copy"]);
    copy.args(["--to", &format!("{}/upload", varnish.url), &paths[1]]);
    output(copy.arg("--option").arg("netrc-file").arg(netrc));
    for path in &paths {
        assert!(status(path).starts_with("HTTP/1.1 200 "), "{path}");
        let done = realise(&varnish.url, path, "");
        assert!(done.status.success(), "{done:?}");
    }
}

/// Varnish's own rules, with and without the configuration in the book, obey what the server says.
#[test]
fn a_private_answer_is_not_given_to_others() {
    let site = Site::new();
    let users = secret_file(site.dir(), "users", &user("ada", "secret"));
    site.configure(&sample_store(), &format!("access.users-file = {users:?}\n"));
    let server = site.start();
    let login = ["-u", "ada:secret"];
    let path = sample("fixed");
    let narinfo = format!("/{}.narinfo", hash_part(&path));
    for varnish in [Varnish::before(&server), Varnish::plain(&server)] {
        let Some(varnish) = varnish else { return };
        let text = varnish.curl(&narinfo, &login);
        let nar = text.lines().find_map(|line| line.strip_prefix("URL: "));
        let nar = format!("/{}", nar.unwrap());
        for target in [&*narinfo, &nar, "/nix-cache-info", "/absent"] {
            for _ in 0..2 {
                let own = varnish.curl(target, &login);
                assert!(!own.starts_with("HTTP/1.1 401 "), "{target}: {own}");
                let other = varnish.curl(target, &[]);
                assert!(other.starts_with("HTTP/1.1 401 "), "{target}: {other}");
            }
        }
    }
}

/// A NAR whose file was damaged in the store never ends cleanly, and Varnish does not keep it.
#[test]
fn a_damaged_nar_is_not_kept() {
    let site = Site::new();
    let store = OwnStore::new();
    let path = store.add_file("big", "0123456789".repeat(1_000_000).as_bytes());
    site.configure(&local(store.root()), "");
    let server = site.start();
    let Some(varnish) = Varnish::before(&server) else {
        return;
    };
    let nar = nar_of(&server, &path);
    let real = store.real(&path);
    let damaged = fs::read(&real)
        .unwrap()
        .iter()
        .map(|byte| byte ^ 1)
        .collect::<Vec<_>>();
    let mut writable = fs::metadata(&real).unwrap().permissions();
    #[expect(clippy::permissions_set_readonly_false, reason = "a file of the test")]
    writable.set_readonly(false);
    fs::set_permissions(&real, writable).unwrap();
    fs::write(&real, damaged).unwrap();
    for _ in 0..2 {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--fail", "-o", "/dev/null"]);
        let done = curl.arg(format!("{}{nar}", varnish.url)).output().unwrap();
        assert!(!done.status.success(), "{done:?}");
    }
    assert!(!varnish.is_hit(&nar));
}
