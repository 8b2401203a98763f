//! Metrics, status and alerts report uploads, the state of the storage, and the runs of the
//! collector.

mod support;
mod support_uploads;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{samovar, sample, sample_store, secret_file};
use support_uploads::{MadePath, Running, Site};
use testkit::eventually;
use testkit::http1::exchange;
use testkit::process::output;

/// A server with a storage, and the address of its admin listener.
struct Watched {
    server: Running,
    admin: SocketAddr,
}

impl Watched {
    fn start(site: &Site) -> Self {
        let config = fs::read_to_string(site.config()).expect("reads the configuration");
        let config = config.replace("admin.listen = []", "admin.listen = \"127.0.0.1:0\"");
        fs::write(site.config(), config).expect("writes the configuration");
        let server = site.start();
        let line = server.process.wait_for("metrics and status on http://");
        let address = line.rsplit("//").next().expect("has an address");
        let admin = address.trim().parse().expect("is an address");
        Self { server, admin }
    }

    fn get(&self, path: &str) -> String {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let response = exchange(self.admin, head);
        assert_eq!(response.status, 200, "{path}");
        response.text()
    }

    /// Returns the values of all samples, by name and labels.
    fn samples(&self) -> BTreeMap<String, f64> {
        let text = self.get("/metrics");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        lines
            .map(|line| sample(line).expect("is a sample"))
            .collect()
    }

    fn status(&self) -> String {
        let admin = format!("http://{}", self.admin);
        output(samovar().args(["status", &admin]))
    }

    /// Waits until a sample has this value. The totals of the storage are read every few seconds.
    fn await_sample(&self, sample: &str, value: f64) {
        eventually(&format!("{sample} is {value}"), || {
            self.samples().get(sample) == Some(&value)
        });
    }
}

/// A PUT is an upload in the metrics and in the access log, whatever is uploaded and wherever. A
/// download of the file of an uploaded NAR is one of a NAR.
#[test]
fn uploads_have_one_class_in_metrics_and_log() {
    let site = Site::new();
    let log = site.dir().join("access.log");
    site.configure_empty(&format!(
        "log.access = {log:?}\nlog.access-format = \"json\"\n"
    ));
    let watched = Watched::start(&site);
    let token = site.token(&[]);
    let path = MadePath::new("path").compressed("xz");
    let (file, narinfo) = (path.file_target(), path.target());
    let hash_part = Some(path.hash_part());
    let listing = path.listing_target();
    let below = format!("/upload{narinfo}");
    let info = "StoreDir: /nix/store\n";
    let server = &watched.server;
    let expected = [
        ("PUT", &*file, "upload", None),
        ("PUT", &narinfo, "upload", hash_part),
        ("PUT", &listing, "upload", hash_part),
        ("PUT", "/debuginfo/x.debug", "upload", None),
        ("PUT", "/nix-cache-info", "upload", None),
        ("GET", &file, "nar", None),
        ("GET", &narinfo, "narinfo", hash_part),
        ("GET", &below, "upload", hash_part),
        ("GET", &listing, "listing", hash_part),
    ];
    for (method, target, ..) in expected {
        let response = match (method, target) {
            ("PUT", target) if target == file => server.put(&token, target, &path.file),
            ("PUT", target) if target == narinfo => server.put(&token, target, path.narinfo()),
            ("PUT", "/nix-cache-info") => server.put(&token, target, info),
            ("PUT", _) => server.put(&token, target, "{}"),
            _ => server.get(target),
        };
        assert_eq!(response.status, 200, "{method} {target}");
    }
    let mut text = String::new();
    eventually("all requests are logged", || {
        text = fs::read_to_string(&log).expect("reads the log");
        text.matches('\n').count() == expected.len()
    });
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("is JSON"))
        .collect();
    let logged = lines.iter().map(|line| {
        let text = |key: &str| line[key].as_str();
        (text("method"), text("target"), text("route"), text("hash"))
    });
    let expected_lines = expected
        .map(|(method, target, class, hash)| (Some(method), Some(target), Some(class), hash));
    assert_eq!(logged.collect::<Vec<_>>(), expected_lines);
    for (class, method, count) in [
        ("upload", "PUT", 5.0),
        ("upload", "GET", 1.0),
        ("nar", "GET", 1.0),
        ("narinfo", "GET", 1.0),
        ("listing", "GET", 1.0),
    ] {
        let labels = format!("cache=\"default\",route=\"{class}\",method=\"{method}\"");
        let sample = format!("samovar_http_requests_total{{{labels},status=\"2xx\"}}");
        watched.await_sample(&sample, count);
    }
}

