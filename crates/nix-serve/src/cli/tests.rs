//! Each command line of nix-serve and nix-serve-ng gives the configuration with the same meaning.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::time::Duration;

use samovar_server::config::{
    CertificateFiles, ClientAddress, Configuration, LogTarget, OptionSpec, Tls, WORKERS_MAX,
};
use samovar_server::listener::{Host, ListenSpec};

use super::*;
use crate::environment;

mod protection;

fn defaults() -> Configuration {
    environment::read(|_| None)
}

/// Returns the default configuration with one change.
fn with(change: impl FnOnce(&mut Configuration)) -> Configuration {
    let mut config = defaults();
    change(&mut config);
    config
}

fn run(arguments: &[&str]) -> Result<Invocation, CliError> {
    parse(arguments.iter().map(OsString::from), defaults())
}

/// Parses a command line. Returns the configuration, and its warnings separately.
#[track_caller]
fn serve(arguments: &[&str]) -> (Configuration, Vec<String>) {
    match run(arguments) {
        Ok(Invocation::Serve { mut config, .. }) => {
            let warnings = std::mem::take(&mut config.remarks);
            (config, warnings)
        }
        other => panic!("{other:?}"),
    }
}

/// Checks that a command line gives this configuration without a warning.
#[track_caller]
fn check(arguments: &[&str], expected: &Configuration) {
    let (options, warnings) = serve(arguments);
    assert_eq!(&options, expected);
    assert_eq!(warnings, [""; 0]);
}

/// Checks that a command line gives these warnings and otherwise the default configuration.
#[track_caller]
fn check_warned(arguments: &[&str], expected: &[&str]) {
    let (options, warnings) = serve(arguments);
    assert_eq!(options, defaults());
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
    assert!(is_usage_error(&error), "{error}");
    assert_eq!(error.to_string(), expected);
}

/// Returns whether the value of an option is invalid or missing.
fn is_usage_error(error: &CliError) -> bool {
    matches!(
        error,
        CliError::Value { .. } | CliError::ValueMissing { .. }
    )
}

#[track_caller]
fn check_refused(arguments: &[&str], expected: &str) {
    let error = run(arguments).expect_err("refused");
    assert!(!is_usage_error(&error), "{error}");
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
    check(&[], &defaults());
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
    let expected = with(|config| {
        config.listeners = tcp(local(), 5000);
        config.listen_given = true;
        config.caches[0].priority = 40;
        config.workers = NonZeroU32::new(12);
    });
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
        &with(|config| config.caches[0].priority = 100),
    );
    check(
        &["--workers", "5"],
        &with(|config| config.workers = NonZeroU32::new(5)),
    );
}

#[test]
fn real_extra_params_plain_junk() {
    check_warned(
        &["storeDir", "=", "/nix/store,", "stateDir", "=", "/nix/var"],
        &["words that are no options are ignored: \
             \"storeDir\" \"=\" \"/nix/store,\" \"stateDir\" \"=\" \"/nix/var\""],
    );
}

