//! `samovar doctor --verify`: compares the files of a store with their registrations.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::ArgMatches;
use samovar_nix::HashPart;
use samovar_store::{Pace, Settings, Store, Verdict, VerifyError, verify};

use crate::outcome::Outcome;
use crate::roots;
use crate::size::{counted, human};

/// Number of paths in one query while all paths of the store are listed.
const LIST_COUNT: usize = 500;

/// Intervals between progress messages: on a terminal, and elsewhere.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(500);
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Verifies the paths of the command line. Prints damaged paths to `out`, and progress to standard
/// error.
pub(crate) fn verify_paths(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<Outcome> {
    let settings = Settings::from_process()?;
    let uri = matches.get_one::<String>("store");
    let store = samovar_store::open(uri.map(String::as_str), &settings)?;
    let paths = matches.get_many("paths").into_iter().flatten();
    let wanted = wanted(&*store, &paths.cloned().collect::<Vec<_>>())?;
    let mut progress = Progress::new(&wanted);
    let mut pace = Pace::new(matches.get_one("rate").copied().flatten());
    for one in &wanted {
        let len_done = progress.len_done;
        one.examine(&*store, &mut pace, &mut progress, out)?;
        progress.count_done += 1;
        progress.len_done = len_done + one.len;
    }
    progress.end();
    Ok(match (progress.damaged_count, progress.unread_count) {
        (0, 0) => Outcome::Complete,
        (0, _) => Outcome::Unchecked,
        _ => Outcome::Incomplete,
    })
}

/// Returns the paths to verify: `paths`, or all paths of the store if `paths` is empty.
fn wanted(store: &dyn Store, paths: &[String]) -> anyhow::Result<Vec<Wanted>> {
    if paths.is_empty() {
        return all(store);
    }
    let roots = roots::read(paths, store.store_dir(), io::stdin().lock())?;
    let hash_parts: Vec<HashPart> = roots.iter().map(|root| root.hash_part).collect();
    let mut wanted = Vec::with_capacity(roots.len());
    for (root, looked) in roots.iter().zip(store.lookup_many(&hash_parts)?) {
        let info = looked.with_context(|| format!("cannot look up {}", root.text))?;
        let info = info.with_context(|| format!("{} is not in this store", root.text))?;
        wanted.push(Wanted {
            hash_part: root.hash_part,
            len: info.nar_size,
        });
    }
    Ok(wanted)
}

/// Lists all paths of the store, newest first.
fn all(store: &dyn Store) -> anyhow::Result<Vec<Wanted>> {
    ensure!(
        store.catalog().is_some(),
        "cannot list the paths of this store: name the paths to verify"
    );
    let mut wanted = Vec::new();
    let mut before = None;
    loop {
        let infos = store.newest(before, LIST_COUNT)?;
        let Some(last) = infos.last() else {
            return Ok(wanted);
        };
        before = last.registration;
        wanted.extend(infos.iter().map(|info| Wanted {
            hash_part: info.path.hash_part(),
            len: info.nar_size,
        }));
    }
}

/// A path to verify.
struct Wanted {
    hash_part: HashPart,
    len: u64,
}

impl Wanted {
    fn examine(
        &self,
        store: &dyn Store,
        pace: &mut Pace,
        progress: &mut Progress,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let Some(info) = store.lookup(self.hash_part)? else {
            // The path was garbage-collected after it was listed: skip it.
            return Ok(());
        };
        let path = info.path.full(store.store_dir());
        let verdict = verify(store, &info, &mut |len| {
            std::thread::sleep(pace.pass(len));
            progress.add(len);
            ControlFlow::Continue(())
        });
        match verdict {
            Ok(Verdict::Right(_) | Verdict::Gone) => {}
            Ok(Verdict::Damaged(damage)) => {
                progress.damaged_count += 1;
                progress.clear();
                writeln!(out, "damaged {path}: {damage}")?;
                out.flush()?;
            }
            Err(VerifyError::Store(error)) => return Err(error.into()),
            Err(error) => {
                progress.unread_count += 1;
                progress.warn(&format!("cannot verify {path}: {error}"));
            }
        }
        Ok(())
    }
}

/// Prints progress on standard error, which may be closed.
struct Progress {
    count: usize,
    len: u64,
    count_done: usize,
    len_done: u64,
    damaged_count: usize,
    unread_count: usize,
    is_terminal: bool,
    printed_at: Instant,
}

impl Progress {
    fn new(wanted: &[Wanted]) -> Self {
        Self {
            count: wanted.len(),
            len: wanted.iter().map(|one| one.len).sum(),
            count_done: 0,
            len_done: 0,
            damaged_count: 0,
            unread_count: 0,
            is_terminal: io::stderr().is_terminal(),
            printed_at: Instant::now(),
        }
    }

    fn add(&mut self, len: u64) {
        self.len_done += len;
        let interval = if self.is_terminal {
            TERMINAL_INTERVAL
        } else {
            LOG_INTERVAL
        };
        if self.printed_at.elapsed() >= interval {
            self.printed_at = Instant::now();
            self.print(if self.is_terminal { "\x1b[K\r" } else { "\n" });
        }
    }

    fn print(&self, end: &str) {
        let (done, len) = (human(self.len_done), human(self.len));
        let mut line = format!(
            "{} of {}, {done} of {len}, {} damaged",
            self.count_done,
            counted(self.count, "path"),
            self.damaged_count
        );
        if self.unread_count > 0 {
            line.push_str(&format!(", {} not verified", self.unread_count));
        }
        write!(io::stderr(), "{line}{end}").ok();
    }

    /// Clears the progress line.
    fn clear(&self) {
        if self.is_terminal {
            write!(io::stderr(), "\x1b[K").ok();
        }
    }

    fn warn(&self, message: &str) {
        self.clear();
        writeln!(io::stderr(), "samovar: {message}").ok();
    }

    fn end(&self) {
        self.clear();
        self.print("\n");
    }
}
