//! The server accepts every form of command line that nix-serve or nix-serve-ng accepts, with the
//! same meaning.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_process;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use support::{eventually, hash_part, of_sample, sample};
use support_process::{Connection, Ending, Process, at, ends, once, serve_sample};

const INFO: &str = "/nix-cache-info";

/// Starts a server with a free port in place of `PORT`.
#[track_caller]
fn on_free_port(arguments: &[&str]) -> (Process, u16) {
    let port = testkit::free_port();
    let arguments = arguments
        .iter()
        .map(|word| word.replace("PORT", &port.to_string()));
    let server = Process::spawn(of_sample().args(arguments));
    server.wait_for("serving ");
    (server, port)
}

fn priority(addr: SocketAddr) -> String {
    once(addr, INFO).text().lines().nth(2).unwrap().to_owned()
}

// Command lines found in public configurations.

#[test]
fn extra_params_of_real_machines() {
    let dir = tempfile::tempdir().unwrap();
    let (log, pid) = (at(dir.path(), "log"), at(dir.path(), "pid"));
    let mut command = of_sample();
    command.args(["--listen", "127.0.0.1:0", "--error-log", &log, "-pid", &pid]);
    let mut server = Process::spawn(&mut command);
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    eventually("it serves", || read(&log).contains("on http://"));
    assert_eq!(read(&pid), format!("{}\n", server.child.id()));
    assert!(
        read(&log)
            .lines()
            .all(|line| line.contains("Z nix-serve: ")),
        "{}",
        read(&log)
    );
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
    assert_eq!(server.lines(), [""; 0]);

    let (server, addr) = serve_sample(&["--priority=100", "--workers=5"]);
    assert_eq!(
        (priority(addr).as_str(), server.count("warning")),
        ("Priority: 100", 0)
    );
    let (server, addr) = serve_sample(&["--priority", "100"]);
    assert_eq!(
        (priority(addr).as_str(), server.count("warning")),
        ("Priority: 100", 0)
    );
    let (server, addr) = serve_sample(&["--workers", "5"]);
    assert_eq!(
        (priority(addr).as_str(), server.count("warning")),
        ("Priority: 30", 0)
    );
    let junk = [
        "storeDir",
        "=",
        "\"/nix/store\",",
        "stateDir",
        "=",
        "\"/nix/var\"",
    ];
    let (server, addr) = serve_sample(&junk);
    assert_eq!(
        (priority(addr).as_str(), server.count("warning")),
        ("Priority: 30", 1)
    );
    assert_eq!(server.count("storeDir"), 1);
}

/// The arguments that nix-serve's own wrapper and unit pass cause no warning.
#[test]
fn the_words_of_the_wrapper_are_no_news() {
    let (server, addr) = serve_sample(&["--preload-app", "-E", "deployment", "-s", "Starman"]);
    assert_eq!(server.count("warning"), 0, "{:?}", server.lines());
    assert_eq!(once(addr, INFO).status, 200);
}

// Listening addresses.

#[test]
fn several_addresses_of_both_kinds() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("se:cond"));
    let mut command = of_sample();
    command.args(["--listen", "127.0.0.1:0", "-l", "127.0.0.2:0"]);
    command
        .arg("--listen")
        .arg(&first)
        .arg(format!("-l=unix:{}", second.display()));
    let server = Process::spawn(&mut command);
    let addrs = [server.wait_for_address(), server.wait_for_address()];
    assert_eq!(
        addrs.map(|addr| addr.ip().to_string()),
        ["127.0.0.1", "127.0.0.2"]
    );
    for addr in addrs {
        assert_eq!(once(addr, INFO).status, 200);
    }
    for path in [first, second] {
        eventually("it listens", || UnixStream::connect(&path).is_ok());
        assert_eq!(Connection::unix(&path).get(INFO).status, 200);
    }
}

