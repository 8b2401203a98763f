//! Acknowledged uploads survive power cuts, whatever part of the unsynced data the disk keeps. Any
//! other upload is either absent or complete.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_uploads;
mod support_volatile;

use std::fs;

use support::samovar;
use support_uploads::{MadePath, Running, Site, address_of, assert_mirrors, try_upload};
use support_volatile::{Kept, Mounted, VolatileDisk};
use testkit::process::Process;

/// Shares of unsynced data that power cuts keep: nothing, names without contents, contents without
/// names, or parts of both.
const KEPT: [Kept; 5] = [
    Kept::percent(0, 0),
    Kept::percent(0, 100),
    Kept::percent(100, 0),
    Kept::percent(50, 50),
    Kept::percent(90, 90),
];

/// Number of calls that change or sync something between one power cut and the next. An upload
/// makes about fifty.
const DISTANCE: u64 = 37;

/// Maximum number of such calls before a power cut.
const CALL_COUNT_MAX: u64 = 400;

/// Returns the number of power cuts. The environment variable `SAMOVAR_POWER_CUTS` can raise it.
fn cut_count() -> u64 {
    let number = std::env::var("SAMOVAR_POWER_CUTS").ok();
    number.map_or(20, |text| text.parse().unwrap())
}

/// Creates a site whose storage directory will be on a new volatile disk. Returns `None` without
/// FUSE.
fn site(seed: u64) -> Option<(Site, VolatileDisk, Mounted)> {
    let dir = tempfile::tempdir().unwrap();
    let disk = VolatileDisk::new(seed);
    let at = dir.path().join("disk");
    fs::create_dir(&at).unwrap();
    let mounted = disk.mount(&at)?;
    let site = Site::with_storage(dir, at.join("storage"));
    Some((site, disk, mounted))
}

fn mount(site: &Site, disk: &VolatileDisk) -> Mounted {
    disk.mount(site.storage().parent().unwrap()).unwrap()
}

/// The uploads of a client, by what the server has acknowledged.
#[derive(Default)]
struct Uploads {
    acknowledged: Vec<MadePath>,
    /// Paths whose files were acknowledged, but not their narinfos.
    loose: Vec<MadePath>,
    others: Vec<MadePath>,
}

impl Uploads {
    /// Uploads a path to a server whose disk may lose power at any time.
    fn try_publish(&mut self, server: &Running, token: &str, path: MadePath) {
        let narinfo = path.narinfo();
        let bodies = [
            (path.file_target(), &path.file[..]),
            (path.target(), narinfo.as_bytes()),
        ];
        let count = bodies.iter().take_while(|(target, body)| {
            let response = try_upload(server.address, token, target, body);
            let response = response.unwrap_or_default();
            let is_expected = matches!(response.status, 0 | 200 | 503);
            assert!(is_expected, "{} {}", response.status, response.text());
            response.status == 200
        });
        match count.count() {
            0 => self.others.push(path),
            1 => self.loose.push(path),
            _ => self.acknowledged.push(path),
        }
    }

    /// Checks all paths after a power cut. Repeats the uploads that were not acknowledged.
    fn check(&self, server: &Running, token: &str) {
        for path in &self.acknowledged {
            server.assert_serves(path);
        }
        for path in self.loose.iter().chain(&self.others) {
            // Perhaps the path was published, and only the response was lost.
            match server.get(&path.target()).status {
                200 => server.assert_serves(path),
                _ => server.assert_lacks(path),
            }
        }
        for path in &self.loose {
            let narinfo = server.put(token, &path.target(), path.narinfo());
            assert_eq!(narinfo.status, 200, "{}", narinfo.text());
            server.assert_serves(path);
        }
        for path in &self.others {
            server.publish(token, path);
            server.assert_serves(path);
        }
    }

    fn all(self) -> Vec<MadePath> {
        [self.acknowledged, self.loose, self.others].concat()
    }
}

