//! Metrics, health and status are correct. They remain available while the server is overloaded or
//! its store is unavailable.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{
    OwnStore, PATIENCE, Response, ServerProcess, eventually, hash_part, local, nix_serve,
    of_sample, raw, sample_list, sample_root,
};
use testkit::wait::holds_within;

/// A server, and the address of its metrics.
struct Watched {
    server: ServerProcess,
    admin: SocketAddr,
}

impl Watched {
    #[track_caller]
    fn start(command: &mut Command) -> Self {
        let server = ServerProcess::start(command.args(["--admin", "127.0.0.1:0"]));
        let line = server.wait_for("metrics and status on http://");
        let admin = line.rsplit("//").next().unwrap().parse().unwrap();
        Self { server, admin }
    }

    #[track_caller]
    fn of_sample() -> Self {
        Self::start(&mut of_sample())
    }

    #[track_caller]
    fn get(&self, path: &str) -> Response {
        self.get_as(path, "localhost")
    }

    #[track_caller]
    fn get_as(&self, path: &str, host: &str) -> Response {
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        raw(self.admin, head.as_bytes())
    }

    #[track_caller]
    fn status(&self) -> Value {
        let answer = self.get("/status.json");
        assert_eq!(answer.status, 200);
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// Returns the values of all samples, by name and labels.
    #[track_caller]
    fn samples(&self) -> BTreeMap<String, f64> {
        let answer = self.get("/metrics");
        assert_eq!(answer.status, 200);
        let samples = answer.text();
        let lines = samples.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').unwrap();
                (name.to_owned(), value.parse().unwrap())
            })
            .collect()
    }
}

const ABSENT: &str = "/00000000000000000000000000000000.narinfo";

/// Runs `promtool` with `input`.
#[track_caller]
fn promtool(arguments: &[&str], input: &[u8]) {
    let mut promtool = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("there is promtool, of Debian's package prometheus: run `make setup-test`");
    promtool.stdin.take().unwrap().write_all(input).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    if arguments == ["check", "metrics"] {
        // Check for warnings too, as they do not change the exit code.
        assert_eq!(said, "");
    }
}

#[test]
fn metrics_count_what_happened() {
    let watched = Watched::of_sample();
    let server = &watched.server;
    for path in sample_list("closure").iter().take(20) {
        assert_eq!(server.narinfo(path).status, 200);
    }
    for _ in 0..7 {
        assert_eq!(server.get(ABSENT).status, 404);
    }
    assert_eq!(server.request("HEAD", ABSENT, &[]).status, 404);
    assert_eq!(server.get("/nix-cache-info").status, 200);
    assert_eq!(server.request("PUT", "/x", &[]).status, 405);
    let path = &sample_list("closure")[0];
    let nar = server.get(&server.nar_url(path));
    assert!(nar.is_complete);
    let expected = [
        (
            "samovar_http_requests_total{cache=\"default\",route=\"nar\",method=\"GET\",status=\"2xx\"}",
            1.0,
        ),
        // One more narinfo request was made to get the URL of the NAR.
        (
            "samovar_http_requests_total{cache=\"default\",route=\"narinfo\",method=\"GET\",status=\"2xx\"}",
            21.0,
        ),
        (
            "samovar_http_requests_total{cache=\"default\",route=\"narinfo\",method=\"GET\",status=\"4xx\"}",
            7.0,
        ),
        (
            "samovar_http_requests_total{cache=\"default\",route=\"narinfo\",method=\"HEAD\",status=\"4xx\"}",
            1.0,
        ),
        (
            "samovar_http_requests_total{cache=\"default\",route=\"cache_info\",method=\"GET\",status=\"2xx\"}",
            1.0,
        ),
        (
            "samovar_http_requests_total{cache=\"default\",route=\"other\",method=\"PUT\",status=\"4xx\"}",
            1.0,
        ),
        (
            "samovar_http_request_duration_seconds_count{route=\"narinfo\"}",
            29.0,
        ),
        (
            "samovar_http_request_duration_seconds_bucket{route=\"narinfo\",le=\"+Inf\"}",
            29.0,
        ),
        (
            "samovar_http_responses_aborted_total{cache=\"default\",route=\"nar\",outcome=\"aborted-by-server\"}",
            0.0,
        ),
        ("samovar_narinfo_hits_total{cache=\"default\"}", 21.0),
        ("samovar_narinfo_misses_total{cache=\"default\"}", 8.0),
        // The PUT.
        (
            "samovar_http_requests_refused_total{cache=\"default\"}",
            1.0,
        ),
        ("samovar_ready", 1.0),
        ("samovar_cache_entries{cache=\"nar_cache\"}", 0.0),
        ("samovar_events_total{event=\"panicked\"}", 0.0),
    ];
    // A response is counted after its last byte, which the client may have read a moment earlier.
    let mut samples = BTreeMap::new();
    holds_within(PATIENCE, || {
        samples = watched.samples();
        let mut all = expected.iter();
        all.all(|(sample, value)| samples.get(*sample) == Some(value))
    });
    for (sample, expected) in expected {
        assert_eq!(
            samples.get(sample),
            Some(&expected),
            "{sample} of {samples:#?}"
        );
    }
    assert!(samples.contains_key("samovar_connections_max"));
    let body = "samovar_http_response_body_bytes_total{cache=\"default\",route=\"nar\",outcome=\"complete\"}";
    #[expect(clippy::cast_precision_loss, reason = "it is small")]
    let body_len = nar.body.len() as f64;
    assert_eq!(samples[body], body_len);
    assert!(samples["samovar_catalog_paths"] >= 20.0);
    assert!(samples["process_open_fds"] >= 10.0);
    assert!(samples["process_resident_memory_bytes"] > 1e6);
    assert!(samples["samovar_connections_accepted_total"] >= 30.0);
    assert!(samples.contains_key("samovar_io_thread_busy_seconds_total{thread=\"io-0\"}"));
}