#[test]
fn every_spelling_of_an_address() {
    let all = |port: u16| {
        [
            ([127, 0, 0, 1], port).into(),
            SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, port)),
        ]
    };
    for arguments in [
        &["--listen", ":PORT"][..],
        &["--listen=*:PORT"],
        &["-l", "[::]:PORT"],
        &["-l", "*6:PORT"],
        &["-listen", ":PORT"],
        &["--port", "PORT"],
        &["-p", "PORT"],
        &["-port=PORT"],
        &["--host", "*", "--port=PORT"],
        &["-o", "::", "-p", "PORT"],
        // Addresses that include others, in each order, as in a configuration of nginx.
        &["-l", "0.0.0.0:PORT", "-l", "[::]:PORT"],
        &["-l", "[::]:PORT", "-l", "0.0.0.0:PORT"],
        &["-l", "*:PORT", "-l", "127.0.0.1:PORT"],
        &["-l", "127.0.0.1:PORT", "-l", "*:PORT"],
        &["-l", "127.0.0.1:PORT", "-l", "[::1]:PORT"],
        &["-l", "[::]:PORT", "-l", "[::]:PORT"],
        &["-l", "localhost:PORT", "-l", "*:PORT"],
    ] {
        let (server, port) = on_free_port(arguments);
        for addr in all(port) {
            assert_eq!(once(addr, INFO).status, 200, "{arguments:?} {addr}");
        }
        assert_eq!(server.count("warning"), 0, "{arguments:?}");
    }
    for (arguments, v4, v6) in [
        (&["--listen", "127.0.0.1:PORT"][..], true, false),
        (&["--listen", "[::1]:PORT"], false, true),
        (&["--listen", "::1:PORT"], false, true),
        (&["--listen", "!6:PORT"], false, true),
        (&["--listen", "!4:PORT"], true, false),
        (&["--listen", "*4:PORT"], true, false),
        (&["--host", "127.0.0.1", "--port", "PORT"], true, false),
        (&["-o", "127.0.0.1", "-p=PORT"], true, false),
        (&["--host=::1", "--port", "PORT"], false, true),
        (&["--host", "!6", "--port", "PORT"], false, true),
    ] {
        let (server, port) = on_free_port(arguments);
        let found = all(port).map(|addr| TcpStream::connect(addr).is_ok());
        assert_eq!(found, [v4, v6], "{arguments:?}");
        assert_eq!(server.count("warning"), 0, "{arguments:?}");
    }
}

#[test]
fn a_unix_socket_by_each_of_its_options() {
    let dir = tempfile::tempdir().unwrap();
    let path = at(dir.path(), "socket");
    for arguments in [
        vec!["--socket".to_owned(), path.clone()],
        vec![format!("--socket={path}")],
        vec!["-S".to_owned(), path.clone()],
        vec!["--listen".to_owned(), path.clone()],
        vec![format!("--listen=unix:{path}")],
        vec![
            "-S".to_owned(),
            path.clone(),
            "--backlog".to_owned(),
            "16".to_owned(),
        ],
    ] {
        let mut server = Process::spawn(of_sample().args(&arguments));
        server.wait_for(&format!("on unix:{path}"));
        assert_eq!(
            Connection::unix(path.as_ref()).get(INFO).status,
            200,
            "{arguments:?}"
        );
        assert_eq!(server.count("warning"), 0, "{arguments:?}");
        server.signal("TERM");
        assert_eq!(server.wait(), Some(0));
    }
    // A word without a slash is a socket in the working directory.
    let mut command = of_sample();
    let server = Process::spawn(command.args(["--listen", "5000"]).current_dir(dir.path()));
    server.wait_for("on unix:5000");
    assert_eq!(
        server.count("warning: --listen \"5000\" is a Unix socket"),
        1
    );
    let path = dir.path().join("5000");
    assert_eq!(Connection::unix(&path).get(INFO).status, 200);
}

