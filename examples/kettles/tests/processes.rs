//! With several processes on one port, each acknowledged measurement is stored once, even if a
//! process is killed.

#![expect(
    clippy::unwrap_used,
    reason = "clippy allows these only inside functions marked as tests"
)]

mod support;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use support::fleet::Fleet;
use support::{Client, Kettles, measurement, wait_until};
use testkit::postgres::Postgres;

const KETTLE: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
const COMMAND: &str = r#"{"charge":true}"#;

/// One of the processes: its number, its PID, and its own address.
#[derive(Debug, Clone, Copy)]
struct Member {
    number: u32,
    id: u32,
    addr: SocketAddr,
}

fn next_member(kettles: &mut Kettles) -> Member {
    let line = kettles.next_line();
    let (who, addr) = line
        .strip_prefix("kettles: process ")
        .and_then(|rest| rest.split_once(") alone: http://"))
        .unwrap();
    let (number, id) = who.split_once(" (").unwrap();
    Member {
        number: number.parse().unwrap(),
        id: id.parse().unwrap(),
        addr: addr.strip_suffix("/metrics").unwrap().parse().unwrap(),
    }
}

fn statistics(addr: SocketAddr) -> serde_json::Value {
    Client::connect(addr).get("/statistics", None).json()
}

#[test]
fn several_processes_are_one_server() {
    let postgres = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "sesame").unwrap();
    let url = postgres.url();
    let (token, options) = (
        token.to_str().unwrap(),
        ["--processes=2", "--database", &url],
    );
    let mut command = Kettles::command(folder.path());
    let command = command.args(options).args(["--admin-token", token]);
    let mut kettles = Kettles::spawn(command);
    let members = [next_member(&mut kettles), next_member(&mut kettles)];
    let [one, other] = members;

    // A measurement that one process has acknowledged is visible in the other one at once.
    for (minute, member) in [one, other, one, other].iter().enumerate() {
        let body = measurement(&format!("2017-12-24T18:{minute:02}:00Z"), 50, 80.1, 700);
        let answer = Client::connect(member.addr).post("/measurement", Some(KETTLE), &body);
        assert_eq!(answer.status, 200);
        for member in members {
            let count = statistics(member.addr)["statsMeasurementCount"].as_u64();
            assert_eq!(count, Some(minute as u64 + 1));
        }
    }

    // A command given to one process is also delivered by the other one.
    let mut client = Client::connect(one.addr);
    let path = format!("/devices/{KETTLE}/command");
    client.send(
        "POST",
        &path,
        None,
        &["Authorization: Bearer sesame"],
        COMMAND,
    );
    assert_eq!(client.receive().status, 201);
    let told = |member: Member| {
        let answer = Client::connect(member.addr).get("/command", Some(KETTLE));
        answer.text().contains("\"ChargeBattery")
    };
    wait_until("the other process sends the command", || told(other));
    let body = measurement("2017-12-24T18:30:00Z", 50, 80.1, 700);
    let answer = Client::connect(other.addr).post("/measurement", Some(KETTLE), &body);
    assert_eq!(answer.status, 200);
    assert!(!told(other));
    wait_until("the command is confirmed", || !told(one));

    // One process is killed under load. A new one replaces it, and its kettles reconnect.
    let fleet = Fleet::start(kettles.addr);
    fleet.wait_for(50);
    kill(one.id);
    let new = next_member(&mut kettles);
    assert_ne!(new.id, one.id);
    // The replacement has the same number and address, for monitoring.
    assert_eq!((new.number, new.addr), (one.number, one.addr));
    for member in [new, other] {
        let text = Client::connect(member.addr).get("/metrics", None);
        let number = format!("\nkettles_process_number {}\n", member.number);
        assert!(text.text().contains(&number), "{number}");
    }
    fleet.wait_for(50);
    let sent: u64 = fleet.end().iter().sum();
    for member in [new, other] {
        assert_eq!(statistics(member.addr)["statsMeasurementCount"], sent + 5);
    }
    assert!(kettles.terminate().success());
    for member in [new, other] {
        assert!(!Path::new(&format!("/proc/{}", member.id)).exists());
    }
    let check = Command::new(env!("CARGO_BIN_EXE_kettles"))
        .args(["check", "-e", &url])
        .output();
    let check = check.unwrap();
    assert!(check.status.success(), "{check:?}");
}

fn kill(id: u32) {
    let status = Command::new("kill")
        .args(["-s", "KILL", &id.to_string()])
        .status();
    assert!(status.unwrap().success());
}

/// The processes end when the supervisor is killed.
#[test]
fn processes_end_when_their_supervisor_is_killed() {
    let postgres = Postgres::start();
    let folder = tempfile::tempdir().unwrap();
    let url = postgres.url();
    let mut command = Kettles::command(folder.path());
    let mut kettles = Kettles::spawn(command.args(["--processes=2", "--database", &url]));
    let members = [next_member(&mut kettles), next_member(&mut kettles)];
    kettles.kill();
    for member in members {
        let status = format!("/proc/{}/status", member.id);
        wait_until("the process has ended", || {
            // An orphan may remain a zombie if no process reaps it.
            std::fs::read_to_string(&status).map_or(true, |text| text.contains("State:\tZ"))
        });
    }
}

#[test]
fn several_processes_with_sqlite_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Kettles::command(folder.path());
    let output = command.arg("--processes=2").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--processes 2 needs PostgreSQL"), "{said}");
    assert!(!folder.path().join("kettles.db").exists());
}

/// If a process's own address is in use, the start fails; otherwise monitoring would read the
/// metrics of another process.
#[test]
fn a_process_address_in_use_fails_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for (port, message) in [
        (port, format!("cannot listen on 127.0.0.1:{port}")),
        (65535, "--own-port is too high".to_owned()),
    ] {
        let mut command = Kettles::command(folder.path());
        let command = command.args(["--processes=2", "--own-port", &port.to_string()]);
        let output = command
            .args(["--database", "postgresql:///nobody"])
            .output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(&message), "{said}");
    }
}