#[test]
fn promtool_accepts_the_metrics() {
    let watched = Watched::of_sample();
    for path in ["/", ABSENT, "/nix-cache-info", "/x.ls", "/log/x"] {
        watched.server.get(path);
    }
    let answer = watched.get("/metrics");
    let content_type = answer.header("content-type").unwrap();
    assert!(content_type.starts_with("text/plain; version=0.0.4"));
    promtool(&["check", "metrics"], &answer.body);
}

/// Data from requests never becomes the value of a label.
#[test]
fn labels_are_bounded() {
    let watched = Watched::of_sample();
    let ask = |round: u32| {
        for number in 0..20 {
            let target = format!("/{round}-{number}.{number}/%2e{number}?{round}=\"{{}}");
            watched
                .server
                .request(&format!("M{round}X{number}"), &target, &[]);
            watched.server.get(&target);
            watched
                .server
                .get(&format!("/{round:016}{number:016}.narinfo"));
            watched
                .server
                .get(&format!("/nar/{round:016}{number:016}.nar"));
        }
    };
    ask(1);
    let before: Vec<String> = watched.samples().into_keys().collect();
    ask(2);
    let after: Vec<String> = watched.samples().into_keys().collect();
    assert_eq!(before, after);
}

#[test]
fn the_status_lists_the_paths_requested_most() {
    let watched = Watched::of_sample();
    let closure = sample_list("closure");
    let (often, once) = (&closure[0], &closure[1]);
    for _ in 0..5 {
        watched.server.narinfo(often);
        watched.server.get(ABSENT);
    }
    watched.server.narinfo(once);
    watched.server.get(&watched.server.nar_url(often));
    // A response is counted after its last byte, which the client may have read a moment earlier.
    let mut status = Value::Null;
    eventually("all is counted, and the top known by name", || {
        status = watched.status();
        status["top_served"][0]["name"].is_string()
            && status["top_bytes"][0].is_object()
            && status["totals"]["hit_count"] == 7
            && status["totals"]["miss_count"] == 5
    });
    let top = &status["top_served"][0];
    assert_eq!(top["hash_part"], hash_part(often));
    assert_eq!(
        format!("{}-{}", hash_part(often), top["name"].as_str().unwrap()),
        often.rsplit('/').next().unwrap()
    );
    // One more request was made to get the URL of the NAR.
    assert_eq!((&top["count"], &top["error"]), (&6.into(), &0.into()));
    assert_eq!(top["client_count"], 1);
    let missing = &status["top_missing"][0];
    assert_eq!(
        (&missing["hash_part"], &missing["count"]),
        (&ABSENT[1..33].into(), &5.into())
    );
    assert_eq!(status["top_bytes"][0]["hash_part"], hash_part(often));
    assert_eq!(status["totals"]["hit_count"], 7);
    assert_eq!(status["totals"]["miss_count"], 5);
    assert_eq!(status["store"]["store_dir"], "/nix/store");
    assert_eq!(status["server"]["is_ready"], true);
    let listener = status["server"]["listeners"][0].as_str().unwrap();
    assert_eq!(listener, watched.server.url());
    // The status warns that no signing key is configured.
    assert!(status["warnings"].to_string().contains("no secret key"));
}