#[test]
fn listen_overrides_socket_and_that_host_and_port() {
    let dir = tempfile::tempdir().unwrap();
    let path = at(dir.path(), "socket");
    let (server, addr) = serve_sample(&["--host", "192.0.2.1", "--port", "1", "--socket", &path]);
    assert_eq!(once(addr, INFO).status, 200);
    assert!(!Path::new(&path).exists());
    assert_eq!(server.count("has no effect: --listen overrides it"), 3);
    let server = Process::spawn(of_sample().args(["-o", "192.0.2.1", "-p", "1", "-S", &path]));
    server.wait_for("on unix:");
    assert_eq!(server.count("has no effect: --socket overrides it"), 2);
}

// Connection limits and timeouts.

/// All requests are served with a single worker, and with `--workers 0`.
#[test]
fn one_worker_serves_all() {
    for arguments in [
        &["--workers", "1"][..],
        &["-workers=1"],
        &["--workers", "0"],
    ] {
        let (server, addr) = serve_sample(arguments);
        let mut connection = Connection::connect(addr);
        for key in ["tree", "built", "top", "empty", "kinds"] {
            let hash = hash_part(&sample(key)).to_owned();
            assert_eq!(connection.get(&format!("/{hash}.narinfo")).status, 200);
            assert_eq!(connection.get(&format!("/nar/{hash}.nar")).status, 200);
        }
        drop(server);
    }
}

#[test]
fn a_connection_ends_after_its_requests() {
    for (arguments, count) in [
        (&["--max-requests", "3"][..], 3),
        (&["--max_requests=1"], 1),
        (&["-max-requests", "2"], 2),
    ] {
        let (_server, addr) = serve_sample(arguments);
        let mut connection = Connection::connect(addr);
        for number in 1..=count {
            let answer = connection.get("/nix-cache-info");
            assert_eq!(answer.status, 200);
            let is_last = answer.header("connection") == Some("close");
            assert_eq!(is_last, number == count, "{arguments:?}, answer {number}");
        }
    }
    let (_server, addr) = serve_sample(&["--max-requests", "0"]);
    let mut connection = Connection::connect(addr);
    for _ in 0..1100 {
        assert_eq!(connection.get("/nix-cache-info").header("connection"), None);
    }
}

#[test]
fn one_request_for_each_connection() {
    for arguments in [
        &["--disable-keepalive"][..],
        &["--keepalive-timeout", "0"],
        &["--keepalive-timeout=0"],
        &["--no-keepalive"],
    ] {
        let (_server, addr) = serve_sample(arguments);
        let hash = hash_part(&sample("tree")).to_owned();
        for path in [
            INFO.to_owned(),
            format!("/{hash}.narinfo"),
            format!("/nar/{hash}.nar"),
        ] {
            let mut connection = Connection::connect(addr);
            let reply = connection.get(&path);
            assert_eq!(reply.status, 200);
            assert_eq!(
                reply.header("connection"),
                Some("close"),
                "{arguments:?} {path}"
            );
            connection.assert_closed();
        }
    }
}

#[test]
fn an_idle_connection_ends_when_its_time_is_up() {
    for arguments in [&["--keepalive-timeout", "1"][..], &["--timeout=1"]] {
        let (_server, addr) = serve_sample(arguments);
        let mut connection = Connection::connect(addr);
        assert_eq!(connection.get(INFO).header("connection"), None);
        assert_eq!(connection.get(INFO).status, 200);
        let start = Instant::now();
        connection.assert_closed();
        let waited = start.elapsed();
        assert!(
            waited >= Duration::from_millis(900),
            "{arguments:?}: {waited:?}"
        );
        assert!(
            waited < Duration::from_secs(20),
            "{arguments:?}: {waited:?}"
        );
    }
}

