//! Tests the load generator against servers that stall, fail, close connections or are full:
//! every request that was due is counted, with its latency from the due time or under the right
//! failure.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use swarm::{Kettles, Plan, Tally};

const GOOD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
const REFUSED: &[u8] = b"HTTP/1.1 503 Later\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";
const CUT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab";

/// Reads a request with its body and returns its first line; `None` at the end of the connection.
fn request(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let (mut first, mut len) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            len = value.trim().parse().unwrap();
        }
        if first.is_empty() {
            first.clone_from(&line);
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).ok()?;
    Some(first)
}

/// Starts a server that calls `answer` with the first line of each request and the connection, and
/// closes the connection when `answer` returns `false`. Its threads run until the process ends.
fn serve(answer: impl Fn(&str, &mut TcpStream) -> bool + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || {
                let mut stream = BufReader::new(stream.unwrap());
                while let Some(line) = request(&mut stream)
                    && answer(&line, stream.get_mut())
                {}
            });
        }
    });
    address
}

fn say(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    stream.write_all(bytes).is_ok()
}

/// Sends 200 requests in one second from 100 kettles and returns the results.
fn kettles(address: SocketAddr, connections: usize, timeout: Duration) -> Tally {
    let second = Duration::from_secs(1);
    let fleet = Kettles::new(&address.to_string(), 100, second, second, 1);
    let plan = Plan {
        timeout,
        ..Plan::new(address, connections, second)
    };
    swarm::run(&plan, fleet, &AtomicBool::new(false), &mut |_, _| {}).unwrap()
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn every_due_request_is_sent_and_answered() {
    let sources = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&sources);
    let address = serve(move |line, stream| {
        seen.lock()
            .unwrap()
            .insert(stream.peer_addr().unwrap().ip());
        let is_known =
            line == "GET /command HTTP/1.1\r\n" || line == "POST /measurement HTTP/1.1\r\n";
        is_known && say(stream, GOOD)
    });
    let tally = kettles(address, 100, 60 * SECOND);
    assert_eq!(tally.failures.sum(), 0, "{:?}", tally.failures);
    let counts = tally
        .operations
        .iter()
        .map(|it| (it.name, it.latency.len(), it.body_bytes));
    assert_eq!(
        counts.collect::<Vec<_>>(),
        [("command", 100, 200), ("measurement", 100, 200)]
    );
    assert_eq!(
        (tally.late.len(), tally.connections, tally.reopened),
        (200, 100, 0)
    );
    // The swarm has used nine source addresses.
    let expected: Vec<IpAddr> = (1..=9).map(|last| [127, 0, 0, last].into()).collect();
    assert_eq!(Vec::from_iter(sources.lock().unwrap().clone()), expected);
}

/// A stall of the server delays all requests that are due during it, even those that wait for an
/// idle connection. The server stalls for half a second and half of the 200 requests are due in it,
/// so their latencies are spread evenly between 0 and 500 ms. If latency were counted from the time
/// of sending, only one request per connection, ten in all, would show the stall.
#[test]
fn a_stall_delays_every_request_that_is_due_during_it() {
    let began = Arc::new(Mutex::new(None));
    let address = serve(move |_, stream| {
        let since = {
            let mut began = began.lock().unwrap();
            *began.get_or_insert_with(Instant::now)
        };
        let stall = Duration::from_millis(250)..Duration::from_millis(750);
        if stall.contains(&since.elapsed()) {
            std::thread::sleep(stall.end.saturating_sub(since.elapsed()));
        }
        say(stream, GOOD)
    });
    let tally = kettles(address, 10, 60 * SECOND);
    assert_eq!(tally.failures.sum(), 0, "{:?}", tally.failures);
    let latency = tally.latency();
    assert_eq!(latency.len(), 200);
    let above = |ms: u64| latency.count_between(ms * 1000, latency.max());
    assert!(above(100) >= 60, "{} above 100 ms", above(100));
    assert!(above(250) >= 30, "{} above 250 ms", above(250));
}

/// Response of the server, whether the server then keeps the connection open, and the counter that
/// must count the failure.
type Case = (&'static [u8], bool, fn(&Tally) -> u64);

#[test]
fn failures_are_counted_by_kind() {
    let check = |(answer, goes_on, seen): Case| {
        let address = serve(move |line, stream| {
            // Only requests for a command fail; all measurements are answered correctly.
            let answer = if line.starts_with("GET") {
                answer
            } else {
                GOOD
            };
            say(stream, answer) && (goes_on || answer == GOOD)
        });
        // A cut response on an open connection never completes, so this case waits for the timeout.
        let timeout = if answer == CUT && goes_on {
            3 * SECOND
        } else {
            60 * SECOND
        };
        // One connection for each request, because a request without a response occupies its
        // connection until the timeout.
        let tally = kettles(address, 200, timeout);
        let said = String::from_utf8_lossy(answer);
        assert_eq!(seen(&tally), 100, "{said}: {:?}", tally.failures);
        assert_eq!(tally.failures.sum(), 100, "{said}: {:?}", tally.failures);
        assert_eq!(tally.answered(), 100, "{said}");
    };
    let cases: [Case; 5] = [
        (REFUSED, true, |tally| tally.failures.refused),
        (
            b"HTTP/1.1 401 Who\r\nContent-Length: 0\r\n\r\n",
            true,
            |tally| tally.failures.wrong,
        ),
        (b"what?\r\n\r\n", true, |tally| tally.failures.malformed),
        (CUT, false, |tally| tally.failures.closed),
        (CUT, true, |tally| tally.failures.timeout),
    ];
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || check(case));
        }
    });
}

