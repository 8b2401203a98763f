//! Without `--login-secret`, any UUID identifies a kettle, as in the original server. With it, only
//! UUIDs issued at a login do.

mod support;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use support::{Kettles, measurement};
use swarm::Plan;

const KETTLE: &str = "0f8fad5b-d9cb-469f-a165-70867728950e";
const TIME: &str = "2017-12-24T18:30:00Z";

#[test]
fn with_a_secret_only_names_issued_by_a_login_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "short").unwrap();
    let options = ["--login-secret", secret.to_str().unwrap()];
    let mut refused = Kettles::command(folder.path());
    assert!(!refused.args(options).status().unwrap().success());

    std::fs::write(&secret, "nobody knows this one\n").unwrap();
    let kettles = Kettles::start(folder.path(), &options);
    let good = kettles.login();
    let body = measurement(TIME, 50, 95.5, 700);
    let gateway = format!(
        "{body}\n{}\n",
        body.replace('{', &format!(r#"{{"id":"{KETTLE}","#))
    );
    let socket = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                  Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    let ask = |name: &str, method: &str, path: &str, field: &str, body: &str| {
        let mut client = kettles.client();
        let fields: &[&str] = if field.is_empty() { &[] } else { &[field] };
        client.send(method, path, Some(name), fields, body);
        let answer = client.receive();
        (answer.status, answer.text())
    };
    for (method, path, field, body) in [
        ("GET", "/command", "", ""),
        ("POST", "/measurement", "", body.as_str()),
        ("POST", "/measurements", "", body.as_str()),
        ("GET", "/kettle", socket, ""),
    ] {
        let (status, said) = ask(KETTLE, method, path, field, body);
        assert_eq!((status, said.as_str()), (403, "Invalid Cookie"), "{path}");
        let (status, said) = ask(&good, method, path, field, body);
        assert!(matches!(status, 200 | 101), "{path}: {status} {said}");
    }
    // A gateway needs a valid identity of the kettle too.
    assert_eq!(ask(&good, "POST", "/measurements", "", &gateway).0, 403);
    assert_eq!(kettles.statistics()["statsNumDevices"], 1);

    // The identity stays valid after a restart with the same secret, and is invalid under another
    // secret.
    kettles.kill();
    let kettles = Kettles::start(folder.path(), &options);
    assert_eq!(kettles.client().get("/command", Some(&good)).status, 200);
    kettles.kill();
    std::fs::write(&secret, "nobody knows that one\n").unwrap();
    let kettles = Kettles::start(folder.path(), &options);
    assert_eq!(kettles.client().get("/command", Some(&good)).status, 403);
}

/// The kettles of the load generator log in as real ones do.
#[test]
fn simulated_kettles_can_log_in() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "nobody knows this one\n").unwrap();
    let kettles = Kettles::start(folder.path(), &["--login-secret", secret.to_str().unwrap()]);
    let period = Duration::from_secs(2);
    let plan = Plan::new(kettles.addr, 50, period);
    let host = kettles.addr.to_string();
    let fleet = || swarm::Kettles::new(&host, 50, period, period, 1);
    let run = |fleet| swarm::run(&plan, fleet, &AtomicBool::new(false), &mut |_, _| {}).unwrap();
    let tally = run(fleet().with_login());
    assert_eq!(tally.failures.sum(), 0, "{:?}", tally.failures);
    let counts: Vec<_> = tally.operations.iter().map(|it| it.latency.len()).collect();
    let [commands, measurements, logins] = counts[..] else {
        panic!("{counts:?}");
    };
    assert_eq!(commands + measurements + logins, 100);
    assert!(logins >= 50 && commands + measurements > 0, "{counts:?}");
    assert_eq!(kettles.statistics()["statsMeasurementCount"], measurements);
    let tally = run(fleet());
    assert_eq!((tally.answered(), tally.failures.wrong), (0, 100));
}