#[test]
fn a_head_that_does_not_come_to_its_end() {
    let (_server, addr) = serve_sample(&["--read-timeout", "1"]);
    let mut connection = Connection::connect(addr);
    connection.send(b"GET /nix-cache-info HTTP/1.1\r\nHost: ");
    let start = Instant::now();
    let reply = connection.response(false);
    assert_eq!(
        (reply.status, reply.header("connection")),
        (408, Some("close"))
    );
    assert!(start.elapsed() >= Duration::from_millis(900));
    connection.assert_closed();
    // Without a time limit, a slow request head is accepted.
    let (_server, addr) = serve_sample(&["--read-timeout", "0", "--keepalive-timeout", "1"]);
    let mut connection = Connection::connect(addr);
    connection.send(b"GET /nix-cache-info HTTP/1.1\r\nHost: ");
    // Wait longer than the keep-alive timeout.
    let mut idle = Connection::connect(addr);
    assert_eq!(idle.get(INFO).status, 200);
    idle.assert_closed();
    connection.send(b"a\r\n\r\n");
    assert_eq!(connection.response(false).status, 200);
}

// Unknown and unsupported options.

/// Unknown options cause a warning, and the server starts.
#[test]
fn what_is_not_known_is_a_warning_and_no_obstacle() {
    for (arguments, part) in [
        (
            &["--frobnicate"][..],
            "unknown option --frobnicate is ignored",
        ),
        (
            &["--foo=bar"],
            "unknown option --foo is ignored, with its value \"bar\"",
        ),
        (
            &["--foo", "bar"],
            "unknown option --foo is ignored, with its value \"bar\"",
        ),
        (&["--prioritty", "1"], "did you mean --priority?"),
        (
            &["--enable-frob"],
            "unknown option --enable-frob is ignored",
        ),
        (
            &["--disable-proctitle"],
            "--disable-proctitle has no effect",
        ),
        (&["-Ilib"], "has no effect"),
        (&["-MModule"], "has no effect"),
        (&["--env", "development"], "has no effect"),
        (&["--loader", "Shotgun"], "has no effect"),
        (&["--min-servers", "3"], "has no effect"),
        (
            &["--net_server-log_level", "4"],
            "Samovar does not use Perl's Net::Server",
        ),
        (
            &["--access-lgo", "x"],
            "unknown option --access-lgo is ignored, with its value \"x\"; did you mean \
             --access-log?",
        ),
        (&["--access-logs"], "did you mean --access-log?"),
        (&["word"], "words that are no options are ignored: \"word\""),
        (&["--priority="], "its value is empty"),
    ] {
        let (server, addr) = serve_sample(arguments);
        assert_eq!(priority(addr), "Priority: 30");
        assert_eq!(server.count(part), 1, "{arguments:?}: {:?}", server.lines());
        assert_eq!(
            server.count("nix-serve: warning: "),
            1,
            "{arguments:?}: {:?}",
            server.lines()
        );
    }
}

