//! If the disk of the NAR files is not mounted when a server or a command starts, no file is
//! recorded as lost, and nothing is collected, also after uploads were refused meanwhile.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use support::samovar;
use support_uploads::{MadePath, Running, Site};
use testkit::eventually;
use testkit::process::{fails, output};

/// A storage with some paths. The directory of their files can be moved away.
struct Fixture {
    site: Site,
    token: String,
    paths: Vec<MadePath>,
    nars: PathBuf,
    away: PathBuf,
}

impl Fixture {
    fn new(count: usize) -> (Self, Running) {
        let (site, server, token) = Site::serving();
        let made = |number| MadePath::new(&format!("path-{number}"));
        let paths: Vec<MadePath> = (0..count).map(made).collect();
        for path in &paths {
            server.publish(&token, path);
        }
        let (nars, away) = (site.storage().join("nar"), site.storage().join("away"));
        let fixture = Self {
            site,
            token,
            paths,
            nars,
            away,
        };
        (fixture, server)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = samovar();
        command.args(arguments);
        command.arg("--config").arg(self.site.config());
        command
    }

    /// Leaves an empty mount point.
    fn unmount(&self) {
        fs::rename(&self.nars, &self.away).unwrap();
        fs::create_dir(&self.nars).unwrap();
    }

    fn mount(&self) {
        fs::remove_dir_all(&self.nars).unwrap();
        fs::rename(&self.away, &self.nars).unwrap();
    }

    fn lost_count(&self) -> String {
        let query = "select count(*) from nar where state = 3";
        self.site.sql(query).trim().to_owned()
    }

    /// Checks that commands refuse to work, and that a server is not ready, until the files are
    /// back.
    fn assert_refused(&self) {
        for arguments in [
            &["fsck"][..],
            &["fsck", "--repair"],
            &["gc"],
            &["gc", "--force"],
        ] {
            let text = fails(&mut self.command(arguments));
            assert!(
                text.contains("nar/ in the storage directory does not have the files"),
                "{text}"
            );
            assert!(text.contains("mount its disk"), "{text}");
        }
        let files = || fs::read_dir(&self.nars).unwrap().count();
        let file_count = files();
        let server = self.site.start();
        let new = MadePath::new("refused");
        let response = server.put(&self.token, &new.file_target(), &new.file);
        assert_eq!(response.status, 503, "{}", response.text());
        assert_eq!(files(), file_count, "the refused file is in nar/");
        for path in &self.paths {
            assert_eq!(server.get(&path.target()).status, 503);
            assert_eq!(server.get(&path.file_target()).status, 503);
        }
        eventually("the server is not ready", || {
            server.get("/readyz").status == 503
        });
        assert_eq!(self.lost_count(), "0");
        self.mount();
        server.process.terminate();
        let server = self.site.start();
        for path in &self.paths {
            server.assert_serves(path);
        }
        output(&mut self.command(&["fsck", "--deep"]));
        server.process.terminate();
    }
}

#[test]
fn nothing_is_lost_if_the_files_are_not_mounted_at_the_start() {
    for count in [1, 17] {
        let (fixture, server) = Fixture::new(count);
        server.process.terminate();
        fixture.unmount();
        fixture.assert_refused();
        // The operator confirms that all files are lost.
        fs::remove_dir_all(&fixture.nars).unwrap();
        fs::create_dir(&fixture.nars).unwrap();
        fails(&mut fixture.command(&["fsck", "--repair"]));
        assert_eq!(fixture.lost_count(), "0");
        fs::write(fixture.nars.join("lost"), "").unwrap();
        let checked = fixture.command(&["fsck", "--repair"]).output().unwrap();
        assert_eq!(checked.status.code(), Some(1));
        assert_eq!(fixture.lost_count(), count.to_string());
        // From now on, this is the directory of the files.
        let server = fixture.site.start();
        assert!(!fixture.nars.join("lost").exists());
        for path in &fixture.paths {
            server.publish(&fixture.token, path);
            server.assert_serves(path);
        }
    }
}

/// A file that an upload has left behind does not prove that the disk is mounted.
#[test]
fn a_refused_upload_does_not_stand_for_the_files_that_are_away() {
    for has_mount_point in [true, false] {
        let (fixture, server) = Fixture::new(3);
        fixture.unmount();
        if !has_mount_point {
            fs::remove_dir(&fixture.nars).unwrap();
        }
        let new = MadePath::new("new");
        let response = server.put(&fixture.token, &new.file_target(), &new.file);
        assert_eq!(response.status, 503, "{}", response.text());
        assert_eq!(fixture.nars.exists(), has_mount_point);
        assert_eq!(fixture.site.sql("select count(*) from nar").trim(), "3");
        server.process.terminate();
        fs::create_dir_all(&fixture.nars).unwrap();
        assert_eq!(fs::read_dir(&fixture.nars).unwrap().count(), 0);
        // Nor does a file that somebody else puts there.
        fs::write(fixture.nars.join(&new.file_target()[5..]), &new.file).unwrap();
        fixture.assert_refused();
    }
}

/// Whatever was deleted from the directory of the files is lost.
#[test]
fn a_few_files_may_be_missing_one_by_one() {
    let (fixture, server) = Fixture::new(16);
    server.process.terminate();
    for entry in fs::read_dir(&fixture.nars).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let checked = fixture.command(&["fsck", "--repair"]).output().unwrap();
    assert_eq!(checked.status.code(), Some(1));
    assert_eq!(fixture.lost_count(), "16");
}

/// A copy of the storage on another disk has another directory of files.
#[test]
fn a_storage_may_be_copied() {
    let (fixture, server) = Fixture::new(2);
    server.process.terminate();
    let copy = fixture.site.dir().join("copy");
    output(Command::new("cp").arg("-r").args([&fixture.nars, &copy]));
    fs::remove_dir_all(&fixture.nars).unwrap();
    fs::rename(&copy, &fixture.nars).unwrap();
    output(&mut fixture.command(&["fsck", "--deep"]));
    let server = fixture.site.start();
    for path in &fixture.paths {
        server.assert_serves(path);
    }
    // The server has noted the new directory.
    fs::remove_file(fixture.nars.join(&fixture.paths[0].file_target()[5..])).unwrap();
    fs::remove_file(fixture.nars.join(&fixture.paths[1].file_target()[5..])).unwrap();
    assert_eq!(server.get(&fixture.paths[0].target()).status, 404);
}
