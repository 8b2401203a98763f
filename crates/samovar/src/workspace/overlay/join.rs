//! Merges what other clients have pushed into the tree of a command, as `samovar workspace pull`
//! does in a workspace.
//!
//! The mounted tree is changed, so the result of the merge is in the directory with the changes.
//! The snapshot below the changes stays. [`Origin`](super::origin::Origin) names the snapshot that
//! was merged.

use std::io;

use anyhow::{Context as _, anyhow, ensure};
use samovar_client::workspace::begun::{self, Begun};
use samovar_client::workspace::place::Place;
use samovar_mount::overlay::DIRECTORY_MODE;
use samovar_mount::overlay::changes::scan;
use samovar_nix::StorePath;
use samovar_workspace::pack::{default_threads, hash};
use samovar_workspace::repository::lock;
use samovar_workspace::scan::Options;
use samovar_workspace::{ReadError, Scanned, merge_with};

use super::super::apply::Apply;
use super::super::conflicts::Report;
use super::super::held;
use super::super::local::{as_read_error, empty, read_error};
use super::super::pull::conflicts;
use super::super::repositories;
use super::run::Run;
use crate::hashing;
use crate::http::printable;
use crate::notice::notice;
use crate::outcome::Failed;
use crate::refs::{Generation, Log, RefName};
use crate::size::counted;
use crate::snapshot::{Downloaded, Snapshots};
use crate::token::date;

/// Name of the directory for files that are received, in the root of the tree. No snapshot contains
/// such a name.
const INCOMING: &str = ".samovar-tmp-0000000000000000";

impl Run {
    /// Merges the newest generation of the ref into the tree, unless the tree is based on it.
    ///
    /// # Errors
    ///
    /// Both sides have changed an entry: the tree has both versions, and can be pushed. Or the
    /// cache is unavailable, or the ref was removed.
    pub(super) fn join(&mut self, snapshots: &Snapshots, name: &RefName) -> anyhow::Result<()> {
        let log = snapshots.refs().get(&name.name)?.unwrap_or_default();
        let Some(newest) = log.generations.first() else {
            return match self.origin.generation {
                None => Ok(()),
                Some(_) => Err(Failed::Refused.because(anyhow!(
                    "the ref {} was removed: --force creates it again",
                    name.name
                ))),
            };
        };
        if self.origin.generation == Some(newest.version()) {
            return Ok(());
        }
        if self.base_path() == Some(&newest.manifest) {
            return self.set_base(newest, None);
        }
        let snapshot = snapshots.manifest(&newest.manifest)?;
        let conflict_count = self.merge(snapshots, &log, newest, &snapshot)?;
        self.set_base(newest, Some(snapshot))?;
        ensure!(
            conflict_count == 0,
            Failed::Refused.because(anyhow!(
                "{} with {}@{}: the tree has both versions",
                counted(conflict_count as u64, "conflict"),
                name.name,
                newest.number
            ))
        );
        notice(&format!("merged {}@{}", name.name, newest.number));
        Ok(())
    }

    /// Scans the tree. Unchanged files of the snapshot below have their digests. Removes the locks
    /// of repositories that a killed merge has left.
    pub(super) fn scan(&self, options: Options) -> Result<Scanned, ReadError> {
        let none = empty();
        let base = self.base.as_ref();
        let base = base.map_or(&none, |base| &base.manifest.entries);
        let upper = self.layers.upper();
        loop {
            let scanned = scan(&self.target, &upper, base, DIRECTORY_MODE, options);
            let scanned = scanned.map_err(|error| as_read_error(error, &self.target))?;
            let lock = lock(&scanned.entries);
            if !lock.is_some_and(|lock| held::remove_stale(&scanned.path(lock))) {
                return Ok(scanned);
            }
        }
    }

    /// Merges a generation into the tree. Returns the number of conflicts, which are reported.
    fn merge(
        &mut self,
        snapshots: &Snapshots,
        log: &Log,
        newest: &Generation,
        snapshot: &Downloaded,
    ) -> anyhow::Result<usize> {
        let mut ours = self.scan(Options::WRITING).map_err(read_error)?;
        self.check_view()?;
        let progress = hashing::progress(&ours, false, false);
        let report = |len| progress.add(len, 0);
        let hashed = hash(&mut ours, false, default_threads(), &report);
        progress.end();
        hashed.map_err(read_error)?;
        let base = self.known_base(log);
        let base_path = base.map(|base| &base.path);
        let base = base.map(|base| &base.manifest.entries);
        let none = empty();
        let place = Place {
            root: self.target.clone(),
            incoming: self.target.join(INCOMING),
            state: self.layers.dir().to_owned(),
        };
        let begun = Begun::read(&place.state, base_path, newest.version());
        if self.joined.is_none() {
            // The command may have refreshed the indexes in the tree.
            let below = Place {
                root: self.layers.lower(),
                incoming: place.incoming.clone(),
                state: place.state.clone(),
            };
            repositories::remember(&below, base.unwrap_or(&none), &Default::default());
        }
        let base = begun.advance(base.unwrap_or(&none).clone(), &ours.entries)?;
        let theirs = &snapshot.manifest;
        repositories::check_root([&base, &ours.entries, &theirs.entries])?;
        let host = newest.host.as_deref().unwrap_or("server");
        let label = format!("{host}-{}", date(newest.created_at));
        let contents = repositories::contents(&place, snapshots, &base, &ours, theirs)?;
        let mut actions = merge_with(&base, &ours.entries, &theirs.entries, &label, &contents);
        let conflicts = conflicts(&mut actions, &ours.entries, &theirs.entries);
        begun.begin(snapshot)?;
        Apply::run(&place, snapshots, &ours, theirs, &actions)?;
        self.check_view()?;
        let report = Report {
            ours: &ours.entries,
            theirs: &theirs.entries,
            contents: &contents,
            host: &printable(host),
        };
        // Only the command writes to standard output.
        let mut out = io::stderr();
        for conflict in &conflicts {
            report.conflict(conflict, &place.root, &mut out)?;
        }
        report.copies(&mut out)?;
        repositories::remember(&place, &theirs.entries, &contents);
        Ok(conflicts.len())
    }

    /// Returns the snapshot on which the tree is based. Returns `None` if there is none, or if the
    /// server has lost it: then nothing shows which differences are changes of the command.
    fn known_base(&self, log: &Log) -> Option<&Downloaded> {
        let (base, path) = (self.based_on()?, self.base_path()?);
        let mut all = log.generations.iter();
        let is_kept = all.any(|generation| generation.manifest == *path);
        let is_known = is_kept || log.follows(self.origin.generation?);
        is_known.then_some(base)
    }

    /// Returns the path of the manifest on which the tree is based.
    fn base_path(&self) -> Option<&StorePath> {
        let origin = &self.origin;
        origin.base.as_ref().or(origin.manifest.as_ref())
    }

    /// Makes a generation the one on which the tree is based. `merged`: its snapshot, if the tree
    /// was not based on it before.
    fn set_base(&mut self, newest: &Generation, merged: Option<Downloaded>) -> anyhow::Result<()> {
        self.origin.generation = Some(newest.version());
        if let Some(merged) = merged {
            self.origin.base = Some(merged.path.clone());
            self.joined = Some(merged);
        }
        let stored = self.layers.set_origin(&self.origin.text());
        stored.context("the files are merged, but their new base cannot be recorded")?;
        begun::end(self.layers.dir());
        Ok(())
    }
}
