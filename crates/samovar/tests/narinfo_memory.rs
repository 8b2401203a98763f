//! Memory beyond that for rendered narinfos holds packed ones, which are sent without a look-up in
//! the database.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;

use support::{Server, samovar};
use testkit::eventually;
use testkit::http1::{Connection, exchange};
use testkit::nix::{OwnStore, local};
use testkit::sqlite;

/// Number of paths: rendered, their narinfos take more than 32 MiB.
const COUNT: usize = 45_000;

/// Number of narinfos on which the server trains its dictionary, rounded up.
const SAMPLE_COUNT: usize = 2000;

/// Registers paths without files; returns their hash parts.
fn register(store: &OwnStore) -> Vec<String> {
    // All digits of base 16 except `e` are digits of base 32, too.
    let sql = format!(
        "with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < \
         {COUNT}) insert into ValidPaths (path, hash, registrationTime, narSize) select \
         '/nix/store/' || replace(lower(hex(randomblob(16))), 'e', 'g') || '-path-' || n, \
         'sha256:' || lower(hex(randomblob(32))), n, n from numbers; select substr(path, 12, 32) \
         from ValidPaths order by id;"
    );
    let rows = sqlite::run(&store.database(), &sql);
    rows.lines().map(str::to_owned).collect()
}

/// Requests narinfos on one connection; returns their texts.
fn narinfos(address: SocketAddr, hash_parts: &[String]) -> Vec<String> {
    let mut connection = Connection::connect(address);
    let texts = hash_parts.iter().map(|hash_part| {
        let response = connection.get(&format!("/{hash_part}.narinfo"));
        assert_eq!(response.status, 200, "{hash_part}");
        response.text()
    });
    texts.collect()
}

/// Returns the value of a metric of the packed narinfos.
fn metric(address: SocketAddr, name: &str) -> u64 {
    let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let text = exchange(address, head).text();
    let sample = format!("{name}{{cache=\"packed_narinfos\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&sample));
    value.expect("the metric is there").parse().unwrap()
}

#[test]
fn narinfos_beyond_the_rendered_ones_are_sent_from_memory() {
    let store = OwnStore::new();
    let hash_parts = register(&store);
    assert_eq!(hash_parts.len(), COUNT);
    let mut command = samovar();
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
    ]);
    command.args([
        "--store",
        &local(store.root()),
        "--narinfo-memory",
        "64 MiB",
    ]);
    let server = Server::spawn(&mut command);
    let address = server.wait_for_address();
    let line = server.wait_for("metrics and status on http://");
    let admin: SocketAddr = line.rsplit("//").next().unwrap().trim().parse().unwrap();

    // The dictionary is trained on the first narinfos, in the background.
    narinfos(address, &hash_parts[..SAMPLE_COUNT]);
    let mut next = SAMPLE_COUNT;
    eventually("narinfos are packed", || {
        next += 1;
        narinfos(address, &hash_parts[next - 1..next]);
        metric(admin, "samovar_cache_entries") > 0
    });
    let before = narinfos(address, &hash_parts);
    let hits = || metric(admin, "samovar_cache_hits_total");
    let hits_before = hits();
    let after = narinfos(address, &hash_parts);
    assert!(after == before);
    assert!(
        hits() - hits_before > COUNT as u64 / 10,
        "{}",
        hits() - hits_before
    );

    // After a commit, the narinfo is that of the new row.
    let change = format!(
        "update ValidPaths set narSize = 77777 where path like '/nix/store/{}%'",
        hash_parts[0]
    );
    sqlite::run(&store.database(), &change);
    let [changed] = narinfos(address, &hash_parts[..1]).try_into().unwrap();
    assert_eq!(
        changed,
        before[0].replace("NarSize: 1\n", "NarSize: 77777\n")
    );
}