#[test]
fn acknowledged_uploads_survive_power_cuts() {
    let Some((site, disk, mut mounted)) = site(1) else {
        return;
    };
    let mut server = site.start();
    let token = site.token(&[]);
    let mut all = Vec::new();
    for (cut, kept) in (0..cut_count()).zip(KEPT.iter().cycle()) {
        server.process.terminate();
        disk.cut_after(cut * DISTANCE % CALL_COUNT_MAX, *kept);
        let mut process = Process::spawn(samovar().args(site.arguments()));
        let mut uploads = Uploads::default();
        if let Some(address) = address_of(&mut process) {
            let running = Running { process, address };
            let mut paths = (0..).map(|at| {
                let below = MadePath::new(&format!("below-{cut}-{at}"));
                let above = MadePath::new(&format!("above-{cut}-{at}"));
                [above.referring_to(&below.store_path), below]
            });
            while !disk.is_cut() {
                let [above, below] = paths.next().unwrap();
                uploads.try_publish(&running, &token, below);
                if !disk.is_cut() {
                    uploads.try_publish(&running, &token, above);
                }
            }
        }
        drop(mounted);
        mounted = mount(&site, &disk);
        server = site.start();
        println!(
            "cut {cut}: {} paths acknowledged, {} files, {} others",
            uploads.acknowledged.len(),
            uploads.loose.len(),
            uploads.others.len()
        );
        uploads.check(&server, &token);
        all.extend(uploads.all());
    }
    for path in &all {
        server.assert_serves(path);
    }
    assert_mirrors(&site, &all);
    let files = site.files();
    let is_unfinished = |file: &&String| file.starts_with(".samovar/tmp/");
    assert_eq!(files.iter().find(is_unfinished), None);
    server.process.terminate();
    drop(mounted);
}

/// A server can start after a power cut that happened while it created its storage.
#[test]
fn a_new_storage_survives_power_cuts() {
    for (cut, kept) in (0..cut_count()).zip(KEPT.iter().cycle()) {
        let Some((site, disk, mounted)) = site(cut) else {
            return;
        };
        disk.cut_after(cut * 3, *kept);
        let mut process = Process::spawn(samovar().args(site.arguments()));
        address_of(&mut process);
        disk.cut(*kept);
        drop((process, mounted));
        let mounted = mount(&site, &disk);
        let server = site.start();
        let (token, path) = (site.token(&[]), MadePath::new("path"));
        server.publish(&token, &path);
        let log = format!("/log/{}.drv", &path.store_path[11..]);
        assert_eq!(server.put(&token, &log, b"text").status, 200);
        // The first acknowledged upload makes the names of all directories durable.
        disk.cut(Kept::percent(0, 0));
        drop((server, mounted));
        let mounted = mount(&site, &disk);
        let server = site.start();
        server.assert_serves(&path);
        assert_eq!(server.get(&log).text(), "text");
        assert_mirrors(&site, &[path]);
        server.process.terminate();
        drop(mounted);
    }
}

/// The server rewrites an empty narinfo in the directory at the next start. It could not recognise
/// a part of one.
#[test]
fn a_power_cut_does_not_tear_a_long_narinfo() {
    for seed in 0..4 {
        let Some((site, disk, mounted)) = site(seed) else {
            return;
        };
        let server = site.start();
        let (token, path) = (site.token(&[]), MadePath::new("long"));
        let file = server.put(&token, &path.file_target(), &path.file);
        assert_eq!(file.status, 200, "{}", file.text());
        let signature = format!("{}A==", "A".repeat(85));
        let signature = |at| format!("Sig: {}-{at}:{signature}\n", "k".repeat(200));
        let narinfo = path.narinfo() + &(0..30).map(signature).collect::<String>();
        let narinfo = server.put(&token, &path.target(), narinfo);
        assert_eq!(narinfo.status, 200, "{}", narinfo.text());
        let mirrored = site.storage().join(&path.target()[1..]);
        let complete = fs::read(&mirrored).unwrap();
        assert!(complete.len() > 8192, "{}", complete.len());
        disk.cut(Kept::percent(50, 100));
        drop((server, mounted));
        let mounted = mount(&site, &disk);
        let found = fs::read(&mirrored).unwrap_or_default();
        assert!(
            found.is_empty() || found == complete,
            "seed {seed}: {} bytes",
            found.len()
        );
        let server = site.start();
        assert_mirrors(&site, std::slice::from_ref(&path));
        server.process.terminate();
        drop(mounted);
    }
}
