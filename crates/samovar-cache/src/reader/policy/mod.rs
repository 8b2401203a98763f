//! What may be read of a store in one cache.
//!
//! # Theory of operation
//!
//! A path may be read if any rule allows it, or there are no rules that allow, and no rule denies
//! it. What may not be read is answered as if it were not there.
//!
//! A policy says what it says of the row of a path, so of a moment: all but the [`roots`] follow
//! from the row, and from the time where rules ask for an age. Whoever keeps something because it
//! may be read (`narinfos.rs`) keeps with it until when that holds, and a number that changes when
//! roots lead elsewhere.
//!
//! While it is not known where the roots lead, nothing may be read, and nothing is said to be
//! absent either: everything is 503.

mod glob;
mod roots;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use samovar_nix::{HashPart, PathInfo, PublicKey, StoreDir};

use crate::refusal::Refusal;
use glob::Glob;
use roots::Roots;
pub(crate) use roots::{FirstLookError, Look, RootsWatch, first_looks};

/// What may be read. The default: everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyConfig {
    /// A path may be read if one of these holds. None at all: every path may be.
    pub allow: Vec<Rule>,
    /// Unless one of these holds.
    pub deny: Vec<Rule>,
}

/// A rule about paths, which holds if all holds that it asks for. One that asks for nothing holds
/// for all paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// The path belongs to the closure of a store path that one of these leads to: a store path, a
    /// link to one over any number of links, or a directory with such links, folders in it
    /// included.
    pub roots: Vec<PathBuf>,
    /// The store has a signature of the path by one of these keys.
    pub signed_by: Vec<PublicKey>,
    /// The path was built here.
    pub ultimate: bool,
    /// The name without the hash fits one of these patterns: `*` stands for any characters, `?` for
    /// one.
    pub names: Vec<String>,
    /// The path was registered so long ago or longer, in whole seconds.
    pub min_age: Option<Duration>,
    /// The path was registered so long ago at most, in whole seconds.
    pub max_age: Option<Duration>,
}

/// A policy, ready to be asked.
#[derive(Debug)]
pub(crate) struct Policy {
    config: PolicyConfig,
    allow: Box<[Ready]>,
    deny: Box<[Ready]>,
    roots: Arc<Roots>,
    has_ages: bool,
}

/// What a policy says of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It may be read, before that second since 1970 at least.
    Allowed { until: i64 },
    /// No rule allows it.
    NotAllowed,
    /// A rule denies it.
    Denied,
    /// That is not known.
    Unknown,
}

/// No end.
pub(crate) const FOREVER: i64 = i64::MAX;

/// A rule with its patterns made, and its roots as the place of their set.
#[derive(Debug)]
struct Ready {
    roots: Option<usize>,
    signed_by: Vec<PublicKey>,
    ultimate: bool,
    names: Vec<Glob>,
    min_age: Option<i64>,
    max_age: Option<i64>,
}

impl Policy {
    pub(crate) fn new(config: PolicyConfig) -> Self {
        let rules = config.allow.iter().chain(&config.deny);
        let has_ages = rules
            .clone()
            .any(|rule| rule.min_age.is_some() || rule.max_age.is_some());
        let mut roots = Vec::new();
        let mut ready = |rules: Vec<Rule>, denies: bool| -> Box<[Ready]> {
            let rules = rules.into_iter();
            rules
                .map(|rule| Ready::new(rule, denies, &mut roots))
                .collect()
        };
        let allow = ready(config.allow.clone(), false);
        let deny = ready(config.deny.clone(), true);
        Self {
            config,
            allow,
            deny,
            roots: Arc::new(Roots::new(roots)),
            has_ages,
        }
    }

    /// Whether another made of this would say the same.
    pub(crate) fn is_made_of(&self, config: &PolicyConfig) -> bool {
        self.config == *config
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.config == other.config
    }

    /// Begins with what the other has found out of roots, if it says the same of them.
    pub(crate) fn inherit(&self, before: &Self) {
        if before.is_same(self) {
            self.roots.inherit(&before.roots);
        }
    }

    /// Whether everything may be read, now and ever.
    pub(crate) fn is_open(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }

    /// Whether it depends on roots where they lead, and that is not known.
    pub(crate) fn is_unknown(&self) -> bool {
        self.roots.is_used() && self.roots.sets().is_none()
    }

    /// Refuses a path that may not be read whatever its row says. `Ok` decides nothing.
    pub(crate) fn admit(&self, hash_part: &HashPart) -> Result<(), Refusal> {
        if self.is_unknown() {
            return Err(Refusal::Undecided);
        }
        if self.rules_out(hash_part) {
            return Err(Refusal::NotReadable);
        }
        Ok(())
    }

