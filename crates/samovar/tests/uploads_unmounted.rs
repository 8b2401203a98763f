//! If the disk of the NAR files is not mounted when a server or a command starts, no file is
//! recorded as lost, and nothing is collected.

mod support;
mod support_uploads;

use std::fs;

use support::samovar;
use support_uploads::{MadePath, Site};
use testkit::eventually;
use testkit::process::{fails, output};

fn lost_count(site: &Site) -> String {
    site.sql("select count(*) from nar where state = 3")
        .trim()
        .to_owned()
}

#[test]
fn nothing_is_lost_if_the_files_are_not_mounted_at_the_start() {
    // As many files may be missing one by one.
    for (count, is_doubted) in [(16, false), (17, true)] {
        let (site, server, token) = Site::serving();
        let made = |number| MadePath::new(&format!("path-{number}"));
        let paths: Vec<MadePath> = (0..count).map(made).collect();
        for path in &paths {
            server.publish(&token, path);
        }
        server.process.terminate();
        let (nars, away) = (site.storage().join("nar"), site.storage().join("away"));
        fs::rename(&nars, &away).unwrap();
        fs::create_dir(&nars).unwrap();
        let command = |arguments: &[&str]| {
            let mut command = samovar();
            command.args(arguments).arg("--config").arg(site.config());
            command
        };
        if !is_doubted {
            let checked = command(&["fsck", "--repair"]).output().unwrap();
            assert_eq!(checked.status.code(), Some(1));
            assert_eq!(lost_count(&site), "16");
            continue;
        }
        for arguments in [
            &["fsck"][..],
            &["fsck", "--repair"],
            &["gc"],
            &["gc", "--force"],
        ] {
            let text = fails(&mut command(arguments));
            assert!(
                text.contains("nar/ in the storage directory has no files"),
                "{text}"
            );
            assert!(text.contains("mount its disk"), "{text}");
        }
        let server = site.start();
        for path in &paths {
            assert_eq!(server.get(&path.target()).status, 503);
            assert_eq!(server.get(&path.file_target()).status, 503);
        }
        eventually("the server is not ready", || {
            server.get("/readyz").status == 503
        });
        assert_eq!(lost_count(&site), "0");
        fs::remove_dir(&nars).unwrap();
        fs::rename(&away, &nars).unwrap();
        server.process.terminate();
        let server = site.start();
        for path in &paths {
            server.assert_serves(path);
        }
        output(&mut command(&["fsck", "--deep"]));
        server.process.terminate();
        // The operator confirms that all files are lost.
        fs::remove_dir_all(&nars).unwrap();
        fs::create_dir(&nars).unwrap();
        fs::write(nars.join("lost"), "").unwrap();
        let checked = command(&["fsck", "--repair"]).output().unwrap();
        assert_eq!(checked.status.code(), Some(1));
        assert_eq!(lost_count(&site), "17");
    }
}