/// If the server closes the connection after each response, the swarm opens new ones and no request
/// fails.
#[test]
fn closed_connections_are_reopened() {
    let address = serve(|_, stream| {
        say(
            stream,
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
        false
    });
    let tally = kettles(address, 100, 60 * SECOND);
    assert_eq!(
        (tally.answered(), tally.failures.sum()),
        (200, 0),
        "{:?}",
        tally.failures
    );
}

/// A connection that the server refuses with 503 counts as a connection failure, and the swarm
/// pauses before it tries to connect again.
#[test]
fn connections_refused_with_503_are_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            say(
                &mut stream.unwrap(),
                b"HTTP/1.1 503 Full\r\nContent-Length: 0\r\n\r\n",
            );
        }
    });
    let tally = kettles(address, 10, SECOND / 2);
    let failures = tally.failures;
    assert!((10..=200).contains(&failures.connect), "{failures:?}");
    assert_eq!(
        (failures.malformed, tally.answered()),
        (0, 0),
        "{failures:?}"
    );
}

/// If unanswered requests occupy all connections, requests that become due are counted as unsent.
#[test]
fn requests_without_a_free_connection_are_counted_as_unsent() {
    let address = serve(|_, _| true);
    let fleet = Kettles::new("a", 100, SECOND, SECOND, 1);
    let plan = Plan {
        connections: 10,
        timeout: 2 * SECOND,
        ..Plan::new(address, 10, SECOND)
    };
    let started = Instant::now();
    let tally = swarm::run(&plan, fleet, &AtomicBool::new(false), &mut |_, _| {}).unwrap();
    let (unsent, timeout) = (tally.failures.unsent, tally.failures.timeout);
    assert_eq!((unsent, timeout), (190, 10), "{:?}", tally.failures);
    assert!(started.elapsed() < 60 * SECOND);
}

fn swarm(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarm"));
    command.args(arguments).output().unwrap()
}

/// Without a server, the errors say what to do.
#[test]
fn a_missing_server_is_an_error_that_names_the_options() {
    let output = swarm(&["kettles"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--address 127.0.0.1:8080"), "{said}");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let output = swarm(&["kettles", "--address", &address]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let expected = format!("connection refused at {address}: start the server first");
    assert!(said.contains(&expected), "{said}");
    assert!(said.contains("--address"), "{said}");
}

#[test]
fn the_json_report_and_the_exit_code_state_the_result() {
    let address = serve(|_, stream| say(stream, GOOD)).to_string();
    let file = tempfile::NamedTempFile::new().unwrap();
    let json = file.path().to_str().unwrap();
    let common = [
        "kettles",
        "--address",
        &address,
        "--count",
        "50",
        "--every",
        "1",
        "--for",
        "1",
    ];
    let output = swarm(&[&common[..], &["--json", json]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report: serde_json::Value = serde_json::from_reader(file).unwrap();
    assert_eq!(report["answered"], 100, "{report}");
    assert_eq!(report["all"]["count"], 100);
    assert_eq!(report["failures"]["closed"], 0);
    assert!(report["all"]["p99_us"].as_u64() > Some(0));
    // The 2,000 refusals miss the bound of no failures.
    let address = serve(|_, stream| say(stream, REFUSED)).to_string();
    let output = swarm(&[
        "kettles",
        "--address",
        &address,
        "--every",
        "1",
        "--for",
        "1",
    ]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said.contains("missed: 2000 failures"), "{said}");
    assert_eq!(swarm(&["kettles", "--count", "0"]).status.code(), Some(2));
    assert_eq!(
        swarm(&["kettles", "--", "/nowhere/at/all"]).status.code(),
        Some(3)
    );
}

/// The swarm stays below its descriptor limit and reports it.
#[test]
fn the_descriptor_limit_bounds_the_connections() {
    let address = serve(|_, stream| say(stream, GOOD));
    let program = env!("CARGO_BIN_EXE_swarm");
    // By default, the swarm leaves as many descriptors unused as a server with the same limit
    // needs; `--connections` overrides this.
    for (option, connections) in [("", 16), ("--connections 60", 36)] {
        let script = format!(
            "ulimit -n 100; exec {program} kettles --address {address} --count 60 --every 1 \
             --for 1 {option}"
        );
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = format!(
            "{connections} connections instead of 60: the limit of descriptors allows no more"
        );
        assert!(said.contains(&expected), "{said}");
        assert_eq!(output.status.code(), Some(0), "{said}");
    }
}

/// The goal `full` succeeds if a full server refuses further connections and goes on serving the
/// open ones. It fails if the server was never full, or if connections of the first load failed.
#[test]
fn the_goal_full_requires_that_the_server_was_full() {
    let program = env!("CARGO_BIN_EXE_swarm");
    let check = |places: usize| {
        let count = Arc::new(());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, held) = (stream.unwrap(), Arc::clone(&count));
                if Arc::strong_count(&held) > places + 1 {
                    say(&mut stream, CUT);
                    continue;
                }
                std::thread::spawn(move || {
                    let mut stream = BufReader::new(stream);
                    while request(&mut stream).is_some() && say(stream.get_mut(), GOOD) {}
                    drop(held);
                });
            }
        });
        // With 100 descriptors, the swarm opens at most 36 connections.
        let script = format!(
            "ulimit -n 100; exec {program} kettles --goal full --connections 20 --every 1 --for 1 \
             --timeout 2 --address {address}"
        );
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (code, said) = check(25);
    assert!(said.contains("5 were accepted and 11 refused"), "{said}");
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = check(1000);
    assert!(said.contains("missed: the server was never full"), "{said}");
    assert_eq!(code, Some(1), "{said}");
    // This server has too few slots for even the 20 connections of the first load.
    let (code, said) = check(15);
    assert!(
        said.contains("on the connections that were open first"),
        "{said}"
    );
    assert_eq!(code, Some(1), "{said}");
}