/// The log names each upload and its token, however many come at once: it is an audit trail.
#[test]
fn each_upload_is_logged() {
    let site = Site::new();
    site.configure_empty("");
    let token = site.token(&["--name", "builder-7"]);
    let server = site.start();
    let paths: Vec<_> = (0..12)
        .map(|number| MadePath::new(&format!("path-{number}")))
        .collect();
    for path in &paths {
        server.publish(&token, path);
    }
    let lines = server.process.terminate();
    for path in &paths {
        let record = format!(
            "{} was uploaded with the token \"builder-7\"",
            path.store_path
        );
        let count = lines.iter().filter(|line| line.contains(&record)).count();
        assert_eq!(count, 1, "{record}: {lines:?}");
    }
}

/// A line about a refusal names the path, the token, the client and the cache, so that its operator
/// can tell whose build has failed.
#[test]
fn a_refusal_is_logged_with_path_token_client_and_cache() {
    let site = Site::new();
    let caches = "[caches.default]\nprefix = \"/\"\n[caches.team]\n";
    site.configure_empty(caches);
    let server = site.start();
    let token = site.token(&["--name", "ci", "--names", "mr-*"]);
    let path = MadePath::new("other");
    let by = "with the token \"ci\" from 127.0.0.1 in the cache";
    for (prefix, cache) in [("", "default"), ("/team", "team")] {
        let put = |target: &str, body: &[u8]| {
            let target = format!("{prefix}{target}");
            server.put(&token, &target, body).status
        };
        assert_eq!(put(&path.file_target(), &path.file), 200);
        assert_eq!(put(&path.target(), path.narinfo().as_bytes()), 422);
        let line = server
            .process
            .wait_for(&format!("{by} {cache:?} was refused: "));
        let (name, url) = (&path.store_path, path.target());
        let what = format!("the upload of {name} to {prefix}{url} ");
        assert!(line.contains(&what), "{line}");
    }
    // A token that may only pin.
    let pins = site.token(&["--name", "pinner", "--rights", "pin"]);
    assert_eq!(
        server.put(&pins, &path.file_target(), &path.file).status,
        403
    );
    let line = server
        .process
        .wait_for("with the token \"pinner\" from 127.0.0.1");
    assert!(line.contains("may not push"), "{line}");
}

fn refused(reason: &str) -> String {
    format!("samovar_uploads_refused_total{{reason=\"{reason}\"}}")
}

#[expect(clippy::cast_precision_loss, reason = "the lengths are small")]
fn number(len: usize) -> f64 {
    len as f64
}

#[test]
fn uploads_are_counted_by_kind_result_and_reason() {
    let site = Site::new();
    let (first, second) = (MadePath::new("first"), MadePath::new("second"));
    // Each path counts 4 KiB besides its file.
    let quota = first.file.len() + second.file.len() + 2 * 4096 - 1;
    site.configure_empty(&format!("uploads.quota = {quota}\n"));
    let watched = Watched::start(&site);
    let (server, token) = (&watched.server, site.token(&[]));
    server.publish(&token, &first);
    // Three refusals: no token, above the quota, and a narinfo whose NAR was not sent.
    let send = |token: &str, target: &str, body: &[u8]| server.put(token, target, body).status;
    assert_eq!(send("", &first.file_target(), &first.file), 401);
    assert_eq!(send(&token, &second.file_target(), &second.file), 413);
    let narinfo = second.narinfo();
    assert_eq!(send(&token, &second.target(), narinfo.as_bytes()), 409);
    let samples = watched.samples();
    let of = |kind: &str, result: &str| {
        let labels = format!("{{kind=\"{kind}\",result=\"{result}\"}}");
        format!("samovar_uploads_total{labels}")
    };
    let received = number(first.file.len() + second.file.len());
    let verified = number(first.nar.len() + second.nar.len());
    for (sample, expected) in [
        (&*of("nar", "accepted"), 1.0),
        (&*of("nar", "refused"), 1.0),
        (&*of("nar", "aborted"), 0.0),
        (&*of("narinfo", "accepted"), 1.0),
        (&*of("narinfo", "refused"), 1.0),
        (&*of("log", "accepted"), 0.0),
        (&*refused("token"), 1.0),
        (&*refused("quota"), 1.0),
        (&*refused("missing_file"), 1.0),
        (&*refused("busy"), 0.0),
        ("samovar_upload_received_bytes_total", received),
        ("samovar_upload_verified_bytes_total", verified),
        ("samovar_upload_verification_seconds_count", 2.0),
        ("samovar_upload_commit_seconds_count", 1.0),
        ("samovar_upload_commit_paths_sum", 1.0),
        ("samovar_upload_commit_queue_paths", 0.0),
        ("samovar_uploads_running", 0.0),
        ("samovar_uploads_waiting", 0.0),
    ] {
        assert_eq!(
            samples.get(sample),
            Some(&expected),
            "{sample}: {samples:#?}"
        );
    }
    let limit = "samovar_storage_quota_bytes{cache=\"default\"}";
    watched.await_sample(limit, number(quota));
    let used = "samovar_storage_quota_used_bytes{cache=\"default\"}";
    watched.await_sample(used, number(first.file.len() + 4096));
    watched.await_sample("samovar_storage_paths{cache=\"default\"}", 1.0);
    let status = watched.status();
    for part in [
        "1 NAR accepted, 1 NAR refused, 1 narinfo accepted, 1 narinfo refused",
        "reasons of refusals: token 1, missing file 1, quota 1",
        "cache default: 1 path,",
        "of its quota of",
        "collector: no complete run yet",
    ] {
        assert!(status.contains(part), "{part}: {status}");
    }
    let page = watched.get("/status");
    assert!(page.contains("missing file 1"), "{page}");
}