/// Options that request protection are refused if the server cannot provide it.
#[test]
fn what_would_be_missed_too_late_is_refused() {
    for (arguments, part) in [
        (&["--enable-ssl"][..], "asks for TLS"),
        (&["--enable-ssl", "--ssl-cert", "/c"], "asks for TLS"),
        (&["--listen", "127.0.0.1:0:ssl"], "asks for TLS"),
        (&["--ssl-cert", "/c"], "--ssl-cert asks for TLS"),
        (&["--ssl-key", "/k"], "--ssl-key asks for TLS"),
        (
            &["--tls-certificate", "/c"],
            "--tls-certificate asks for TLS",
        ),
        (
            &["--tls-client-authorities", "/c"],
            "--tls-client-authorities is an option of `samovar serve`",
        ),
        (
            &["--access-users-file", "/u"],
            "--access-users-file is an option of `samovar serve`",
        ),
        (
            &["--config", "/etc/samovar/samovar.toml"],
            "--config is an option of `samovar serve`",
        ),
        (&["--policy-deny", "[]"], "an option of `samovar serve`"),
        (&["--secret-key-files="], "--secret-key-files is empty"),
        (&["--tls"], "an option of `samovar serve`"),
        // Misspelled options of both programs.
        (
            &["--acess-users-file", "/u"],
            "did you mean --access-users-file of `samovar serve`?",
        ),
        (
            &["--tsl-certificate", "/c"],
            "did you mean --tls-certificate of `nix-serve`?",
        ),
        (
            &["--sls-cert", "/c"],
            "did you mean --ssl-cert of `nix-serve`?",
        ),
        (&["--access-ip", "::1"], "unknown option \"--access-ip\""),
        (&["--usre", "nobody"], "did you mean --user of `nix-serve`?"),
        (&["--user="], "--user is empty"),
        (&["-e", "enable 'Auth::Basic'"], "runs Perl code"),
        (&["-eenable"], "runs Perl code"),
        (&["--app", "/other.psgi"], "runs Perl code"),
        (
            &["--net_server-cidr_allow", "10.0.0.0/8"],
            "restricts access",
        ),
        (&["--priority", "high"], "must be a whole number"),
        (&["--workers"], "--workers requires"),
    ] {
        let Ending { code, out, errors } = ends(of_sample().args(arguments));
        assert_eq!(
            (code, out.as_str()),
            (Some(2), ""),
            "{arguments:?}: {errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(
            errors.starts_with("nix-serve: error: ") && errors.contains(part),
            "{errors}"
        );
    }
}

/// Variables that request protection are refused if they have no effect.
#[test]
fn variables_that_would_be_missed_too_late_are_refused() {
    for (variable, part) in [
        ("SAMOVAR_CONFIG", "run `samovar serve`"),
        ("SAMOVAR_TLS_CERTIFICATE", "run `samovar serve`"),
        ("SAMOVAR_ACCESS_USERS_FILE", "run `samovar serve`"),
        ("SAMOVAR_POLICY_DENY", "run `samovar serve`"),
        ("SAMOVAR_SECRET_KEY_FILES", "run `samovar serve`"),
        (
            "SAMOVAR_CACHES__TEAM_A__ACCESS_USERS_FILE",
            "run `samovar serve`",
        ),
        ("NIX_SERVE_ACCESS_USERS_FILE", "run `samovar serve`"),
        ("NIX_SERVE_SSL_CERT", "use --ssl-cert"),
        ("NIX_SERVE_TLS_CERTIFICATE", "use --tls-certificate"),
        ("NIX_SECRET_KEY_FILES", "set NIX_SECRET_KEY_FILE"),
    ] {
        let Ending { code, out, errors } = ends(of_sample().env(variable, "/x"));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{variable}: {errors}");
        let expected = format!("nix-serve: error: ${variable} has no effect on nix-serve; ");
        assert!(
            errors.starts_with(&expected) && errors.contains(part) && errors.lines().count() == 1,
            "{errors}"
        );
    }
    // The variables of clients ask for no protection.
    let mut command = of_sample();
    command.args(["--listen", "127.0.0.1:0"]);
    for variable in ["TOKEN", "CACHE", "CACHE_DIR", "STATE_DIR"] {
        command.env(format!("SAMOVAR_{variable}"), "x");
    }
    drop(Process::serving(&mut command));
}

/// `--help` and `--version` take precedence over all other options, even invalid ones.
#[test]
fn help_and_version_win_over_everything() {
    for arguments in [
        &["--help"][..],
        &["-h"],
        &["-help"],
        &["--port", "abc", "--help"],
    ] {
        let Ending { code, out, errors } = ends(of_sample().args(arguments));
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(out.starts_with("nix-serve - serve the Nix store"), "{out}");
    }
    for arguments in [&["--version"][..], &["-v"], &["--enable-ssl", "-version"]] {
        let Ending { code, out, errors } = ends(of_sample().args(arguments));
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(
            out.starts_with("nix-serve (Samovar) ") && out.lines().count() == 1,
            "{out}"
        );
    }
}