#[test]
fn the_wrapper_and_the_module_of_nixos() {
    let expected = with(|config| {
        config.listeners = tcp(local(), 5000);
        config.listen_given = true;
    });
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
fn listen_overrides_socket_and_that_host_and_port() {
    let all = ["-p", "1", "-o", "127.0.0.1", "-S", "/s", "-l", ":2"];
    check_listeners(&all, &["*:2"]);
    check_listeners(&all[..6], &["/s"]);
    check_listeners(&all[..4], &["127.0.0.1:1"]);
    check_listeners(&all[..2], &["*:1"]);
    let (_, warnings) = serve(&all);
    assert_eq!(
        warnings,
        [
            "--socket has no effect: --listen overrides it",
            "--host has no effect: --listen overrides it",
            "--port has no effect: --listen overrides it",
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
    check(&["--workers", "0", "--backlog", "0"], &defaults());
    check_listeners(&["--port", "0"], &["*:5000"]);
    let unlimited = with(|config| config.limits.head_time = Duration::MAX);
    check(&["--read-timeout", "0"], &unlimited);
    let at_once = with(|config| config.limits.idle_time = Duration::ZERO);
    check(&["--keepalive-timeout", "0"], &at_once);
}

#[test]
fn gc_lease_times() {
    let leased = |lease| with(|config| config.gc_lease = Some(lease));
    check(&["--gc-lease", "off"], &leased(Duration::ZERO));
    check(&["--gc-lease=0"], &leased(Duration::ZERO));
    let time = Duration::from_millis(1500);
    check(&["--gc-lease", "1.5"], &leased(time));
    check(&["--gc-lease", "10 min"], &leased(Duration::from_secs(600)));
    for bad in ["0.9", "on", "-1", "OFF"] {
        let expected = "--gc-lease must be a time of at least 1 s, such as \"10 min\", or off";
        let error = format!("{expected}, got {bad:?}");
        check_error(&[&format!("--gc-lease={bad}")], &error);
    }
}

#[test]
fn times_and_counts() {
    let expected = with(|config| {
        config.limits.idle_time = Duration::from_millis(500);
        config.limits.head_time = Duration::from_secs(5);
        config.limits.stall_time = Duration::from_secs(600);
        config.backlog = 128;
    });
    let arguments = [
        "--keepalive_timeout=.5",
        "--read-timeout",
        "5",
        "--timeout=600",
        "--backlog=128",
    ];
    check(&arguments, &expected);
    let (config, warnings) = serve(&["--workers", "1000000"]);
    assert_eq!(
        config.workers.map(|count| u64::from(count.get())),
        Some(WORKERS_MAX)
    );
    assert_eq!(warnings, ["--workers is too large: 1024 is used"]);
}

/// `--timeout` behaves as in nix-serve-ng, which has introduced this option.
#[test]
fn timeout_closes_idle_connections_unless_keepalive_timeout_is_given() {
    let times = |arguments: &[&str]| {
        let limits = serve(arguments).0.limits;
        (limits.stall_time.as_secs(), limits.idle_time.as_secs())
    };
    let limits = defaults().limits;
    let (stall, idle) = (limits.stall_time.as_secs(), limits.idle_time.as_secs());
    assert_eq!(times(&[]), (stall, idle));
    assert_eq!(times(&["--timeout", "7"]), (7, 7));
    assert_eq!(times(&["--timeout", "0"]), (u64::MAX, u64::MAX));
    assert_eq!(times(&["--keepalive-timeout", "3"]), (stall, 3));
    assert_eq!(
        times(&["--keepalive-timeout", "3", "--timeout", "7"]),
        (7, 3)
    );
    assert_eq!(times(&["--timeout", "7", "--disable-keepalive"]), (7, 0));
}

#[test]
fn the_last_one_counts() {
    let expected = with(|config| config.caches[0].priority = 2);
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
    let expected = with(|config| {
        config.user = Some("nobody".to_owned());
        config.group = Some("65534".to_owned());
        config.pid_file = Some("p".into());
        config.error_log = Some("e".into());
        config.access_log = Some(LogTarget::File("a".into()));
        config.caches[0].prefix = "/cache".to_owned();
        config.store = Some("daemon".to_owned());
    });
    let daemonizes = |arguments: &[&str]| {
        matches!(
            run(arguments),
            Ok(Invocation::Serve {
                daemonize: true,
                ..
            })
        )
    };
    assert!(daemonizes(&["-D"]) && daemonizes(&["--daemonize"]) && !daemonizes(&["-D=0"]));
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
    let target = |arguments: &[&str]| serve(arguments).0.access_log;
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
        serve(&["--log-format=real-ip"]).0.client_address,
        ClientAddress::Unproven
    );
    let (_, warnings) = serve(&["-D", "--verbose"]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[test]
fn values_that_mean_nothing() {
    check_error(
        &["--port", "abc"],
        r#"--port must be a port number from 0 to 65535, got "abc""#,
    );
    check_error(
        &["-p=65536"],
        r#"-p must be a port number from 0 to 65535, got "65536""#,
    );
    check_error(
        &["--workers", "x"],
        r#"--workers must be a whole number, 0 for the default, got "x""#,
    );
    check_error(
        &["--workers", "-1"],
        r#"--workers must be a whole number, 0 for the default, got "-1""#,
    );
    check_error(
        &["--read-timeout", "soon"],
        "--read-timeout must be a number of seconds, or a time such as \"10 min\", got \"soon\"",
    );
    check_error(
        &["--listen", "host:http"],
        "--listen must be HOST:PORT, :PORT, [IPV6]:PORT or the path of a Unix socket, got \
         \"host:http\"",
    );
    check_error(
        &["--priority", "2147483648"],
        r#"--priority must be a whole number from 0 to 2147483647, got "2147483648""#,
    );
    check_error(
        &["--path", "x"],
        r#"--path must be a URL path that begins with a slash, got "x""#,
    );
    check_error(
        &["--log-format", "xml"],
        "--log-format must be one of quiet, default, normal, real-ip, json, verbose, debug, got \
         \"xml\"",
    );
    check_error(
        &["--max-requests=x"],
        r#"--max-requests must be a whole number, 0 for the default, got "x""#,
    );
    check_error(&["--pid"], "--pid requires a file");
    check_error(
        &["--pid", "--daemonize"],
        r#"--pid requires a file, got the option "--daemonize""#,
    );
}

#[test]
fn empty_values_are_as_if_not_given() {
    check_warned(&["--pid="], &["--pid is ignored: its value is empty"]);
    check_warned(
        &["--listen", ""],
        &["--listen is ignored: its value is empty"],
    );
}

#[test]
fn options_without_effect() {
    check(
        &["-E", "deployment", "-s", "Starman", "--preload-app"],
        &defaults(),
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
        assert_eq!(options, defaults(), "{arguments:?}");
        assert_eq!(warnings.len(), 1, "{arguments:?}: {warnings:?}");
        assert!(warnings[0].contains(" has no effect: "), "{warnings:?}");
    }
}

#[test]
fn unknown_options_name_the_nearest() {
    check_warned(
        &["--lisen", ":80"],
        &[r#"unknown option --lisen is ignored, with its value ":80"; did you mean --listen?"#],
    );
    check_warned(
        &["--frob=1"],
        &[r#"unknown option --frob is ignored, with its value "1""#],
    );
    check_warned(
        &["-p8080"],
        &["unknown option -p8080 is ignored; did you mean -p 8080?"],
    );
    check_warned(&["--a\nb"], &[r"unknown option --a\nb is ignored"]);
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

/// Every option of both programs has the same name in both, and the old name of nix-serve.
#[test]
fn options_of_both_programs_have_the_same_names() {
    let value = |name: &str| match name {
        "listen" | "admin.listen" => "127.0.0.1:80",
        "prefix" => "/cache",
        "verify" => "never",
        "log.access-format" => "json",
        _ => "7",
    };
    for spec in OptionSpec::all().filter(|spec| spec.in_nix_serve) {
        let of = |option: &str| {
            let other = match spec.name {
                "tls.certificate" => &["--tls-key=k"][..],
                "tls.key" => &["--ssl-cert=c"],
                _ => &[],
            };
            let given = format!("--{option}={}", value(spec.name));
            let (config, warnings) = serve(&[&[&*given], other].concat());
            assert_eq!(warnings, [""; 0], "{given}");
            config
        };
        let canonical = of(&spec.option());
        assert_ne!(canonical, defaults(), "{}", spec.name);
        for alias in spec.aliases {
            assert_eq!(of(alias), canonical, "{alias}");
        }
    }
}

#[test]
fn values_of_both_programs() {
    let keys = with(|config| config.caches[0].secret_key_files = vec!["a".into(), "b".into()]);
    check(&["--secret-key-files", "a", "--secret-key-files=b"], &keys);
    check(&["--pages=false", "--log-verbose=off"], &defaults());
    let stall = with(|config| {
        config.limits.stall_time = Duration::from_secs(120);
        config.limits.idle_time = Duration::from_secs(5);
    });
    check(
        &["--connections-stall-time", "2 min", "--timeout", "5"],
        &stall,
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
