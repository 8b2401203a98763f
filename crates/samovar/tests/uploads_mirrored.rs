//! The storage directory is a plain binary cache of the first cache only. If another cache becomes
//! the first one, the directory keeps nothing that only the clients of the former may read.

mod support;
mod support_uploads;

use std::fs;

use support::samovar;
use support_uploads::{MadePath, Site};
use testkit::process::output;

const LOG: &str = "log/zs83x50c7jbs0hj70ivx7ykckxh2zzl5-a.drv";

#[test]
fn another_first_cache_does_not_inherit_narinfos_and_logs() {
    let site = Site::new();
    site.configure_empty("[caches.private]\nprefix = \"/\"\n");
    let server = site.start();
    let (token, path) = (site.token(&[]), MadePath::new("made"));
    server.publish(&token, &path);
    assert_eq!(server.put(&token, &format!("/{LOG}"), "text").status, 200);
    let narinfo = site.storage().join(format!("{}.narinfo", path.hash_part()));
    let log = site.storage().join(LOG);
    assert!(narinfo.exists() && log.exists());
    server.process.terminate();

    let both = "[caches.a]\nprefix = \"/\"\n[caches.private]\nprefix = \"/private\"\n";
    site.configure_empty(both);
    let server = site.start();
    assert!(!narinfo.exists() && !log.exists());
    for (prefix, status) in [("", 404), ("/private", 200)] {
        assert_eq!(
            server.get(&format!("{prefix}{}", path.target())).status,
            status
        );
        assert_eq!(server.get(&format!("{prefix}/{LOG}")).status, status);
    }
    server.process.terminate();
    let import = samovar()
        .arg("import")
        .arg("--config")
        .arg(site.config())
        .output()
        .unwrap();
    assert!(!narinfo.exists(), "{import:?}");
    let fsck = output(samovar().arg("fsck").arg("--storage").arg(site.storage()));
    assert!(fsck.contains("0 findings"), "{fsck}");

    // The directory has everything again when the cache is the first one again.
    site.configure_empty("[caches.private]\nprefix = \"/\"\n");
    let server = site.start();
    assert_eq!(fs::read_to_string(&log).unwrap(), "text");
    testkit::eventually("the narinfo is written again", || narinfo.exists());
    assert_eq!(server.get(&path.target()).status, 200);
}
