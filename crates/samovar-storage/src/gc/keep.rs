//! Decides which paths the collector keeps.

use std::collections::HashMap;

use crate::gc::{Retention, Retentions, Rules};
use crate::metadata::{Graph, USE_INTERVAL};

/// Time by which the recorded last use of a path may be older than its last use, in seconds: uses
/// within [`USE_INTERVAL`] are not recorded, and others wait in memory while the database is busy.
const RECORD_DELAY: i64 = 2 * USE_INTERVAL;

/// The decision about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Keep the path.
    Keep,
    /// Delete the path: it was not used within the retention time.
    Unused,
    /// Delete the path: its cache exceeds the retention size.
    OverSize,
}

/// Returns a verdict for each path, in the order of the graph.
///
/// A path is kept if it is young, pinned or used within its retention time, or if a kept path
/// refers to it. If the kept paths of a cache exceed its retention size, the paths that were not
/// used for the longest time are deleted first, but never one that is pinned, young, used within
/// [`Rules::young`], or in the closure of a kept path of another cache. A use of a path counts as a
/// use of its closure. A path of an upstream keeps no other path, unless an uploaded path needs it.
pub(crate) fn decide(
    graph: &Graph,
    retentions: &Retentions,
    rules: &Rules,
    now: i64,
) -> Vec<Verdict> {
    let retentions = graph.caches.iter().map(|name| retentions.of(name));
    let retentions: Vec<&Retention> = retentions.collect();
    let mut kept = vec![false; graph.paths.len()];
    let mut needed = vec![false; graph.paths.len()];
    let mut of_upstreams = Vec::new();
    for (index, path) in graph.paths.iter().enumerate() {
        let is_used = |time: i64| path.used_at >= now - time - RECORD_DELAY;
        let young = path
            .retention
            .map_or(rules.young, |time| time.min(rules.young));
        let is_needed = path.registered_at > now - young || is_used(young);
        let is_kept = path.retention.is_none_or(is_used);
        match graph.is_of_upstream(index) {
            true => of_upstreams.push((index, is_needed, is_kept)),
            false => (needed[index], kept[index]) = (is_needed, is_kept),
        }
    }
    for index in &graph.pinned {
        needed[*index as usize] = true;
    }
    spread(graph, &mut needed);
    for (kept, needed) in kept.iter_mut().zip(&needed) {
        *kept |= needed;
    }
    spread(graph, &mut kept);
    for (index, is_needed, is_kept) in of_upstreams {
        // What kept uploads need is needed.
        needed[index] |= kept[index] || is_needed;
        kept[index] |= is_kept || is_needed;
    }
    let mut verdicts: Vec<Verdict> = kept
        .iter()
        .map(|kept| {
            if *kept {
                Verdict::Keep
            } else {
                Verdict::Unused
            }
        })
        .collect();
    if retentions.iter().any(|retention| retention.size.is_some()) {
        shrink(graph, &retentions, &needed, &mut verdicts);
    }
    verdicts
}

/// Extends the marks from the marked paths to their closures.
fn spread(graph: &Graph, marked: &mut [bool]) {
    // References have smaller indices than their referrers, so the first pass marks all of them.
    let mut is_changed = true;
    while is_changed {
        is_changed = false;
        for index in (0..marked.len()).rev() {
            if !marked[index] {
                continue;
            }
            for reference in graph.references(index) {
                is_changed |= !marked[reference];
                marked[reference] = true;
            }
        }
    }
}

/// Changes the verdict on the least recently used paths of each cache that exceeds its retention
/// size.
fn shrink(graph: &Graph, retentions: &[&Retention], needed: &[bool], verdicts: &mut [Verdict]) {
    let used_at = closure_uses(graph, verdicts);
    // Number of kept paths for each cache and NAR. The file of a NAR counts once per cache.
    let mut counts: HashMap<(u32, i64), u32> = HashMap::new();
    let mut sizes = vec![0_u64; retentions.len()];
    let mut candidates = Vec::new();
    for (index, path) in graph.paths.iter().enumerate() {
        if retentions[path.cache as usize].size.is_none() || verdicts[index] != Verdict::Keep {
            continue;
        }
        let count = counts.entry((path.cache, path.nar_id)).or_default();
        if *count == 0 {
            sizes[path.cache as usize] += path.file_size;
        }
        *count += 1;
        if !needed[index] {
            candidates.push(index);
        }
    }
    // Among paths with the same last use, newer rows come first, so that a path is deleted before
    // its references.
    candidates.sort_by_key(|index| (used_at[*index], std::cmp::Reverse(*index)));
    for index in candidates {
        let path = &graph.paths[index];
        let cache = path.cache as usize;
        if retentions[cache].size.is_none_or(|max| sizes[cache] <= max) {
            continue;
        }
        verdicts[index] = Verdict::OverSize;
        if let Some(count) = counts.get_mut(&(path.cache, path.nar_id)) {
            *count -= 1;
            if *count == 0 {
                sizes[cache] -= path.file_size;
            }
        }
    }
}