/// A download that the client does not read counts as in progress until it ends.
#[test]
fn downloads_in_progress_are_listed() {
    let store = OwnStore::new();
    let path = store.add_file("long", &vec![7; 64 << 20]);
    let watched = Watched::start(nix_serve().args(["--store", &local(store.root())]));
    let mut stream = TcpStream::connect(watched.server.addr).unwrap();
    let head = format!(
        "GET {} HTTP/1.1\r\nHost: x\r\n\r\n",
        watched.server.nar_url(&path)
    );
    stream.write_all(head.as_bytes()).unwrap();
    let sent = |status: &Value| status["transfers"][0]["sent_len"].as_u64().unwrap_or(0);
    eventually("something was sent", || sent(&watched.status()) > 0);
    let status = watched.status();
    let transfer = &status["transfers"][0];
    assert_eq!(status["transfer_count"], 1);
    assert_eq!(transfer["path"], path.as_str());
    assert_eq!(transfer["client"], "127.0.0.1");
    assert!(transfer["len"].as_u64().unwrap() > 64 << 20);
    assert!(sent(&status) < transfer["len"].as_u64().unwrap());
    assert_eq!(status["load"]["connection_count"], 1);
    drop(stream);
    eventually("it is gone", || watched.status()["transfer_count"] == 0);
    let broken = "samovar_http_responses_aborted_total{cache=\"default\",route=\"nar\",outcome=\"aborted-by-client\"}";
    eventually("it is counted as left", || {
        watched.samples().get(broken) == Some(&1.0)
    });
}

