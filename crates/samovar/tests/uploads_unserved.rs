//! The server and the tools warn of uploaded paths that clients cannot use: those of a cache that
//! the configuration does not name, and those without a signature.

mod support;
mod support_uploads;

use std::fs;
use std::process::Command;

use support::samovar;
use support_uploads::{MadePath, Site};
use testkit::process::{Process, finish, output};

const UNSERVED: &str = "the storage has 1 path of the cache \"default\", which the configuration \
                        does not name: they are not served";

fn with_config(site: &Site, arguments: &[&str]) -> Command {
    let mut command = samovar();
    command.args(arguments).arg("--config").arg(site.config());
    command
}

#[test]
fn caches_that_the_configuration_does_not_name_are_reported() {
    let site = Site::new();
    let server = site.start();
    let path = MadePath::new("made");
    server.publish(&site.token(&[]), &path);
    let plan = output(&mut with_config(&site, &["gc", "--dry-run"]));
    assert!(!plan.contains("not served"), "{plan}");

    site.configure_empty("[caches.nightly]\n");
    server.process.signal("HUP");
    let line = server.process.wait_for("not served");
    assert!(line.contains(UNSERVED), "{line}");
    assert!(line.contains("samovar cache delete"), "{line}");
    assert_eq!(server.get(&path.target()).status, 404);
    server.process.terminate();

    let server = Process::spawn(samovar().args(site.arguments()));
    let line = server.wait_for("not served");
    assert!(line.contains(UNSERVED), "{line}");
    server.wait_for("on http://");
    let doctor = finish(&mut with_config(&site, &["doctor"]));
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert!(text.contains(UNSERVED), "{text}");
    let plan = output(&mut with_config(&site, &["gc", "--dry-run"]));
    assert!(
        plan.contains(&format!("{UNSERVED}, and not collected")),
        "{plan}"
    );
    let list = output(&mut with_config(&site, &["cache", "list"]));
    assert!(list.contains("no: not served"), "{list}");
}

#[test]
fn a_missing_secret_key_is_reported() {
    let site = Site::new();
    let with_key = fs::read_to_string(site.config()).expect("the site has a configuration");
    let is_other = |line: &&str| !line.starts_with("secret-key-files");
    let without_key: Vec<&str> = with_key.lines().filter(is_other).collect();
    fs::write(site.config(), without_key.join("\n")).expect("is writable");
    let server = site.start();
    assert_eq!(server.process.count("has no secret key"), 1);
    server.publish(&site.token(&[]), &MadePath::new("made"));
    let to = site.dir().join("exported");
    let export = || finish(with_config(&site, &["export"]).arg("--to").arg(&to));
    let exported = export();
    let text = String::from_utf8_lossy(&exported.stderr);
    assert!(
        text.contains("1 exported paths have no signature"),
        "{text}"
    );
    server.process.terminate();

    fs::write(site.config(), &with_key).expect("is writable");
    let server = site.start();
    assert_eq!(server.process.count("has no secret key"), 0);
    let exported = export();
    assert!(exported.stderr.is_empty(), "{exported:?}");
}
