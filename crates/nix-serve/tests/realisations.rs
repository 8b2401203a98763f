//! Realisations of content-addressed derivations are served in the formats of both old and new Nix.

mod support;
mod support_process;

use support::{OwnStore, eventually, local, sample, sample_root};
use support_process::{Connection, Process, at, serve_sample};
use testkit::sqlite::run as sqlite;

const NOT_FOUND: &str = "File not found.\n";
/// A hash part that no path has.
const ABSENT: &str = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";

#[test]
fn realisations_are_served_by_the_hash_of_a_derivation() {
    let (_server, addr) = serve_sample(&[]);
    let mut connection = Connection::connect(addr);
    let database = format!(
        "file:{}?mode=ro",
        at(&sample_root(), "nix/var/nix/db/db.sqlite")
    );
    let drv_path = sqlite(database.as_ref(), "select drvPath from Realisations");
    let out_path = sample("ca").rsplit('/').next().unwrap().to_owned();
    let expected = format!(
        "{{\"dependentRealisations\":{{}},\"id\":\"{drv_path}!out\",\"outPath\":\"{out_path}\",\
         \"signatures\":[]}}"
    );
    for path in [
        format!("/realisations/{drv_path}!out.doi"),
        format!("/realisations/{drv_path}%21out.doi"),
        format!("/realisations/{}!out.doi", drv_path.replace(':', "%3A")),
    ] {
        let reply = connection.get_and_head(&path, &[]);
        assert_eq!(
            (reply.status, reply.text().as_str()),
            (200, expected.as_str())
        );
        assert_eq!(reply.header("content-type"), Some("application/json"));
    }
    connection.check_text(&format!("/realisations/{drv_path}!dev.doi"), 404, NOT_FOUND);
    connection.check_text(&format!("/realisations/{drv_path}!out"), 404, NOT_FOUND);
    let other = drv_path.replace("sha256:", "md5:");
    connection.check_text(&format!("/realisations/{other}!out.doi"), 404, NOT_FOUND);
}

/// A newer Nix may change a table of realisations. Paths are served nevertheless, and realisations
/// are never reported as absent.
#[test]
fn a_changed_table_of_realisations_affects_no_path() {
    let store = OwnStore::new();
    let path = store.add_file("path", b"x");
    sqlite(
        &store.database(),
        "create table if not exists Realisations (id integer primary key, drvPath text, \
         outputName text, outputPath integer, signatures text); \
         alter table Realisations rename column outputPath to output",
    );
    let mut command = support::nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    let (server, addr) = Process::serving(&mut command);
    let mut connection = Connection::connect(addr);
    let realisation = format!("/realisations/sha256:{}!out.doi", "0".repeat(64));
    let narinfo = format!("/{}.narinfo", support::hash_part(&path));
    for _ in 0..3 {
        assert_eq!(connection.get(&realisation).status, 503);
        assert_eq!(connection.get(&narinfo).status, 200);
    }
    server.wait_for("a table of realisations lacks a column that Nix 2.8 to 2.36 have");
    assert_eq!(server.count("the store cannot be read"), 0);
}

#[test]
fn realisations_are_served_by_the_path_of_a_derivation() {
    let store = OwnStore::new();
    let out_path = store.add_file("result", b"x");
    let drv = format!("{ABSENT}-result.drv");
    let signature = format!("{}==", "A".repeat(86));
    let mut command = support::nix_serve();
    command.args(["--listen", "127.0.0.1:0", "--store", &local(store.root())]);
    let (_server, addr) = Process::serving(&mut command);
    let mut connection = Connection::connect(addr);
    let path = format!("/build-trace-v2/{drv}/out.doi");
    // No Nix that has this table has written to the store yet.
    connection.check_text(&path, 404, NOT_FOUND);
    sqlite(
        &store.database(),
        &format!(
            "create table BuildTraceV3 (id integer primary key autoincrement not null, \
             drvPath text not null, outputName text not null, outputPath text not null, \
             signatures text); \
             insert into BuildTraceV3 (drvPath, outputName, outputPath, signatures) values \
             ('{drv}', 'out', '{out_path}', 'b-1:{signature} a-1:{signature}'), \
             ('{drv}', 'dev', '/nix/store/{ABSENT}-gone', null)"
        ),
    );
    let base_name = out_path.rsplit('/').next().unwrap();
    let entry = |name| format!("{{\"keyName\":\"{name}\",\"sig\":\"{signature}\"}}");
    let expected = format!(
        "{{\"outPath\":\"{base_name}\",\"signatures\":[{},{}]}}",
        entry("a-1"),
        entry("b-1")
    );
    eventually("the new table is seen", || {
        connection.get(&path).status == 200
    });
    let reply = connection.get_and_head(&path, &[]);
    assert_eq!(reply.text(), expected);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let reply = connection.get_and_head(&path.replace("out.doi", "dev.doi"), &[]);
    assert_eq!(
        reply.text(),
        format!("{{\"outPath\":\"{ABSENT}-gone\",\"signatures\":[]}}")
    );
    connection.check_text(&path.replace("out.doi", "man.doi"), 404, NOT_FOUND);
}
