//! The closure of a store path: all paths reachable by references, in topological order.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use samovar_nix::{HashPart, PathInfo, StorePath};

use crate::error::{LookupResult, StoreError};

/// A path of a closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The hash part of the path.
    pub hash_part: HashPart,
    /// Row id of the path's registration: see
    /// [`PathInfo::registration`](samovar_nix::PathInfo::registration).
    pub registration: Option<i64>,
}

/// Result of listing the closure of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closure {
    /// All paths of the closure, each after the paths that it refers to: the requested path is
    /// last.
    Members(Vec<Member>),
    /// The closure has more paths than the caller's limit.
    TooLarge,
    /// A path of the closure cannot be served: its NAR size is unknown, or it was garbage-collected
    /// during the query.
    Incomplete,
}

/// Looks up many hash parts one by one. A malformed row fails its own look-up only.
pub(crate) fn lookup_each(
    hash_parts: &[HashPart],
    lookup: impl Fn(HashPart) -> LookupResult,
) -> Result<Vec<LookupResult>, StoreError> {
    hash_parts
        .iter()
        .map(|hash_part| match lookup(*hash_part) {
            Err(error) if !error.is_about_one_path() => Err(error),
            looked => Ok(looked),
        })
        .collect()
}

/// Finds a closure by one look-up per path; returns `None` if the first path is absent. A closure
/// of more than `count_max` paths gives [`Closure::TooLarge`].
///
/// # Errors
///
/// Any error of `lookup`.
pub fn by_lookups<E>(
    hash_part: HashPart,
    count_max: usize,
    lookup: impl Fn(HashPart) -> Result<Option<PathInfo>, E>,
) -> Result<Option<Closure>, E> {
    let mut first = lookup(hash_part)?;
    if first.is_none() {
        return Ok(None);
    }
    let mut registrations = HashMap::new();
    let mut is_complete = true;
    let ordered = in_order(hash_part, count_max, |hash_part| {
        let info = match first.take() {
            Some(first) => Some(first),
            None => lookup(hash_part)?,
        };
        let Some(info) = info else {
            is_complete = false;
            return Ok(Vec::new());
        };
        registrations.insert(hash_part, info.registration);
        Ok(info.references.iter().map(StorePath::hash_part).collect())
    })?;
    let member = |hash_part| Member {
        hash_part,
        registration: registrations.get(&hash_part).copied().flatten(),
    };
    Ok(Some(match ordered {
        None => Closure::TooLarge,
        Some(_) if !is_complete => Closure::Incomplete,
        Some(ordered) => Closure::Members(ordered.into_iter().map(member).collect()),
    }))
}

/// Orders all nodes reachable from `start` topologically, references first. Returns `None` if there
/// are more than `count_max`.
///
/// Ignores back references: a path may refer to itself, and longer cycles cannot exist because a
/// path's name depends on its references. Works iteratively, so that depth costs no stack.
pub(crate) fn in_order<N: Copy + Eq + Hash, E>(
    start: N,
    count_max: usize,
    mut references: impl FnMut(N) -> Result<Vec<N>, E>,
) -> Result<Option<Vec<N>>, E> {
    if count_max == 0 {
        return Ok(None);
    }
    let mut seen = HashSet::from([start]);
    let mut ordered = Vec::new();
    // Stack of nodes, each with its references that are not visited yet, in reverse order.
    let mut open = vec![(start, reversed(references(start)?))];
    while let Some((node, left)) = open.last_mut() {
        let Some(next) = left.pop() else {
            ordered.push(*node);
            open.pop();
            continue;
        };
        if seen.contains(&next) {
            continue;
        }
        if seen.len() >= count_max {
            return Ok(None);
        }
        seen.insert(next);
        open.push((next, reversed(references(next)?)));
    }
    Ok(Some(ordered))
}

fn reversed<N>(mut nodes: Vec<N>) -> Vec<N> {
    nodes.reverse();
    nodes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    use super::*;

    fn order(graph: &HashMap<u16, Vec<u16>>, start: u16, count_max: usize) -> Option<Vec<u16>> {
        in_order(start, count_max, |node| {
            Ok::<_, StoreError>(graph[&node].clone())
        })
        .unwrap()
    }

    /// Returns the reachable nodes, found by another algorithm.
    fn reachable(graph: &HashMap<u16, Vec<u16>>, start: u16) -> BTreeSet<u16> {
        let mut found = BTreeSet::from([start]);
        loop {
            let more: Vec<u16> = found.iter().flat_map(|node| graph[node].clone()).collect();
            let count = found.len();
            found.extend(more);
            if found.len() == count {
                return found;
            }
        }
    }

    proptest! {
        /// Generates graphs in which each node refers to some lower nodes, and perhaps to itself.
        #[test]
        fn references_come_first_and_nothing_twice(
            edges in vec((btree_set(0..60_u16, 0..6), any::<bool>()), 1..60),
        ) {
            let graph: HashMap<u16, Vec<u16>> = (0..)
                .zip(&edges)
                .map(|(node, (references, to_itself))| {
                    let lower = references.iter().copied().filter(|other| *other < node);
                    (node, lower.chain(to_itself.then_some(node)).collect())
                })
                .collect();
            let start = u16::try_from(edges.len() - 1).unwrap();
            let expected = reachable(&graph, start);
            let ordered = order(&graph, start, expected.len()).unwrap();
            prop_assert_eq!(&ordered.iter().copied().collect::<BTreeSet<_>>(), &expected);
            prop_assert_eq!(ordered.len(), expected.len());
            prop_assert_eq!(ordered.last(), Some(&start));
            let place: HashMap<u16, usize> = ordered.iter().copied().zip(0..).collect();
            for node in &ordered {
                for reference in &graph[node] {
                    prop_assert!(place[reference] <= place[node]);
                }
            }
            prop_assert_eq!(order(&graph, start, expected.len() - 1), None);
        }

        /// Cycles, which only a corrupt database can contain, do not prevent the search from
        /// ending.
        #[test]
        fn cycles_end(edges in vec(btree_set(0..20_u16, 0..5), 20)) {
            let graph: HashMap<u16, Vec<u16>> = (0..)
                .zip(edges)
                .map(|(node, references)| (node, references.into_iter().collect()))
                .collect();
            let ordered = order(&graph, 0, 20).unwrap();
            prop_assert_eq!(ordered.into_iter().collect::<BTreeSet<_>>(), reachable(&graph, 0));
        }
    }

    #[test]
    fn depth_costs_no_stack() {
        let last = 300_000_u32;
        let ordered = in_order(0, usize::MAX, |node| {
            Ok::<_, StoreError>(if node < last { vec![node + 1] } else { vec![] })
        });
        assert!(ordered.unwrap().unwrap().into_iter().eq((0..=last).rev()));
    }
}
