//! A server that is hardly used does not read the hash parts of its store, however large that is.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;
use std::time::Duration;

use support::{OwnStore, ServerProcess, eventually, local, nix_serve, raw};
use testkit::sqlite::run as sqlite;
use testkit::wait::holds_within;

/// Longer than the interval of any background thread that looks at the store.
const IDLE_TIME: Duration = Duration::from_millis(1200);

fn path_count(admin: SocketAddr) -> f64 {
    let answer = raw(
        admin,
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    );
    let body = String::from_utf8(answer.body).unwrap();
    let value = |line: &str| line.strip_prefix("samovar_catalog_paths ")?.parse().ok();
    body.lines().find_map(value).unwrap()
}

#[test]
fn a_large_catalog_is_loaded_after_a_hundred_requests() {
    let store = OwnStore::new();
    let path = store.add_file("asked", b"asked for");
    // More rows than one request reads.
    sqlite(
        &store.database(),
        "with recursive rows (number) as
             (select 1 union all select number + 1 from rows limit 9000)
         insert into ValidPaths (path, hash, registrationTime, narSize)
         select printf('/nix/store/%032d-filler', number),
             'sha256:' || printf('%064d', number), 1, 120
         from rows;",
    );
    let mut command = nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let server = ServerProcess::start(command.args(["--store", &local(store.root())]));
    let line = server.wait_for("metrics and status on http://");
    let admin: SocketAddr = line.rsplit("//").next().unwrap().parse().unwrap();

    assert_eq!(server.get("/nix-cache-info").status, 200);
    assert_eq!(server.narinfo(&path).status, 200);
    assert!(!holds_within(IDLE_TIME, || path_count(admin) > 0.0));
    for _ in 0..100 {
        assert_eq!(server.narinfo(&path).status, 200);
    }
    eventually("the catalog is loaded", || path_count(admin) > 9000.0);

    let later = store.add_file("later", b"added later");
    assert_eq!(server.narinfo(&later).status, 200);
}