/// A live status connection gets a status at once, and then one per second.
#[test]
fn the_status_is_live() {
    let watched = Watched::of_sample();
    let url = format!("ws://{}/status/live", watched.admin);
    let (mut socket, _) = tungstenite::connect(url).unwrap();
    let mut next = || -> Value {
        let message = socket.read().unwrap();
        serde_json::from_str(message.to_text().unwrap()).unwrap()
    };
    let first = next();
    assert_eq!(first["version"], 1);
    watched.server.get(ABSENT);
    let of = |status: &Value| status["totals"]["miss_count"].as_u64().unwrap();
    let mut times = vec![first["time_ms"].as_u64().unwrap()];
    while of(&{
        let status = next();
        times.push(status["time_ms"].as_u64().unwrap());
        status
    }) == 0
    {}
    assert!(times.len() < 10 && times.is_sorted(), "{times:?}");
    // A page from another origin gets 403, whatever host name it uses for the server.
    let asks = |host: &str, origin: &str| {
        let head = format!(
            "GET /status/live HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        );
        let mut stream = TcpStream::connect(watched.admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut line = [0; 12];
        stream.read_exact(&mut line).unwrap();
        String::from_utf8_lossy(&line[9..]).into_owned()
    };
    assert_eq!(asks("localhost", "http://localhost"), "101");
    assert_eq!(asks("localhost", "http://evil.example"), "403");
    assert_eq!(asks("evil.example", "http://evil.example"), "403");
    assert_eq!(watched.get_as("/status.json", "evil.example").status, 403);
    for (origin, status) in [("http://localhost", 200), ("http://a.localhost", 403)] {
        let from = format!("localhost\r\nOrigin: {origin}");
        assert_eq!(watched.get_as("/status.json", &from).status, status);
    }
}

/// Live status connections leave capacity for a monitor that requests metrics.
#[test]
fn live_status_clients_leave_connections_for_monitoring() {
    let watched = Watched::of_sample();
    let head = "GET /status/live HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
                Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    let watch = |_| {
        let mut stream = TcpStream::connect(watched.admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut line = [0; 12];
        stream.read_exact(&mut line).unwrap();
        (stream, String::from_utf8_lossy(&line[9..]).into_owned())
    };
    let (watchers, answers): (Vec<_>, Vec<_>) = (0..300).map(watch).unzip();
    let count = |status: &str| answers.iter().filter(|answer| *answer == status).count();
    assert_eq!((count("101"), count("503")), (64, 236));
    assert_eq!(watched.get("/healthz").status, 200);
    // A closed connection frees its slot.
    drop(watchers);
    eventually("there is room again", || watch(0).1 == "101");
}

#[test]
fn readiness_follows_the_store() {
    let store = OwnStore::new();
    store.add_file("a", b"a");
    let watched = Watched::start(nix_serve().args(["--store", &local(store.root())]));
    let ready = || watched.get("/readyz");
    eventually("it is ready", || ready().status == 200);
    assert_eq!(watched.get("/healthz").status, 200);
    let database = store.database();
    let away = database.with_extension("away");
    std::fs::rename(&database, &away).unwrap();
    eventually("it is not ready", || ready().status == 503);
    let reason = ready().text();
    assert!(reason.contains("the database does not exist"), "{reason}");
    // The server is live (`/healthz`), but not ready.
    assert_eq!(watched.get("/healthz").status, 200);
    watched.server.get(ABSENT);
    let errors = "samovar_store_errors_total{kind=\"unavailable\"}";
    eventually("the error is counted", || watched.samples()[errors] >= 1.0);
    assert_eq!(watched.samples()["samovar_ready"], 0.0);
    eventually("the error is listed", || {
        let recent = watched.status()["recent_errors"].to_string();
        recent.contains("the store cannot be read")
    });
    std::fs::rename(&away, &database).unwrap();
    eventually("it is ready again", || ready().status == 200);
}

#[test]
fn version_and_other_methods() {
    let watched = Watched::of_sample();
    let answer = watched.get("/version");
    let version: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    let post = "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\
                Connection: close\r\n\r\n";
    assert_eq!(raw(watched.admin, post.as_bytes()).status, 405);
    assert_eq!(watched.get(ABSENT).status, 404);
    // The public listener serves none of these.
    for path in [
        "/metrics",
        "/healthz",
        "/readyz",
        "/version",
        "/status.json",
    ] {
        assert_eq!(watched.server.get(path).status, 404, "{path}");
    }
}

/// The admin listener serves metrics while every worker is occupied and the server accepts no more
/// connections.
#[test]
fn metrics_are_available_while_the_server_is_full() {
    let store = OwnStore::new();
    let path = store.add_file("long", &vec![7; 16 << 20]);
    let mut command = nix_serve();
    command.args(["--store", &local(store.root()), "--workers", "1"]);
    let watched = Watched::start(&mut command);
    let head = format!(
        "GET {} HTTP/1.1\r\nHost: x\r\n\r\n",
        watched.server.nar_url(&path)
    );
    let readers: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(watched.server.addr).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    eventually("all of them are seen", || {
        watched.samples()["samovar_connections"] >= 200.0
    });
    assert_eq!(watched.get("/healthz").status, 200);
    drop(readers);
}

/// After a zero-downtime upgrade the new process serves the metrics.
#[test]
fn an_upgrade_passes_the_admin_socket_to_the_new_process() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("admin");
    let pid_file = dir.path().join("pid");
    let mut command = of_sample();
    command
        .arg("--admin")
        .arg(&socket)
        .arg("--pid")
        .arg(&pid_file);
    let mut server = ServerProcess::start(&mut command);
    let pid_of_figures = || {
        let mut stream = UnixStream::connect(&socket).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let head = b"GET /status.json HTTP/1.0\r\n\r\n";
        stream.write_all(head).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let status: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1)?).ok()?;
        status["process"]["pid"].as_u64()
    };
    let first = u64::from(server.child.id());
    eventually("there are figures", || pid_of_figures() == Some(first));
    let upgraded = |pid: u64| {
        support::output(Command::new("kill").args(["-USR2", &pid.to_string()]));
        eventually("the newer process has them", || {
            pid_of_figures().is_some_and(|newer| newer != pid)
        });
        pid_of_figures().unwrap()
    };
    // Repeat the upgrade: an ending process must not remove the socket of its successor.
    let mut newer = upgraded(first);
    assert_eq!(server.wait(), Some(0));
    for _ in 0..4 {
        newer = upgraded(newer);
    }
    let newer = newer.to_string();
    eventually("it is written down", || {
        std::fs::read_to_string(&pid_file).is_ok_and(|text| text.trim() == newer)
    });
    support::output(Command::new("kill").arg(&newer));
    eventually("it has ended", || !pid_file.exists());
    eventually("its socket is gone", || !socket.exists());
}

