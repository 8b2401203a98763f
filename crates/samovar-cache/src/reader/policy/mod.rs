//! The read policy of a cache: which paths of the store it serves.
//!
//! # Theory of operation
//!
//! A path may be read if an allow rule matches it (or there are no allow rules) and no deny rule
//! matches it. Other paths are answered as if they did not exist.
//!
//! A decision depends on the row of the path, on the current [`roots`], and, if rules have ages, on
//! the time. Code that caches a response based on a decision (`narinfos.rs`) therefore stores two
//! things with it: the time until which the decision is valid, and the policy generation, which
//! changes when the roots change.
//!
//! While the closures of the roots are unknown, the cache cannot tell readable paths from excluded
//! ones, and answers all requests for paths with 503.

mod inspect;
mod roots;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use samovar_nix::{Glob, HashPart, PathInfo, PublicKey, StoreDir, StorePath};

use crate::refusal::Refusal;
pub use inspect::{RootFault, faulty_roots, newest_readable};
use roots::Roots;
pub(crate) use roots::{FIRST_CHECK_TIME, RootsCheck, RootsCheckError, RootsWatch};

/// The read policy of a cache. The default allows everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyConfig {
    /// Allow rules: a path may be read if one of them matches. If empty, all paths may be read.
    pub allow: Vec<Rule>,
    /// Deny rules: a path may not be read if one of them matches.
    pub deny: Vec<Rule>,
    /// Whether no path of the store may be read, as if no allow rule matched any.
    pub hides_store: bool,
}

/// A rule. It matches a path if all its conditions hold; a rule without conditions matches all
/// paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// The path is in the closure of a store path to which one of these roots leads. A root is a
    /// store path, a symbolic link to one (also through other links), or a directory tree that
    /// contains such links.
    pub roots: Vec<PathBuf>,
    /// The store has a signature of the path by one of these keys.
    pub signed_by: Vec<PublicKey>,
    /// The path was built on this machine.
    pub ultimate: bool,
    /// The name without the hash part matches one of these patterns: `*` matches any characters,
    /// `?` matches one.
    pub names: Vec<String>,
    /// Minimum time since the path was registered, in whole seconds; `None`: no minimum.
    pub min_age: Option<Duration>,
    /// Maximum time since the path was registered, in whole seconds; `None`: no maximum.
    pub max_age: Option<Duration>,
}

/// A policy compiled from its configuration.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) config: PolicyConfig,
    allow: Box<[Ready]>,
    deny: Box<[Ready]>,
    pub(crate) roots: Arc<Roots>,
    has_ages: bool,
}

/// The decision of a policy about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The path may be read, at least until this Unix time in seconds.
    Allowed { until: i64 },
    /// No allow rule matches the path.
    NotAllowed,
    /// A deny rule matches the path.
    Denied,
    /// The closures of the roots are unknown, so no decision is possible.
    Unknown,
}

/// The expiry time of a decision that never expires.
pub(crate) const FOREVER: i64 = i64::MAX;