    /// Whether a path with this hash part may not be read, whatever its row says. `false` says
    /// nothing. Never blocks for long.
    pub(crate) fn rules_out(&self, hash_part: &HashPart) -> bool {
        if !self.roots.is_used() {
            return false;
        }
        let Some(sets) = self.roots.sets() else {
            return false;
        };
        let is_in = |rule: &Ready| rule.roots.map(|index| sets.contains(index, hash_part));
        let is_never_allowed =
            !self.allow.is_empty() && self.allow.iter().all(|rule| is_in(rule) == Some(false));
        is_never_allowed
            || self
                .deny
                .iter()
                .any(|rule| rule.asks_for_nothing_but_roots() && is_in(rule) != Some(false))
    }

    /// What is said of the path with this row, at `now`, in seconds since 1970.
    pub(crate) fn decide(&self, info: &PathInfo, dir: &StoreDir, now: i64) -> Decision {
        if self.is_open() {
            return Decision::Allowed { until: FOREVER };
        }
        let Some(sets) = self.roots.sets() else {
            return Decision::Unknown;
        };
        let hash_part = info.path.hash_part();
        let holds = |rule: &Ready| {
            rule.roots
                .is_none_or(|index| sets.contains(index, &hash_part))
                && rule.holds(info, dir, now)
        };
        if self.deny.iter().any(holds) {
            return Decision::Denied;
        }
        if !self.allow.is_empty() && !self.allow.iter().any(holds) {
            return Decision::NotAllowed;
        }
        let rules = self.allow.iter().chain(&self.deny);
        let changes = rules.flat_map(|rule| rule.changes(info));
        let until = changes.filter(|at| *at > now).min();
        Decision::Allowed {
            until: until.unwrap_or(FOREVER),
        }
    }

    /// The time for [`decide`](Self::decide); nothing is asked where no rule asks for an age.
    pub(crate) fn now(&self) -> i64 {
        match self.has_ages {
            true => now(),
            false => 0,
        }
    }

    /// Whether it has to be looked where roots lead.
    pub(crate) fn has_roots(&self) -> bool {
        self.roots.is_used()
    }

    pub(crate) fn roots(&self) -> &Arc<Roots> {
        &self.roots
    }

    /// The number of changes of where the roots lead. A decision holds for one generation.
    pub(crate) fn generation(&self) -> u64 {
        self.roots.generation()
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, whole_seconds)
}

fn whole_seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

impl Ready {
    /// `sets`: the roots of which sets have to be made.
    fn new(rule: Rule, denies: bool, sets: &mut Vec<roots::Wanted>) -> Self {
        let roots = (!rule.roots.is_empty()).then(|| {
            sets.push(roots::Wanted {
                roots: rule.roots,
                denies,
            });
            sets.len() - 1
        });
        Self {
            roots,
            signed_by: rule.signed_by,
            ultimate: rule.ultimate,
            names: rule.names.iter().map(|name| Glob::new(name)).collect(),
            min_age: rule.min_age.map(whole_seconds),
            max_age: rule.max_age.map(whole_seconds),
        }
    }

    fn asks_for_nothing_but_roots(&self) -> bool {
        self.signed_by.is_empty()
            && !self.ultimate
            && self.names.is_empty()
            && self.min_age.is_none()
            && self.max_age.is_none()
    }

    /// Whether all holds but for the roots: what costs most comes last.
    fn holds(&self, info: &PathInfo, dir: &StoreDir, now: i64) -> bool {
        let age = now.saturating_sub(info.registration_time);
        (!self.ultimate || info.ultimate)
            && self.min_age.is_none_or(|least| age >= least)
            && self.max_age.is_none_or(|most| age <= most)
            && (self.names.is_empty() || self.names.iter().any(|one| one.matches(info.path.name())))
            && (self.signed_by.is_empty() || is_signed_by(info, dir, &self.signed_by))
    }

    /// The seconds at which it may begin or cease to hold.
    fn changes(&self, info: &PathInfo) -> impl Iterator<Item = i64> {
        let begins = self.min_age;
        let ceases = self.max_age.map(|most| most.saturating_add(1));
        let registered = info.registration_time;
        begins
            .into_iter()
            .chain(ceases)
            .map(move |age| registered.saturating_add(age))
    }
}

/// Whether the store has a signature of the path by one of the keys.
pub(crate) fn is_signed_by(info: &PathInfo, dir: &StoreDir, keys: &[PublicKey]) -> bool {
    let by = |key: &PublicKey| {
        let named = |one: &&samovar_nix::Signature| one.key_name() == key.name();
        info.signatures.iter().filter(named).any(|one| {
            // Made only where there is something to compare it with.
            key.verify(info.fingerprint(dir).as_bytes(), one)
        })
    };
    keys.iter().any(by)
}
