//! All processes of `rig/rig.py` end with it, however it ends, and leave no files. Every resource
//! has an alert, and the dashboards are complete.
#![expect(
    clippy::unwrap_used,
    reason = "clippy allows it only inside functions marked as tests"
)]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::{PATIENCE, wait_until};
use swarm::Plan;
use tempfile::TempDir;

/// Returns a command that runs `rig.py`.
fn rig() -> Command {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rig/rig.py");
    let mut command = Command::new("python3");
    command.arg("-B").arg(program);
    command
}

/// A running rig. Its processes inherit an environment variable by which the test finds them.
struct Rig {
    child: Child,
    folder: Rc<TempDir>,
}

impl Rig {
    /// Starts the rig with kettles and the exporters that are installed, but without load.
    fn up(options: &[&str]) -> Self {
        Self::up_in(Rc::new(tempfile::tempdir().unwrap()), options)
    }

    /// Starts the rig in the directory of an earlier one.
    fn up_in(folder: Rc<TempDir>, options: &[&str]) -> Self {
        // PostgreSQL's directory inside it belongs to another user.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        fs::set_permissions(folder.path(), mode).unwrap();
        let mut command = rig();
        command.args(["up", "kettles", "--locust", "none"]);
        command.args(["--binary", env!("CARGO_BIN_EXE_kettles"), "--data"]);
        command.arg(folder.path().join("data")).args(options);
        command.env("TMPDIR", folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        Self { child, folder }
    }

    /// Returns the table of addresses, which the rig prints when everything runs.
    fn table(&mut self) -> Vec<(String, String)> {
        let mut rows = Vec::new();
        for line in BufReader::new(self.child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let mut columns = line.split("  ").filter(|it| !it.is_empty());
            let name = columns.next().unwrap().to_owned();
            let is_last = name == "prometheus";
            rows.push((name, columns.next().unwrap().trim().to_owned()));
            if is_last {
                return rows;
            }
        }
        let mut said = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        unreachable!("it has not come up: {said}");
    }

    /// Returns the names of the rig's processes and their descendants.
    fn programs(&self) -> Vec<String> {
        self.processes().into_iter().map(|(_, name)| name).collect()
    }

    /// Returns the names and PIDs of the rig's processes and their descendants.
    fn processes(&self) -> Vec<(String, String)> {
        let mark = format!("TMPDIR={}", self.folder.path().display());
        let mut processes = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().map(|it| it.unwrap().path()) {
            let environment = fs::read(entry.join("environ")).unwrap_or_default();
            let is_marked = environment
                .split(|it| *it == 0)
                .any(|it| it == mark.as_bytes());
            let name = fs::read_to_string(entry.join("comm")).unwrap_or_default();
            let pid = entry.file_name().unwrap().to_str().unwrap().to_owned();
            if is_marked && pid != self.child.id().to_string() {
                processes.push((pid, name.trim().to_owned()));
            }
        }
        processes
    }

    fn signal(&self, signal: &str) {
        kill(signal, &self.child.id().to_string());
    }

    /// Returns the files in the rig's directory, except its own files and logs.
    fn left(&self) -> Vec<String> {
        let names = fs::read_dir(self.folder.path()).unwrap();
        let names = names.map(|it| it.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "data").collect()
    }

    /// Waits until no process runs and PostgreSQL's directory is removed.
    fn gone(mut self) -> String {
        self.child.wait().unwrap();
        wait_until("all programs have ended", || self.programs().is_empty());
        assert_eq!(self.left(), [""; 0]);
        let mut said = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        said
    }
}

fn kill(signal: &str, pid: &str) {
    let sent = Command::new("kill").args(["-s", signal, pid]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn processes_end_when_the_rig_is_terminated() {
    let mut rig = Rig::up(&["--postgresql", "--server-processes", "2"]);
    let rows = rig.table();
    let names: Vec<_> = rows.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["postgresql", "live", "server", "prometheus"]);
    let server = rows[2].1.trim_start_matches("http://").parse().unwrap();
    let answer = support::Client::connect(server).get("/statistics", None);
    assert_eq!(answer.status, 200);
    // Prometheus scrapes both processes individually.
    let config = fs::read(rig.folder.path().join("data/prometheus.yml")).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    let job = &config["scrape_configs"][0];
    assert_eq!(job["job_name"], "kettles");
    let targets = job["static_configs"][0]["targets"].as_array().unwrap();
    let addrs: Vec<_> = targets
        .iter()
        .map(|it| it.as_str().unwrap().parse().unwrap())
        .collect();
    let number = |addr| {
        let answer = support::Client::connect(addr).get("/metrics", None);
        let text = answer.text();
        let mut lines = text.lines();
        let value = lines.find_map(|it| it.strip_prefix("kettles_process_number "));
        value.unwrap().to_owned()
    };
    let numbers: Vec<_> = addrs.into_iter().map(number).collect();
    assert_eq!(numbers, ["1", "2"]);
    let programs = rig.programs();
    for name in ["postgres", "kettles", "prometheus"] {
        assert!(programs.iter().any(|it| it == name), "{name}: {programs:?}");
    }
    rig.signal("TERM");
    rig.gone();
}

/// If the rig is killed, its watcher process cleans up.
#[test]
fn processes_end_when_the_rig_is_killed() {
    let mut rig = Rig::up(&["--postgresql"]);
    rig.table();
    assert_eq!(rig.left().len(), 1);
    rig.signal("KILL");
    rig.gone();
}

/// If both the rig and its watcher are killed, all processes end, and the next rig removes the
/// directory of this one, and no other.
#[test]
fn the_next_rig_removes_files_of_a_killed_rig() {
    let mut rig = Rig::up(&["--postgresql"]);
    rig.table();
    let left = rig.left();
    assert_eq!(left.len(), 1);
    let (watcher, _) = rig
        .processes()
        .into_iter()
        .find(|(_, it)| it.starts_with("python"))
        .unwrap();
    kill("KILL", &watcher);
    rig.signal("KILL");
    rig.child.wait().unwrap();
    wait_until("all programs have ended", || rig.programs().is_empty());
    assert_eq!(rig.left(), left);
    // The directory of a running rig, and a directory that no rig owns, must stay.
    let others = ["rig-postgresql-alive", "rig-postgresql-strange"];
    let [alive, strange] = others.map(|name| rig.folder.path().join(name));
    fs::create_dir(&alive).unwrap();
    fs::create_dir(&strange).unwrap();
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let start = stat
        .rsplit_once(") ")
        .unwrap()
        .1
        .split(' ')
        .nth(19)
        .unwrap();
    fs::write(
        alive.join("owner"),
        format!("{} {start}\n", std::process::id()),
    )
    .unwrap();
    let mut next = Rig::up_in(Rc::clone(&rig.folder), &["--postgresql"]);
    next.table();
    let mut now = next.left();
    now.sort();
    assert!(now.len() == 3 && !now.contains(&left[0]), "{now:?}");
    fs::remove_dir_all(alive).unwrap();
    fs::remove_dir(strange).unwrap();
    next.signal("TERM");
    next.gone();
}

#[test]
fn processes_end_when_one_of_them_fails() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let rig = Rig::up(&["--port", &format!("prometheus={port}")]);
    let said = rig.gone();
    assert!(said.contains("rig: prometheus has ended"), "{said}");
}

/// Runs `during` while ten kettles send requests to `addr`.
fn under_load<T>(addr: SocketAddr, during: impl FnOnce() -> T) -> T {
    let (is_over, host) = (AtomicBool::new(false), addr.to_string());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (period, plan) = (Duration::from_secs(1), Plan::new(addr, 10, 600 * PATIENCE));
            let fleet = swarm::Kettles::new(&host, 10, period, period, 1);
            swarm::run(&plan, fleet, &is_over, &mut |_, _| {}).unwrap();
        });
        let outcome = during();
        is_over.store(true, Ordering::Relaxed);
        outcome
    })
}

