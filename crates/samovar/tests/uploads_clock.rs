//! The collector loses nothing that is pinned, acknowledged or announced, even if the clock jumps.
//! `SAMOVAR_GC_ROUNDS` is the number of jumps.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_clock;
mod support_uploads;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;

use support::samovar;
use support_clock::{FakeClock, jump};
use support_uploads::{MadePath, Running, Site};
use testkit::process::output;
use testkit::random::SplitMix64;

/// Asserts that the NAR of an announced narinfo has the bytes that were uploaded. Returns whether
/// there is a narinfo.
#[track_caller]
fn check(server: &Running, path: &MadePath) -> bool {
    let narinfo = server.get(&path.target());
    if narinfo.status == 404 {
        return false;
    }
    let text = narinfo.text();
    assert_eq!(narinfo.status, 200, "{}: {text}", path.store_path);
    // A file that is uploaded again after its deletion has another name.
    let url = text.lines().find_map(|line| line.strip_prefix("URL: "));
    let file = server.get(&format!("/{}", url.unwrap()));
    assert_eq!(file.status, 200, "{text}");
    assert!(file.body == path.file, "{text}");
    true
}

/// Returns the number of paths that a run of the collector deleted.
fn deleted_count(summary: &str) -> usize {
    let (paths, _) = summary.split_once(" deleted").unwrap();
    paths.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn collections_with_a_jumping_clock_lose_nothing() {
    let Some(clock) = FakeClock::find() else {
        return;
    };
    let rounds = std::env::var("SAMOVAR_GC_ROUNDS").map_or(12, |text| text.parse().unwrap());
    let site = Site::new();
    let file = site.dir().join("clock");
    jump(&file, "+0d");
    let mut serve = samovar();
    clock.follow(serve.args(site.arguments()), &file);
    let server = Running::of(&mut serve);
    let token = site.token(&[]);
    let pinned = MadePath::new("pinned-below");
    let above = MadePath::new("pinned").referring_to(&pinned.store_path);
    server.publish(&token, &pinned);
    server.publish(&token, &above);
    let mut pin = samovar();
    pin.args(["pin", "add", "--storage"]).arg(site.storage());
    output(pin.args(["main", &above.store_path]));

    // Jumps wait for the end of a request pair: between its two requests no month passes.
    let epoch = RwLock::new(());
    let published = Mutex::new(Vec::<MadePath>::new());
    let is_over = AtomicBool::new(false);
    let (reads, hits) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (mut refused, mut deleted) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let lib = MadePath::new(&format!("lib-{}", number % 7));
                let app = MadePath::new(&format!("app-{number}")).referring_to(&lib.store_path);
                let _now = epoch.read().unwrap();
                server.publish(&token, &lib);
                server.publish(&token, &app);
                assert!(check(&server, &app) && check(&server, &lib));
                published.lock().unwrap().push(app);
            }
        });
        scope.spawn(|| {
            let mut random = SplitMix64::new(1);
            while !is_over.load(Ordering::Relaxed) {
                let path = {
                    let published = published.lock().unwrap();
                    // Most paths are never read, so they are collected.
                    let end = match random.percent(5) {
                        true => published.len(),
                        false => published.len().min(4),
                    };
                    published.get(random.index(end)).cloned()
                };
                let Some(path) = path else {
                    continue;
                };
                let _now = epoch.read().unwrap();
                reads.fetch_add(1, Ordering::Relaxed);
                hits.fetch_add(usize::from(check(&server, &path)), Ordering::Relaxed);
                assert!(check(&server, &pinned) && check(&server, &above));
            }
        });
        let mut random = SplitMix64::new(2);
        let mut days = 0_i64;
        for round in 0..rounds {
            {
                let _none = epoch.write().unwrap();
                days += i64::try_from(random.below(91)).unwrap() - 30;
                jump(&file, &format!("{days:+}d"));
            }
            for arguments in [&[][..], &["--force"], &["--force"]] {
                let mut gc = samovar();
                gc.args(["gc", "--uploads-retention", "30d", "--storage"]);
                clock.follow(gc.arg(site.storage()).args(arguments), &file);
                let done = gc.output().unwrap();
                if done.status.success() {
                    deleted += deleted_count(&String::from_utf8(done.stdout).unwrap());
                } else {
                    assert!(arguments.is_empty(), "round {round}: {done:?}");
                    refused += 1;
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!(
        "{rounds} jumps, {refused} of {} runs refused, {deleted} paths deleted; {} paths \
         published, {} of {} reads found the path",
        rounds * 3,
        published.lock().unwrap().len(),
        hits.load(Ordering::Relaxed),
        reads.load(Ordering::Relaxed),
    );
    assert!(deleted > 0);
    // Neither a row nor a file is missing or left over.
    output(samovar().args(["fsck", "--storage"]).arg(site.storage()));
}
