//! [`Rules`] and [`Retention`]: what the collector keeps, and for how long.

use std::collections::HashMap;

use samovar_nix::Glob;
use samovar_text::counted;

use crate::metadata::DAY;

/// The times of the collector in seconds, and its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Time from the condemnation to the deletion. Must exceed the interval at which uses are
    /// written to the database.
    pub hold: i64,
    /// Time after its upload for which a path or build log is kept even if no client uses it, and
    /// after its last use even if the cache exceeds its retention size. For paths at most the
    /// retention time.
    pub young: i64,
    /// Time for which an uploaded NAR is kept that no path uses. Nix sends all NARs of a closure
    /// before the first narinfo.
    pub loose: i64,
    /// Time until the key of a removed object may be used again.
    pub key_rest: i64,
    /// Maximum total length of the files that a token has sent and that no path uses, in bytes.
    pub loose_bytes_max: u64,
    /// Maximum total length of what a cache without a quota stores besides NARs, in bytes.
    pub extra_bytes_max: u64,
    /// Time by which the clock may advance more than the time that has passed. A run that finds
    /// more is doubted.
    pub drift_max: i64,
    /// Time after a jump of the clock for which runs are doubted if the clock does not jump again.
    pub settling: i64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            hold: 3600,
            young: DAY,
            loose: DAY,
            key_rest: 7 * DAY,
            loose_bytes_max: 100 << 30,
            extra_bytes_max: 100 << 30,
            drift_max: DAY,
            settling: DAY,
        }
    }
}

impl Rules {
    /// Returns the rules for freeing space at once: what clients have sent or used within the last
    /// hour is kept, and nothing waits between its condemnation and its deletion.
    #[must_use]
    pub fn at_once(self) -> Self {
        const HOUR: i64 = 3600;
        Self {
            hold: 0,
            young: self.young.min(HOUR),
            loose: self.loose.min(HOUR),
            ..self
        }
    }
}

/// Which paths of a cache are kept in addition to pinned and young ones. By default, all paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retention {
    /// Time after its last use for which a path is kept, in seconds. `None`: it is kept forever.
    pub time: Option<i64>,
    /// Other times for paths with certain names. The first rule that matches applies.
    pub rules: Vec<RetentionRule>,
    /// Maximum total length of the cache's files, in bytes. If it is exceeded, the paths that were
    /// not used for the longest time are deleted. `None`: no limit.
    pub size: Option<u64>,
}

/// A retention time for paths whose names match a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionRule {
    /// Pattern of names without the hash part.
    pub names: Glob,
    /// Time as in [`Retention::time`].
    pub time: Option<i64>,
}

impl Retention {
    /// Returns the rule that applies to paths of this name, or `None` if none matches.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<&RetentionRule> {
        self.rules.iter().find(|rule| rule.names.matches(name))
    }

    /// Returns the time after its last use for which a path of this name is kept, in seconds.
    /// `None`: it is kept forever.
    #[must_use]
    pub fn time_of(&self, name: &str) -> Option<i64> {
        self.rule(name).map_or(self.time, |rule| rule.time)
    }
}

/// The retention of each cache, by name. Caches without an entry keep all their paths.
#[derive(Debug, Clone, Default)]
pub struct Retentions(HashMap<String, Retention>);

impl Retentions {
    /// Returns the retention of the cache with this name.
    #[must_use]
    pub fn of(&self, cache: &str) -> &Retention {
        const ALL: &Retention = &Retention {
            time: None,
            rules: Vec::new(),
            size: None,
        };
        self.0.get(cache).unwrap_or(ALL)
    }

    /// Returns the shortest retention time of any path, in seconds. `None`: all paths are kept
    /// forever.
    pub(crate) fn shortest(&self) -> Option<i64> {
        let of = |retention: &Retention| {
            let rules = retention.rules.iter().filter_map(|rule| rule.time);
            rules.chain(retention.time).min()
        };
        self.0.values().filter_map(of).min()
    }
}

impl FromIterator<(String, Retention)> for Retentions {
    fn from_iter<T: IntoIterator<Item = (String, Retention)>>(retentions: T) -> Self {
        Self(retentions.into_iter().collect())
    }
}

/// Formats a retention time, which is given in seconds, in the largest unit without a fraction.
#[must_use]
pub fn retention_time(seconds: i64) -> String {
    let units = [(DAY, "day"), (3600, "hour"), (60, "minute"), (1, "second")];
    let unit = units.into_iter().find(|(length, _)| seconds % length == 0);
    let (length, noun) = unit.unwrap_or((1, "second"));
    counted(seconds / length, noun)
}