#[test]
fn the_paths_of_a_push_are_counted_like_single_uploads() {
    let site = Site::new();
    let watched = Watched::start(&site);
    let token = secret_file(site.dir(), "token", &site.token(&[]));
    let mut push = samovar();
    push.args(["push", &watched.server.url(), "--store", &sample_store()]);
    push.arg("--token-file")
        .arg(token)
        .arg(sample("self_reference"));
    output(&mut push);
    let samples = watched.samples();
    let accepted = |kind: &str| {
        let labels = format!("{{kind=\"{kind}\",result=\"accepted\"}}");
        samples[&format!("samovar_uploads_total{labels}")]
    };
    assert!(accepted("nar") >= 1.0, "{samples:#?}");
    assert!(
        (accepted("narinfo") - accepted("nar")).abs() < 0.5,
        "{samples:#?}"
    );
    assert!(samples["samovar_upload_received_bytes_total"] > 0.0);
    assert!(samples["samovar_upload_verified_bytes_total"] > 0.0);
}

/// Hits and misses are those of clients that look for paths. A client that pushes asks for each
/// path before it uploads it, and is not one of them.
#[test]
fn pushes_are_no_hits_and_no_misses() {
    let site = Site::new();
    let watched = Watched::start(&site);
    let (token, path) = (site.token(&[]), MadePath::new("pushed"));
    let below = |target: String| format!("/upload{target}");
    let head = |target: &str| watched.server.request("HEAD", target, &token).status;
    assert_eq!(head(&below(path.target())), 404);
    let file = watched
        .server
        .put(&token, &below(path.file_target()), &path.file);
    assert_eq!(file.status, 200, "{}", file.text());
    let target = below(path.target());
    let narinfo = watched.server.put(&token, &target, path.narinfo());
    assert_eq!(narinfo.status, 200, "{}", narinfo.text());
    assert_eq!(head(&below(path.target())), 200);
    // The same without the prefix, and two requests of clients that look for paths.
    watched
        .server
        .publish(&token, &MadePath::new("at-the-root"));
    watched.server.assert_serves(&path);
    watched.server.assert_lacks(&MadePath::new("absent"));
    watched.await_sample("samovar_narinfo_hits_total{cache=\"default\"}", 1.0);
    watched.await_sample("samovar_narinfo_misses_total{cache=\"default\"}", 1.0);
    let status: Value = serde_json::from_str(&watched.get("/status.json")).expect("is JSON");
    assert!(!status["top_missing"].to_string().contains(path.hash_part()));
}

#[test]
fn the_collector_and_lost_nars_are_reported() {
    let site = Site::new();
    let watched = Watched::start(&site);
    let (server, token) = (&watched.server, site.token(&[]));
    let (kept, lost) = (MadePath::new("kept"), MadePath::new("lost"));
    server.publish(&token, &kept);
    server.publish(&token, &lost);
    watched.await_sample("samovar_storage_nars", 2.0);
    let last = "samovar_collector_last_success_timestamp_seconds";
    assert!(!watched.samples().contains_key(last));
    let sql = format!(
        "update nar set state = 3 where id = \
         (select nar_id from path where name = '{}')",
        &lost.store_path.rsplit('/').next().expect("has a name")[33..]
    );
    site.sql(&sql);
    let mut pin = samovar();
    pin.args(["pin", "add", "main", &kept.store_path, "--storage"]);
    output(pin.arg(site.storage()));
    // Runs of the collector in another process count as well.
    output(samovar().args(["gc", "--storage"]).arg(site.storage()));
    watched.await_sample("samovar_storage_lost_nars", 1.0);
    watched.await_sample("samovar_storage_pins", 1.0);
    eventually("the run is reported", || {
        watched.samples().contains_key(last)
    });
    let status = watched.status();
    assert!(status.contains(", 1 LOST\n"), "{status}");
    assert!(status.contains("collector: last run "), "{status}");
    let json: Value = serde_json::from_str(&watched.get("/status.json")).expect("is JSON");
    assert_eq!(json["storage"]["totals"]["lost_count"], 1);
}