/// `board` draws every panel of the dashboards with the values of the running Prometheus, and says
/// which panels have none.
#[test]
fn the_board_shows_the_panels_of_a_running_rig() {
    let mut running = Rig::up(&["--scrape", "1"]);
    let rows = running.table();
    let url = |name| rows.iter().find(|row| row.0 == name).unwrap().1.clone();
    let server = url("server").trim_start_matches("http://").parse().unwrap();
    let prometheus = url("prometheus").replace("/alerts", "");
    let file = running.folder.path().join("data/board.html");
    let write = |prometheus: &str| {
        let mut command = rig();
        command.args(["board", "kettles", "--minutes", "1", "--scrape", "1"]);
        command.args(["--prometheus", prometheus, "--output"]);
        command.arg(&file).output().unwrap()
    };
    let mut page = String::new();
    under_load(server, || {
        // The alert on lost scrapes has no panel; the panels of the kettles have values soon.
        wait_until("the rates have values", || {
            let output = write(&prometheus);
            assert!(output.status.success(), "{output:?}");
            page = fs::read_to_string(&file).unwrap();
            let has_rate =
                |name: &str| page.contains(name) && !page.contains(&format!("{name}0/s"));
            has_rate("command: ") && has_rate("stored: ")
        });
    });
    for title in ["Samovar: kettles", "Load Test", "Samovar: utilisation"] {
        assert!(page.contains(&format!("<h2>{title}")), "{title}");
    }
    for name in ["kettles", "original", "use"] {
        let path = format!("../../rig/grafana/dashboards/{name}.json");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let board: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        // Rows without any data are only named.
        let panels = board["panels"].as_array().unwrap().iter();
        for panel in panels.filter(|it| name == "original" || it["type"] == "row") {
            let title = panel["title"].as_str().unwrap();
            assert!(page.contains(title), "{title}");
        }
    }
    assert!(page.matches("<svg").count() > 20, "{page}");
    assert!(page.contains("no data"), "{page}");
    assert!(!page.contains("Prometheus refuses"), "{page}");
    assert!(!page.contains("<script") && !page.contains("://"), "{page}");
    // A server that is no Prometheus, and none at all.
    for (other, expected) in [
        (url("server"), "as Prometheus does"),
        ("http://127.0.0.1:1".into(), "no answer from Prometheus at"),
    ] {
        let output = write(&other);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains(expected) && said.lines().count() == 1,
            "{said}"
        );
    }
    running.signal("TERM");
    running.gone();
}