/// Returns the time of the last use of each path, where a use of a kept path also counts for its
/// references.
fn closure_uses(graph: &Graph, verdicts: &[Verdict]) -> Vec<i64> {
    let mut used_at: Vec<i64> = graph.paths.iter().map(|path| path.used_at).collect();
    let mut is_changed = true;
    while is_changed {
        is_changed = false;
        for index in (0..used_at.len()).rev() {
            if verdicts[index] != Verdict::Keep {
                continue;
            }
            for reference in graph.references(index) {
                if used_at[reference] < used_at[index] {
                    used_at[reference] = used_at[index];
                    is_changed = true;
                }
            }
        }
    }
    used_at
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use samovar_nix::Glob;

    use super::*;
    use crate::gc::RetentionRule;
    use crate::metadata::{DAY, GraphPath};

    const NOW: i64 = 20_000 * DAY + 5000;

    /// A path of a random graph: its cache, NAR, days since its last use, age in hours, references
    /// to earlier paths, and whether it is pinned.
    type Node = (u32, i64, i64, i64, Vec<usize>, bool);

    fn graph(nodes: &[Node]) -> Graph {
        let mut graph = Graph {
            caches: vec!["a".to_owned(), "b".to_owned()],
            starts: vec![0],
            ..Graph::default()
        };
        for (index, (cache, nar, unused, age, references, is_pinned)) in nodes.iter().enumerate() {
            graph.paths.push(GraphPath {
                id: i64::try_from(index).unwrap() * 2 + 1,
                cache: *cache,
                nar_id: *nar,
                file_size: 1 << *nar,
                used_at: NOW - unused * DAY,
                registered_at: NOW - age * 3600,
                retention: None,
                is_condemned: false,
            });
            let references: BTreeSet<u32> = references
                .iter()
                .filter_map(|reference| u32::try_from(reference % index.max(1)).ok())
                .filter(|reference| index > 0 && nodes[*reference as usize].0 == *cache)
                .collect();
            graph.references.extend(references);
            graph
                .starts
                .push(u32::try_from(graph.references.len()).unwrap());
            if *is_pinned {
                graph.pinned.push(u32::try_from(index).unwrap());
            }
        }
        graph
    }

    /// Returns the closures of `roots`, by recursion.
    fn closure(graph: &Graph, roots: impl Iterator<Item = usize>) -> BTreeSet<usize> {
        fn visit(graph: &Graph, index: usize, found: &mut BTreeSet<usize>) {
            if found.insert(index) {
                graph
                    .references(index)
                    .for_each(|next| visit(graph, next, found));
            }
        }
        let mut found = BTreeSet::new();
        roots.for_each(|root| visit(graph, root, &mut found));
        found
    }

    fn nodes() -> impl Strategy<Value = Vec<Node>> {
        let node = (
            0..2_u32,
            0..12_i64,
            0..20_i64,
            0..60_i64,
            proptest::collection::vec(0..1000_usize, 0..5),
            proptest::bool::weighted(0.05),
        );
        proptest::collection::vec(node, 0..60)
    }

    /// Returns the total size of the kept files of a cache, in bytes. A file of several paths
    /// counts once.
    fn kept_size(graph: &Graph, verdicts: &[Verdict], cache: u32) -> u64 {
        let nars: BTreeSet<(i64, u64)> = graph
            .paths
            .iter()
            .zip(verdicts)
            .filter(|(path, verdict)| path.cache == cache && **verdict == Verdict::Keep)
            .map(|(path, _)| (path.nar_id, path.file_size))
            .collect();
        nars.iter().map(|(_, size)| size).sum()
    }

    proptest! {
        /// The naive rule: a path is kept if it is in the closure of a path that is pinned, young
        /// or recently used.
        #[test]
        fn the_kept_paths_are_the_closures_of_roots(nodes in nodes(), days in 1..15_u32) {
            let mut graph = graph(&nodes);
            // Paths have different retention times, as with rules for names.
            let days = |index: usize| days + u32::try_from(index).unwrap() % 3;
            for (index, path) in graph.paths.iter_mut().enumerate() {
                path.retention = (path.cache == 0).then_some(i64::from(days(index)) * DAY);
            }
            let verdicts = decide(&graph, &Retentions::default(), &Rules::default(), NOW);
            let is_root = |index: &usize| {
                let (cache, _, unused, age, _, is_pinned) = nodes[*index];
                let days = i64::from(days(*index));
                cache == 1 || is_pinned || age < 24 || unused <= days
            };
            let expected = closure(&graph, (0..nodes.len()).filter(is_root));
            for (index, verdict) in verdicts.iter().enumerate() {
                prop_assert_eq!(*verdict == Verdict::Keep, expected.contains(&index));
                prop_assert_ne!(*verdict, Verdict::OverSize);
            }
        }

        #[test]
        fn a_retention_size_gives_up_the_longest_unused_closures(
            nodes in nodes(),
            max in 0..5000_u64,
        ) {
            let graph = graph(&nodes);
            let limit = Retention {
                size: Some(max),
                ..Retention::default()
            };
            let (unlimited, limited) =
                (Retentions::default(), Retentions::from_iter([("a".to_owned(), limit)]));
            let rules = Rules::default();
            let all = decide(&graph, &unlimited, &rules, NOW);
            prop_assert!(all.iter().all(|verdict| *verdict == Verdict::Keep));
            let verdicts = decide(&graph, &limited, &rules, NOW);
            let is_kept = |index: usize| verdicts[index] == Verdict::Keep;
            let kept = closure(&graph, (0..nodes.len()).filter(|index| is_kept(*index)));
            prop_assert!(kept.iter().all(|index| is_kept(*index)), "closures are complete");
            let needed = closure(&graph, (0..nodes.len()).filter(|index| {
                let (cache, _, unused, age, _, is_pinned) = nodes[*index];
                cache == 1 || is_pinned || age < 24 || unused <= 1
            }));
            prop_assert!(needed.iter().all(|index| is_kept(*index)));
            let dropped: Vec<usize> = (0..nodes.len()).filter(|index| !is_kept(*index)).collect();
            let size = kept_size(&graph, &verdicts, 0);
            if kept.iter().any(|index| !needed.contains(index)) {
                prop_assert!(size <= max, "{} > {}", size, max);
            }
            // Each kept path was used later than each deleted one.
            let last_use = |index: usize| {
                let users = (0..nodes.len()).filter(|user| {
                    closure(&graph, std::iter::once(*user)).contains(&index)
                });
                users.map(|user| graph.paths[user].used_at).max()
            };
            for dropped in &dropped {
                for kept in kept.difference(&needed) {
                    prop_assert!(last_use(*dropped) <= last_use(*kept));
                }
            }
            // No path too many was deleted: with the last one, the cache would exceed the limit.
            if let Some(last) = dropped.iter().max_by_key(|index| {
                (last_use(**index), std::cmp::Reverse(**index))
            }) {
                let mut more = verdicts.clone();
                more[*last] = Verdict::Keep;
                prop_assert!(kept_size(&graph, &more, 0) > max);
            }
        }
    }

    #[track_caller]
    fn check(unused: i64, age: i64, retention: i64, expected: Verdict) {
        let mut graph = graph(&[(0, 1, 0, 0, Vec::new(), false)]);
        graph.paths[0].registered_at = NOW - age;
        graph.paths[0].used_at = NOW - unused;
        graph.paths[0].retention = Some(retention);
        let verdicts = decide(&graph, &Retentions::default(), &Rules::default(), NOW);
        assert_eq!(verdicts, [expected]);
    }

    #[test]
    fn the_first_rule_that_matches_a_name_applies() {
        let rule = |names, time| RetentionRule {
            names: Glob::new(names),
            time,
        };
        let retention = Retention {
            time: Some(90),
            rules: vec![
                rule("keep-*", None),
                rule("*-debug", Some(30)),
                rule("*-d*", Some(7)),
            ],
            size: None,
        };
        for (name, time) in [
            ("keep-a-debug", None),
            ("curl-8.5.0-debug", Some(30)),
            ("curl-8.5.0-dev", Some(7)),
            ("curl-8.5.0", Some(90)),
        ] {
            assert_eq!(retention.time_of(name), time, "{name}");
        }
        let retentions = Retentions::from_iter([("a".to_owned(), retention.clone())]);
        assert_eq!(*retentions.of("a"), retention);
        assert_eq!(*retentions.of("b"), Retention::default());
    }

    #[test]
    fn the_limits_of_retention_and_youth() {
        let (month, old) = (30 * DAY, 40 * DAY);
        check(month + RECORD_DELAY, old, month, Verdict::Keep);
        check(month + RECORD_DELAY + 1, old, month, Verdict::Unused);
        check(old, DAY, month, Verdict::Unused);
        check(old, DAY - 1, month, Verdict::Keep);
        check(3600 + RECORD_DELAY, old, 3600, Verdict::Keep);
        check(3600 + RECORD_DELAY + 1, 3600, 3600, Verdict::Unused);
        check(old, 3599, 3600, Verdict::Keep);
    }
}