/// Without a storage, a server has none of these metrics, and `samovar status` does not mention
/// uploads.
#[test]
fn a_server_without_a_storage_reports_none() {
    let site = Site::new();
    let config = fs::read_to_string(site.config()).expect("reads the configuration");
    let lines = config.lines().filter(|line| !line.starts_with("storage"));
    let config: String = lines.map(|line| format!("{line}\n")).collect();
    fs::write(site.config(), config).expect("writes the configuration");
    let watched = Watched::start(&site);
    let names: Vec<String> = watched.samples().into_keys().collect();
    let is_upload = |name: &&String| {
        let prefixes = ["samovar_upload", "samovar_storage", "samovar_collector"];
        prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    assert_eq!(names.iter().find(is_upload), None);
    assert!(!watched.status().contains("uploads"));
}

#[test]
fn the_backlog_of_a_spool_is_shown() {
    let dir = tempfile::tempdir().expect("makes a directory");
    let mut hook = samovar();
    hook.args(["hook", "--spool"]).arg(dir.path());
    output(hook.env("OUT_PATHS", "/nix/store/zs83x50c7jbs0hj70ivx7ykckxh2zzl5-a"));
    let status = |arguments: &[&str]| {
        let mut status = samovar();
        status.args(["status", "--spool"]).arg(dir.path());
        output(status.args(arguments))
    };
    let text = status(&[]);
    assert!(
        text.contains(": 1 build waiting, the oldest for "),
        "{text}"
    );
    let json: Value = serde_json::from_str(&status(&["--json"])).expect("is JSON");
    assert_eq!(json["spool"]["waiting_count"], 1);
}

fn rig(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rig");
    root.join(path)
}

fn promtool(arguments: &[&str], files: &[PathBuf]) {
    output(Command::new("promtool").args(arguments).args(files));
}

#[test]
fn alerts_pass_their_tests() {
    promtool(&["check", "rules"], &[rig("prometheus/uploads.yml")]);
    promtool(&["test", "rules"], &[rig("prometheus/uploads.test.yml")]);
}

/// Every metric in an alert or on the dashboard exists, and every metric is on the dashboard.
#[test]
fn alerts_and_dashboard_use_existing_metrics() {
    let site = Site::new();
    site.configure_empty("uploads.quota = 1\n");
    let watched = Watched::start(&site);
    output(samovar().args(["gc", "--storage"]).arg(site.storage()));
    let last = "samovar_collector_last_success_timestamp_seconds";
    eventually("the run is reported", || {
        watched.samples().contains_key(last)
    });
    let name = |sample: &String| sample.split('{').next().unwrap_or_default().to_owned();
    let there: BTreeSet<String> = watched.samples().keys().map(name).collect();
    let board = fs::read_to_string(rig("grafana/dashboards/uploads.json")).expect("is there");
    let rules = fs::read_to_string(rig("prometheus/uploads.yml")).expect("is there");
    let on_board = metrics_in(&board);
    let rules = rules.lines().filter(|line| !line.contains("- name:"));
    let asked: BTreeSet<String> = rules.flat_map(metrics_in).chain(on_board.clone()).collect();
    // This metric exists only after the server's first run of the collector.
    let later = "samovar_collector_last_duration_seconds";
    let missing: Vec<_> = asked
        .difference(&there)
        .filter(|name| *name != later)
        .collect();
    assert!(asked.len() > 25 && missing.is_empty(), "{missing:?}");
    let prefixes = ["samovar_upload", "samovar_storage", "samovar_collector"];
    let is_ours = |name: &&String| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let shown_nowhere: Vec<_> = there.difference(&on_board).filter(is_ours).collect();
    assert!(shown_nowhere.is_empty(), "on no panel: {shown_nowhere:?}");
}

/// Returns the names of the metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_other = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let words = text.split(is_other);
    let is_metric = |word: &&str| word.starts_with("samovar_") || word.starts_with("process_");
    words.filter(is_metric).map(str::to_owned).collect()
}