/// Alert rules fire exactly when they should, as tested by promtool.
#[test]
fn prometheus_rules_pass_their_tests() {
    let rule = |name: &str| rig(&format!("prometheus/{name}.yml"));
    let files = [rule("recording"), rule("alerts"), rule("alerts.test")];
    let [recording, alerts, test] = files.each_ref().map(|file| file.to_str().unwrap());
    promtool(&["check", "rules", recording, alerts], b"");
    promtool(&["test", "rules", test], b"");
}

/// Every metric and label in a dashboard or a rule exists, and every metric is on the dashboard.
/// (promtool above checks only the syntax.)
#[test]
fn dashboards_use_existing_metrics() {
    let store = local(&sample_root());
    let watched = Watched::start(nix_serve().args(["--scrub", "1000", "--store", &store]));
    let path = &sample_list("closure")[0];
    assert!(
        watched
            .server
            .get(&watched.server.nar_url(path))
            .is_complete
    );
    let counted = "samovar_http_requests_total{cache=\"default\",route=\"nar\",method=\"GET\",status=\"2xx\"}";
    eventually("it is counted", || watched.samples().contains_key(counted));
    eventually("it verifies", || {
        watched.samples().contains_key("samovar_scrub_paths")
    });
    let name = |sample: &String| sample.split('{').next().unwrap().to_owned();
    let there: BTreeSet<String> = watched.samples().keys().map(name).collect();
    let board = std::fs::read_to_string(rig("grafana/dashboards/cache.json")).unwrap();
    let board: Value = serde_json::from_str(&board).unwrap();
    let mut asked = BTreeSet::new();
    let mut ids = BTreeSet::new();
    let mut rules = String::from("groups: [{name: dashboard, rules: [\n");
    for panel in board["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "one id each");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expr = target["expr"].as_str().unwrap();
            asked.extend(metrics_in(expr));
            let expr = expr
                .replace("$__rate_interval", "5m")
                .replace("$instance", ".*");
            rules.push_str(&format!("{{record: x, expr: {}}},\n", Value::from(expr)));
        }
    }
    rules.push_str("]}]\n");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dashboard.yml");
    std::fs::write(&file, rules).unwrap();
    promtool(&["check", "rules", file.to_str().unwrap()], b"");
    let on_board = asked.clone();
    for rules in ["prometheus/recording.yml", "prometheus/alerts.yml"] {
        let text = std::fs::read_to_string(rig(rules)).unwrap();
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with(['#', 'd']));
        // Recording rules are named `level:metric:operation`.
        let words: Vec<&str> = code.flat_map(|line| line.split([' ', '(', ')'])).collect();
        let words = words.into_iter().filter(|word| !word.contains(':'));
        asked.extend(words.flat_map(metrics_in));
    }
    assert!(
        on_board.len() > 30 && asked.contains("samovar_info"),
        "{asked:?}"
    );
    // This server has no certificate and no upstream; tests of `samovar serve` read their metrics.
    assert!(asked.remove("samovar_tls_certificate_expiry_timestamp_seconds"));
    asked.retain(|name| !name.starts_with("samovar_upstream_"));
    let missing: Vec<_> = asked.difference(&there).collect();
    assert!(missing.is_empty(), "asked for and not there: {missing:?}");
    // These metrics repeat another one, or never change, so the dashboard need not show them.
    let elsewhere = |name: &&String| {
        name.ends_with("_sum")
            || name.ends_with("_seconds_count")
            || [
                "samovar_info",
                "samovar_catalog_bytes",
                "process_virtual_memory_bytes",
                "process_start_time_seconds",
            ]
            .contains(&name.as_str())
    };
    let shown_nowhere: Vec<_> = there
        .difference(&on_board)
        .filter(|name| !elsewhere(name))
        .collect();
    assert!(shown_nowhere.is_empty(), "on no panel: {shown_nowhere:?}");
}

/// Finds the names of metrics in an expression.
fn metrics_in(expr: &str) -> Vec<String> {
    let is_other = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    expr.split(is_other)
        .filter(|word| word.starts_with("samovar_") || word.starts_with("process_"))
        .map(str::to_owned)
        .collect()
}

fn rig(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../rig")
        .join(path)
}
