//! Command lines and what becomes of them.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use samovar_server::config::{
    ClientAddress, HoldTime, KEYS, LogTarget, TimeLimit, Tls, WORKERS_MAX,
};
use samovar_server::listener::{Host, ListenSpec};

fn run(arguments: &[&str]) -> Result<Invocation, CliError> {
    parse(arguments.iter().map(OsString::from))
}

#[track_caller]
fn serve(arguments: &[&str]) -> (Options, Vec<String>) {
    match run(arguments) {
        Ok(Invocation::Serve { options, warnings }) => {
            (options, warnings.iter().map(ToString::to_string).collect())
        }
        other => panic!("{other:?}"),
    }
}

/// Without a warning.
#[track_caller]
fn check(arguments: &[&str], expected: &Options) {
    let (options, warnings) = serve(arguments);
    assert_eq!(&options, expected);
    assert_eq!(warnings, [""; 0]);
}

/// With these warnings, and otherwise nothing changed.
#[track_caller]
fn check_warned(arguments: &[&str], expected: &[&str]) {
    let (options, warnings) = serve(arguments);
    assert_eq!(options, Options::default());
    assert_eq!(warnings, expected);
}

#[track_caller]
fn check_listeners(arguments: &[&str], expected: &[&str]) {
    let (options, _) = serve(arguments);
    let listeners: Vec<_> = options.listeners.iter().map(ToString::to_string).collect();
    assert_eq!(listeners, expected);
}

#[track_caller]
fn check_error(arguments: &[&str], expected: &str) {
    let error = run(arguments).expect_err("refused");
    assert!(matches!(error, CliError::Usage(_)));
    assert_eq!(error.to_string(), expected);
}

#[track_caller]
fn check_refused(arguments: &[&str], expected: &str) {
    let error = run(arguments).expect_err("refused");
    assert!(matches!(error, CliError::Refused(_)), "{error}");
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(error.to_string().lines().count(), 1);
}

fn tcp(host: Host, port: u16) -> Vec<ListenSpec> {
    vec![ListenSpec::Tcp { host, port }]
}

fn local() -> Host {
    Host::Address("127.0.0.1".parse().expect("an address"))
}

#[test]
fn nothing_gives_the_defaults() {
    check(&[], &Options::default());
    check_listeners(&[], &["*:5000"]);
}

