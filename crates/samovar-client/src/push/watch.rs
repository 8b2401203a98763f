//! Pushes paths as soon as they are registered in the local store. SQLite compares its data version
//! before each query, so a query reads no page of the database if nothing has changed.
//!
//! The cache directory of the user stores the highest number whose paths were pushed or refused.
//! After a restart, the command therefore also pushes the paths that were registered meanwhile.

use std::convert::Infallible;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use samovar_nix::PathInfo;
use samovar_store::Store;

use super::cache_dir;
use super::pusher::Pusher;
use super::registered::{newest, registered_after, wanted};
use super::report::Report;
use crate::notice::notice;

/// Time between two queries for the newest registration. A query takes 50 µs.
const INTERVAL: Duration = Duration::from_millis(250);

/// Pause after an error of the database.
const PAUSE: Duration = Duration::from_secs(5);

/// Pushes until the process is killed, and calls `report` after each push. `with_substituted`: also
/// pushes paths that were not built on this machine.
///
/// # Errors
///
/// The database cannot be read at the start; errors of `report`.
pub fn watch(
    pusher: &mut Pusher,
    with_substituted: bool,
    report: &mut dyn FnMut(&Report) -> anyhow::Result<()>,
) -> anyhow::Result<Infallible> {
    let position = Position::of(pusher);
    let newest = newest(pusher.store())?;
    let mut last = position.read().unwrap_or(newest);
    position.write(last);
    notice("watching for new paths");
    loop {
        let infos = match new_paths(pusher.store(), &mut last) {
            Ok(infos) => infos,
            Err(error) => {
                notice(&format!("{error:#}; trying again"));
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let Some(newest) = infos.iter().filter_map(|info| info.registration).max() else {
            std::thread::sleep(INTERVAL);
            continue;
        };
        let roots = wanted(&infos, with_substituted);
        if !roots.is_empty() {
            // Ignore absent paths: they were deleted after their registration.
            let (pushed, _absent) = pusher.push_persistently(&roots, u32::MAX)?;
            report(&pushed)?;
        }
        last = newest;
        position.write(last);
    }
}

/// Returns the paths that were registered after `last`.
fn new_paths(store: &dyn Store, last: &mut i64) -> anyhow::Result<Vec<PathInfo>> {
    let newest = newest(store)?;
    // The newest number falls if the newest path was deleted or the database was replaced.
    *last = newest.min(*last);
    match newest > *last {
        true => registered_after(store, *last),
        false => Ok(Vec::new()),
    }
}

/// The file with the last handled registration number for one store and one cache.
struct Position {
    /// Path of the file. `None`: the user has no cache directory, so the number is not stored.
    file: Option<PathBuf>,
}

impl Position {
    fn of(pusher: &Pusher) -> Self {
        let (dir, url) = (pusher.store().store_dir(), pusher.url());
        let store = pusher.store_uri();
        Self {
            file: cache_dir::path("watch", &format!("{store} {dir} {url}")),
        }
    }

    fn read(&self) -> Option<i64> {
        let text = fs::read_to_string(self.file.as_ref()?).ok()?;
        text.trim().parse().ok()
    }

    fn write(&self, last: i64) {
        if let Err(error) = self.try_write(last) {
            notice(&format!(
                "{error:#}: after a restart, paths that were registered meanwhile will not be \
                 pushed"
            ));
        }
    }

    fn try_write(&self, last: i64) -> anyhow::Result<()> {
        let file = self.file.as_ref().context("HOME is not set")?;
        let new = file.with_extension("new");
        let written = match file.parent() {
            Some(folder) => fs::create_dir_all(folder),
            None => Ok(()),
        };
        let written = written.and_then(|()| fs::write(&new, format!("{last}\n")));
        written
            .and_then(|()| fs::rename(&new, file))
            .with_context(|| format!("cannot write {file:?}"))
    }
}