/// A rule in the form in which it is evaluated. `roots` is the index of the closure of its roots in
/// [`Roots`]; `None` if the rule has no roots.
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

    /// Takes over the closures of rules that the other policy has, too.
    pub(crate) fn inherit(&self, before: &Self) {
        self.roots.inherit(&before.roots);
    }

    /// Whether the policy allows all paths at all times.
    pub(crate) fn is_open(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty() && !self.config.hides_store
    }

    /// Whether the policy hides no path that is not in the store.
    pub(crate) fn is_open_to_foreign(&self) -> bool {
        self.deny.is_empty()
    }

    /// Whether a decision may depend on more than the name of a path and the roots.
    pub(crate) fn needs_rows(&self) -> bool {
        let mut rules = self.allow.iter().chain(&self.deny);
        rules.any(|rule| !rule.asks_for_no_row())
    }

    /// Whether the policy has roots whose closures are unknown.
    pub(crate) fn is_unknown(&self) -> bool {
        self.roots.is_used() && self.roots.sets().is_none()
    }

    /// Returns an error if the path is excluded whatever its row contains. `Ok` is not yet a
    /// permission.
    pub(crate) fn admit(&self, hash_part: &HashPart) -> Result<(), Refusal> {
        if self.is_unknown() {
            return Err(Refusal::Undecided);
        }
        if self.rules_out(hash_part) {
            return Err(Refusal::NotReadable);
        }
        Ok(())
    }

    /// Whether a path with this hash part is excluded whatever its row contains. `false` is not yet
    /// a permission. Never blocks for long.
    pub(crate) fn rules_out(&self, hash_part: &HashPart) -> bool {
        if self.config.hides_store {
            return true;
        }
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

    /// Returns whether a path may be read, as far as that depends on nothing but its name and the
    /// roots. `None`: it also depends on the path's row, or the roots are unknown. `uploaded`:
    /// whether only the deny rules apply.
    pub(crate) fn decide_by_name(&self, path: &StorePath, uploaded: bool) -> Option<bool> {
        let sets = self.roots.sets()?;
        // `None`: the rule may match, depending on the row.
        let matches = |rule: &Ready| {
            let is_in = rule
                .roots
                .is_none_or(|index| sets.contains(index, &path.hash_part()));
            match is_in && rule.names_match(path) {
                false => Some(false),
                true => rule.asks_for_no_row().then_some(true),
            }
        };
        let any = |rules: &[Ready]| {
            let are_known = rules.iter().all(|rule| matches(rule).is_some());
            match rules.iter().any(|rule| matches(rule) == Some(true)) {
                true => Some(true),
                false => are_known.then_some(false),
            }
        };
        let is_allowed = match uploaded || self.allow.is_empty() {
            _ if !uploaded && self.config.hides_store => Some(false),
            true => Some(true),
            false => any(&self.allow),
        };
        match (any(&self.deny), is_allowed) {
            (Some(true), _) | (_, Some(false)) => Some(false),
            (Some(false), Some(true)) => Some(true),
            _ => None,
        }
    }

    /// Decides whether the path of this row may be read at `now`, a Unix time in seconds.
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
        let is_allowed = self.allow.is_empty() || self.allow.iter().any(holds);
        if self.config.hides_store || !is_allowed {
            return Decision::NotAllowed;
        }
        let rules = self.allow.iter().chain(&self.deny);
        let changes = rules.flat_map(|rule| rule.changes(info));
        let until = changes.filter(|at| *at > now).min();
        Decision::Allowed {
            until: until.unwrap_or(FOREVER),
        }
    }

    /// Returns the time to pass to [`decide`](Self::decide): 0 if no rule has an age, which saves
    /// reading the clock.
    pub(crate) fn now(&self) -> i64 {
        match self.has_ages {
            true => now(),
            false => 0,
        }
    }

    /// Returns the number of changes of the roots' closures. A decision is valid for one
    /// generation.
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
    /// Compiles a rule and adds its roots to `sets`.
    fn new(rule: Rule, denies: bool, sets: &mut Vec<roots::RuleRoots>) -> Self {
        let roots = (!rule.roots.is_empty()).then(|| {
            sets.push(roots::RuleRoots {
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
        self.asks_for_no_row() && self.names.is_empty()
    }

    /// Whether the rule depends on nothing but the name of a path and the roots.
    fn asks_for_no_row(&self) -> bool {
        self.signed_by.is_empty()
            && !self.ultimate
            && self.min_age.is_none()
            && self.max_age.is_none()
    }

    fn names_match(&self, path: &StorePath) -> bool {
        self.names.is_empty() || self.names.iter().any(|one| one.matches(path.name()))
    }

    /// Whether all conditions except the roots hold. The most expensive one is evaluated last.
    fn holds(&self, info: &PathInfo, dir: &StoreDir, now: i64) -> bool {
        let age = now.saturating_sub(info.registration_time);
        (!self.ultimate || info.ultimate)
            && self.min_age.is_none_or(|least| age >= least)
            && self.max_age.is_none_or(|most| age <= most)
            && self.names_match(&info.path)
            && (self.signed_by.is_empty() || is_signed_by(info, dir, &self.signed_by))
    }

    /// Returns the Unix times at which the rule may start or stop matching.
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

/// Whether the store has a valid signature of the path by one of the keys.
pub(crate) fn is_signed_by(info: &PathInfo, dir: &StoreDir, keys: &[PublicKey]) -> bool {
    let by = |key: &PublicKey| {
        let named = |one: &&samovar_nix::Signature| one.key_name() == key.name();
        info.signatures.iter().filter(named).any(|one| {
            // The fingerprint is computed only if a signature has this key's name.
            key.verify(info.fingerprint(dir).as_bytes(), one)
        })
    };
    keys.iter().any(by)
}