/// Two servers behind haproxy share the load and one database, in which the rig has added a trigger
/// that makes it the bottleneck.
#[test]
fn two_servers_behind_a_balancer_share_a_database() {
    let options = ["--postgresql", "--servers", "2", "--bottleneck", "database"];
    let mut running = Rig::up(&options);
    let rows = running.table();
    let url = |name| rows.iter().find(|row| row.0 == name).unwrap().1.clone();
    let server = url("server").trim_start_matches("http://").parse().unwrap();
    for second in 0..20 {
        let time = format!("2026-11-29T18:30:{second:02}Z");
        let body = support::measurement(&time, 50, 95.5, 700);
        let device = "0f8fad5b-d9cb-469f-a165-70867728950e";
        let mut client = support::Client::connect(server);
        assert_eq!(client.post("/measurement", Some(device), &body).status, 200);
    }
    // Each request may go to another server, and both know all measurements.
    let config = fs::read(running.folder.path().join("data/prometheus.yml")).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    let jobs = config["scrape_configs"].as_array().unwrap();
    let targets = |name: &str| {
        let job = jobs.iter().find(|job| job["job_name"] == name).unwrap();
        let targets = job["static_configs"][0]["targets"].as_array().unwrap();
        let addrs = targets
            .iter()
            .map(|it| it.as_str().unwrap().parse().unwrap());
        addrs.collect::<Vec<SocketAddr>>()
    };
    let metrics = |addr| support::Client::connect(addr).get("/metrics", None).text();
    let servers = targets("kettles");
    assert_eq!(servers.len(), 2);
    for addr in servers {
        let (text, zero) = (metrics(addr), "app_measurements_total 0\n");
        assert!(!text.contains(zero), "{text}");
        let answer = support::Client::connect(addr).get("/statistics", None);
        let statistics: serde_json::Value = serde_json::from_str(&answer.text()).unwrap();
        assert_eq!(statistics["statsMeasurementCount"], 20);
    }
    let text = metrics(targets("haproxy")[0]);
    assert!(
        text.contains(r#"haproxy_server_http_responses_total{proxy="servers""#),
        "{text}"
    );
    // The command that the rig prints for the database.
    let mut psql = Command::new("sh");
    let query = "SELECT count(*) FROM pg_trigger WHERE tgname = 'check_measurement'";
    psql.args(["-c", &format!("{} -Atc \"{query}\"", url("postgresql"))]);
    let output = psql.output().unwrap();
    let triggers: u32 = String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(triggers >= 1);
    running.signal("TERM");
    running.gone();
}

/// `check` leaves out the panels of parts that do not run, and finds all others to have data.
#[test]
fn check_leaves_out_the_panels_of_missing_parts() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    drop(listener);
    let mut command = rig();
    command.args(["check", "kettles", "--locust", "none", "--scrape", "1"]);
    command.args(["--binary", env!("CARGO_BIN_EXE_kettles"), "--port"]);
    command.arg(format!("server={}", addr.port()));
    command.arg("--data").arg(folder.path().join("data"));
    let child = command.env("TMPDIR", folder.path());
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    wait_until("the server runs", || TcpStream::connect(addr).is_ok());
    let output = under_load(addr, || child.wait_with_output().unwrap());
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains(" left out, 0 faults"), "{said}");
}

#[test]
fn wrong_options_are_errors_of_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let inside = file.join("data");
    for (options, expected) in [
        (["--port", "server=abc"], "the port of server is 'abc'"),
        (["--port", "server=70000"], "not a number from 1 to 65535"),
        (["--port", "8080"], "write NAME=PORT"),
        (["--port", "web=8080"], "write NAME=PORT"),
        (
            ["--binary", "/nonexistent"],
            "/nonexistent is not an executable file",
        ),
        (
            ["--binary", file.to_str().unwrap()],
            "is not an executable file",
        ),
        (["--users", "0"], "'0' is not a number of at least 1"),
        (
            ["--data", inside.to_str().unwrap()],
            "cannot create the data folder",
        ),
    ] {
        let output = rig()
            .args(["up", "kettles"])
            .args(options)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// Alerts fire exactly when they should, each row of the dashboard `use` has an alert, and the
/// dashboards equal the output of their generator.
#[test]
fn alerts_and_dashboards_pass_their_checks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../rig");
    for command in [
        "promtool check rules prometheus/use.yml prometheus/kettles.yml",
        "promtool test rules prometheus/rig.test.yml",
        "python3 -B grafana/make.py --check",
        "python3 -B check_dashboards.py",
    ] {
        let mut words = command.split(' ');
        let mut program = Command::new(words.next().unwrap());
        let output = program.args(words).current_dir(&folder).output();
        let output = output.expect("there is promtool: run `make setup-test`");
        assert!(output.status.success(), "{command}: {output:?}");
    }
}