#[test]
fn real_extra_params_single_dash_pid() {
    let (options, warnings) = serve(&[
        "--listen",
        "0.0.0.0:5000",
        "--error-log",
        "/var/log/nix-serve.log",
        "-pid",
        "/run/nix-serve.pid",
    ]);
    assert_eq!(
        options.error_log.as_deref(),
        Some("/var/log/nix-serve.log".as_ref())
    );
    assert_eq!(
        options.pid_file.as_deref(),
        Some("/run/nix-serve.pid".as_ref())
    );
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn real_extra_params_priority_and_workers_together() {
    let expected = Options {
        listeners: tcp(local(), 5000),
        listen_given: true,
        priority: Some(40),
        workers: NonZeroU32::new(12),
        ..Options::default()
    };
    check(
        &[
            "--listen",
            "127.0.0.1:5000",
            "--priority=40",
            "--workers=12",
        ],
        &expected,
    );
}

#[test]
fn real_extra_params_priority_or_workers_alone() {
    check(
        &["--priority", "100"],
        &Options {
            priority: Some(100),
            ..Options::default()
        },
    );
    check(
        &["--workers", "5"],
        &Options {
            workers: NonZeroU32::new(5),
            ..Options::default()
        },
    );
}

#[test]
fn real_extra_params_plain_junk() {
    check_warned(
        &["storeDir", "=", "/nix/store,", "stateDir", "=", "/nix/var"],
        &["ignored, as these are no options: \
             \"storeDir\" \"=\" \"/nix/store,\" \"stateDir\" \"=\" \"/nix/var\""],
    );
}

#[test]
fn the_wrapper_and_the_module_of_nixos() {
    let expected = Options {
        listeners: tcp(local(), 5000),
        listen_given: true,
        ..Options::default()
    };
    check(
        &[
            "--preload-app",
            "--listen",
            "127.0.0.1:5000",
            "--preload-app",
        ],
        &expected,
    );
}

#[test]
fn listeners_accumulate_and_are_not_split_at_commas() {
    check_listeners(
        &["-l", ":1", "--listen=/s", "-l=[::1]:2"],
        &["*:1", "/s", "[::1]:2"],
    );
    check_listeners(&["--listen", ":1", "--listen", ":1"], &["*:1"]);
    check_listeners(&["--listen", "/a,/b"], &["/a,/b"]);
}

#[test]
fn listen_decides_over_socket_over_host_and_port() {
    let all = ["-p", "1", "-o", "127.0.0.1", "-S", "/s", "-l", ":2"];
    check_listeners(&all, &["*:2"]);
    check_listeners(&all[..6], &["/s"]);
    check_listeners(&all[..4], &["127.0.0.1:1"]);
    check_listeners(&all[..2], &["*:1"]);
    let (_, warnings) = serve(&all);
    assert_eq!(
        warnings,
        [
            "--socket has no effect: --listen decides",
            "--host has no effect: --listen decides",
            "--port has no effect: --listen decides",
        ]
    );
}

#[test]
fn hosts_of_warp() {
    for host in ["*", "*4", "*6", "!4", "!6"] {
        check_listeners(&["--host", host], &[&format!("{host}:5000")]);
    }
    check_listeners(&["--host", "::1", "--port", "80"], &["[::1]:80"]);
    check_listeners(&["--host", "localhost"], &["localhost:5000"]);
}

#[test]
fn zero_stands_for_the_default_where_perl_says_so() {
    check(&["--workers", "0", "--backlog", "0"], &Options::default());
    check_listeners(&["--port", "0"], &["*:5000"]);
    let unlimited = Options {
        read_timeout: TimeLimit::Unlimited,
        ..Options::default()
    };
    check(&["--read-timeout", "0"], &unlimited);
    let at_once = Options {
        keepalive_timeout: Some(Duration::ZERO),
        ..Options::default()
    };
    check(&["--keepalive-timeout", "0"], &at_once);
}

#[test]
fn hold_times() {
    let held = |hold| Options {
        hold: Some(hold),
        ..Options::default()
    };
    check(&["--hold", "off"], &held(HoldTime::Off));
    check(&["--hold=0"], &held(HoldTime::Off));
    let time = HoldTime::For(Duration::from_millis(1500));
    check(&["--hold", "1.5"], &held(time));
    for bad in ["0.9", "on", "-1", "OFF"] {
        let error = format!("--hold: {bad:?} is not a number of seconds, 1 or more, or off");
        check_error(&[&format!("--hold={bad}")], &error);
    }
}

#[test]
fn times_and_counts() {
    let expected = Options {
        keepalive_timeout: Some(Duration::from_millis(500)),
        read_timeout: TimeLimit::After(Duration::from_secs(5)),
        timeout: TimeLimit::After(Duration::from_secs(600)),
        backlog: 128,
        keepalive: false,
        ..Options::default()
    };
    check(
        &[
            "--keepalive_timeout=.5",
            "--read-timeout",
            "5",
            "--timeout=600",
            "--backlog=128",
            "--disable-keepalive",
        ],
        &expected,
    );
    let (options, warnings) = serve(&["--workers", "1000000"]);
    assert_eq!(options.workers, NonZeroU32::new(WORKERS_MAX));
    assert_eq!(warnings, ["--workers is too great: 1024 is used"]);
}

#[test]
fn the_last_one_counts() {
    let expected = Options {
        priority: Some(2),
        ..Options::default()
    };
    check(
        &[
            "--priority",
            "1",
            "--disable-keepalive",
            "--priority",
            "2",
            "--enable-keepalive",
        ],
        &expected,
    );
}

#[test]
fn process_options() {
    let expected = Options {
        user: Some("nobody".to_owned()),
        group: Some("65534".to_owned()),
        pid_file: Some("p".into()),
        error_log: Some("e".into()),
        access_log: Some(LogTarget::File("a".into())),
        daemonize: true,
        path_prefix: "/cache".to_owned(),
        store: Some("daemon".to_owned()),
        ..Options::default()
    };
    check(
        &[
            "--user",
            "nobody",
            "--group=65534",
            "--pid=p",
            "--error-log",
            "e",
            "--access-log",
            "a",
            "-D",
            "--path",
            "/cache/",
            "--store",
            "daemon",
        ],
        &expected,
    );
}

#[test]
fn the_access_log_is_off_unless_asked_for() {
    let target = |arguments: &[&str]| serve(arguments).0.access_log_target();
    let file = Some(LogTarget::File("f".into()));
    assert_eq!(target(&[]), None);
    assert_eq!(target(&["--quiet"]), None);
    assert_eq!(target(&["--verbose"]), Some(LogTarget::StandardOutput));
    for format in ["default", "normal", "real-ip", "verbose", "debug"] {
        assert_eq!(
            target(&["--log-format", format]),
            Some(LogTarget::StandardOutput)
        );
    }
    assert_eq!(target(&["--log-format", "quiet"]), None);
    assert_eq!(
        target(&["--access-log", "-"]),
        Some(LogTarget::StandardOutput)
    );
    assert_eq!(target(&["--quiet", "--access-log", "f"]), file);
    assert_eq!(
        serve(&["--log-format=real-ip"]).0.client_address(),
        ClientAddress::Unproven
    );
    let (_, warnings) = serve(&["-D", "--verbose"]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[test]
fn values_that_mean_nothing() {
    check_error(
        &["--port", "abc"],
        r#"--port: "abc" is not a port number from 0 to 65535"#,
    );
    check_error(
        &["-p=65536"],
        r#"-p: "65536" is not a port number from 0 to 65535"#,
    );
    check_error(
        &["--workers", "x"],
        r#"--workers: "x" is not a whole number, 0 for the default"#,
    );
    check_error(
        &["--workers", "-1"],
        r#"--workers: "-1" is not a whole number, 0 for the default"#,
    );
    check_error(
        &["--read-timeout", "soon"],
        r#"--read-timeout: "soon" is not a number of seconds"#,
    );
    check_error(
        &["--listen", "host:http"],
        "--listen: \"host:http\" is not HOST:PORT, :PORT, [IPV6]:PORT or the path of a Unix socket",
    );
    check_error(
        &["--priority", "2147483648"],
        r#"--priority: "2147483648" is not a whole number from 0 to 2147483647"#,
    );
    check_error(
        &["--path", "x"],
        r#"--path: "x" is not a URL path that begins with a slash"#,
    );
    check_error(
        &["--log-format", "xml"],
        "--log-format: \"xml\" is not one of quiet, default, normal, real-ip, json, verbose, debug",
    );
    check_error(
        &["--max-requests=x"],
        r#"--max-requests: "x" is not a whole number, 0 for the default"#,
    );
    check_error(&["--pid"], "--pid needs a file");
    check_error(
        &["--pid", "--daemonize"],
        r#"--pid needs a file, but "--daemonize" follows"#,
    );
}

#[test]
fn empty_values_are_as_if_not_given() {
    check_warned(&["--pid="], &["--pid is empty: as if it were not given"]);
    check_warned(
        &["--listen", ""],
        &["--listen is empty: as if it were not given"],
    );
}

#[test]
fn options_without_effect() {
    check(
        &["-E", "deployment", "-s", "Starman", "--preload-app"],
        &Options::default(),
    );
    for arguments in [
        &["--disable-proctitle"] as &[&str],
        &["-E", "development"],
        &["-s", "HTTP::Server::PSGI"],
        &["-L", "Shotgun"],
        &["-r"],
        &["-R", "lib"],
        &["-I", "lib"],
        &["-Ilib"],
        &["-MDevel::Cover"],
        &["--app", "/nix/store/x/libexec/nix-serve/nix-serve.psgi"],
        &["--no-default-middleware"],
        &["--min-servers", "3"],
        &["--max_spare_servers=3"],
        &["--net_server-log_level", "4"],
    ] {
        let (options, warnings) = serve(arguments);
        assert_eq!(options, Options::default(), "{arguments:?}");
        assert_eq!(warnings.len(), 1, "{arguments:?}: {warnings:?}");
        assert!(warnings[0].contains(" has no effect: "), "{warnings:?}");
    }
}

#[test]
fn unknown_options_name_the_nearest() {
    check_warned(
        &["--lisen", ":80"],
        &[r#"unknown option --lisen ignored, with its value ":80"; did you mean --listen?"#],
    );
    check_warned(
        &["--frob=1"],
        &[r#"unknown option --frob ignored, with its value "1""#],
    );
    check_warned(
        &["-p8080"],
        &["unknown option -p8080 ignored; did you mean -p 8080?"],
    );
    check_warned(&["--a\nb"], &[r"unknown option --a\nb ignored"]);
}

#[test]
fn a_bare_word_to_listen_on_is_a_socket() {
    let (options, warnings) = serve(&["--listen", "5000"]);
    assert_eq!(options.listeners, [ListenSpec::Unix("5000".into())]);
    assert!(
        warnings[0].starts_with(r#"--listen "5000" is a Unix socket"#),
        "{warnings:?}"
    );
}

#[test]
fn tls_without_a_certificate_is_refused() {
    check_refused(&["--enable-ssl"], "--enable-ssl asks for TLS");
    check_refused(&["--ssl=1"], "--ssl asks for TLS");
    check_refused(&["--listen", ":443:ssl"], "--listen :443:ssl asks for TLS");
    check_refused(
        &["--net_server-proto", "SSLEAY"],
        "--net_server-proto asks for TLS",
    );
    check_refused(&["--enable-ssl", "--ssl-cert", "c"], "--enable-ssl asks");
    check_refused(&["-l", ":443:ssl", "--ssl-key", "k"], "--listen :443:ssl");
    check_refused(&["--ssl-cert", "c"], "--ssl-cert asks for TLS");
    check_refused(&["--ssl-key", "k"], "--ssl-key asks for TLS");
}

#[test]
fn tls_is_on_where_starman_or_ng_turn_it_on() {
    let pair = ["--ssl-cert", "c", "--ssl-key=k"];
    let tls = |arguments: &[&str]| {
        let (options, warnings) = serve(&[&pair[..], arguments].concat());
        (options.tls, warnings.len())
    };
    let everywhere = Tls {
        clients: None,
        certificate: "c".into(),
        key: "k".into(),
        only: None,
    };
    for arguments in [
        &[][..],
        &["--enable-ssl"],
        &["--disable-ssl", "--enable-ssl"],
        &["--net_server-proto", "SSLEAY"],
        &["--enable-ssl", "--listen", ":443:ssl"],
    ] {
        assert_eq!(
            tls(arguments),
            (Some(everywhere.clone()), 0),
            "{arguments:?}"
        );
    }
    assert_eq!(tls(&["--disable-ssl"]), (None, 2));

    let (one, _) = tls(&["--listen", ":443:ssl", "--listen", ":80", "--disable-ssl"]);
    let one = one.expect("TLS");
    let listener = |port| ListenSpec::Tcp {
        host: Host::Any,
        port,
    };
    assert!(one.covers(&listener(443)));
    assert!(!one.covers(&listener(80)));
    assert!(everywhere.covers(&listener(80)));
    assert!(!everywhere.covers(&ListenSpec::Unix("s".into())));
}

#[test]
fn protection_that_would_be_missing_is_refused() {
    check_refused(&["-e", r#"enable "Auth::Basic""#], "-e runs Perl code");
    check_refused(&["-eenable"], "-e runs Perl code");
    check_refused(&["--app", "private.psgi"], "--app runs Perl code");
    check_refused(
        &["--net_server-cidr_allow=10.0.0.0/8"],
        "--net_server-cidr_allow restricts",
    );
    check_refused(
        &["--net-server-allow", "10.0.0.1"],
        "--net-server-allow restricts",
    );
    check_refused(&["--net_server_deny=x"], "--net_server_deny restricts");
    check_refused(&["--SSL_verify_mode=3"], "--SSL_verify_mode restricts");
    for option in ["--ssl-cert", "--ssl-key", "--user", "--group"] {
        check_refused(&[option, ""], &format!("{option} is empty"));
    }
}

#[test]
fn protection_that_only_samovar_serve_has_is_refused() {
    for spec in KEYS {
        let is_protection = ["access", "policy", "secret-key-files", "signing", "tls"]
            .iter()
            .any(|group| spec.name.split('.').next() == Some(group));
        if is_protection {
            let option = format!("--{}", spec.option());
            let expected = format!("{option} is an option of `samovar serve`");
            check_refused(&[&option, "x"], &expected);
            check_refused(&[&option], &expected);
        }
    }
    let expected = "is an option of `samovar serve`";
    for option in [
        "--config",
        "--set",
        "--access-user-file",
        "--secret-key-file",
    ] {
        check_refused(&[option, "x"], &format!("{option} {expected}"));
    }
    check_refused(
        &["--tls_certificate=c", "--tls_key=k"],
        &format!("--tls_certificate {expected}"),
    );
}

#[test]
fn help_and_version_win_over_everything() {
    assert_eq!(run(&["--port", "abc", "--help"]), Ok(Invocation::Help));
    assert_eq!(run(&["-h", "-v"]), Ok(Invocation::Help));
    assert_eq!(run(&["--enable-ssl", "-v"]), Ok(Invocation::Version));
    assert!(matches!(
        run(&["--", "--help"]),
        Ok(Invocation::Serve { .. })
    ));
}
