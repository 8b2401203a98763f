//! A trie of patterns by path segment, with a backtracking search.
//!
//! At each segment, the search tries the alternatives from the most to the least specific: literal
//! text, partial segment, any segment, rest. It backtracks from dead ends, so it finds a pattern
//! whenever one matches, in any order of registration.
//!
//! # Cost
//!
//! Finding a literal takes a binary search among its siblings; the search allocates nothing. A node
//! that is not below a rest is visited at most once. A node below a rest may be visited once for
//! each possible end of the rest. Failed positions are recorded, so the number of steps is at most
//! the product of the path's segments and the trie's nodes.

use super::path::Path;
use super::pattern::{Matcher, Partial, Pattern, WILDCARD_COUNT_MAX};
use crate::request::Span;

/// Captures of a pattern's wildcards, in order.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Captures {
    spans: [Span; WILDCARD_COUNT_MAX],
    count: usize,
}

impl Captures {
    pub(crate) fn spans(&self) -> &[Span] {
        self.spans.get(..self.count).unwrap_or_default()
    }

    fn push(&mut self, span: Span) {
        // A pattern has at most `WILDCARD_COUNT_MAX` wildcards, so the slot exists.
        if let Some(place) = self.spans.get_mut(self.count) {
            *place = span;
            self.count += 1;
        }
    }

    fn pop(&mut self) {
        self.count = self.count.saturating_sub(1);
    }
}

#[derive(Debug, Default)]
struct Node<V> {
    /// Children for literal text: pairs of the text and the child's index, sorted by text.
    literals: Vec<(Box<str>, usize)>,
    /// Children for partial segments: pairs of the matcher and the child's index, sorted by rank.
    partials: Vec<(Partial, usize)>,
    one: Option<usize>,
    rest: Option<usize>,
    value: Option<V>,
}

impl<V> Node<V> {
    fn has_children(&self) -> bool {
        !self.literals.is_empty() || !self.partials.is_empty()
    }
}

/// A map from patterns to values.
#[derive(Debug)]
pub(crate) struct Trie<V> {
    /// All nodes of the trie. Invariant: every index in a node refers to a node; the first node is
    /// the root.
    nodes: Vec<Node<V>>,
}

impl<V: Default> Default for Trie<V> {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
        }
    }
}

impl<V: Default> Trie<V> {
    /// Returns the value slot of a pattern, adding nodes as needed.
    pub(crate) fn entry(&mut self, pattern: &Pattern) -> &mut Option<V> {
        let mut at = 0;
        for matcher in &pattern.matchers {
            at = self.child(at, matcher);
        }
        &mut self.nodes[at].value
    }

    fn child(&mut self, at: usize, matcher: &Matcher) -> usize {
        let fresh = self.nodes.len();
        let node = &mut self.nodes[at];
        let child = match matcher {
            Matcher::Literal(text) => {
                match node.literals.binary_search_by(|(known, _)| known.cmp(text)) {
                    Ok(index) => node.literals[index].1,
                    Err(index) => {
                        node.literals.insert(index, (text.clone(), fresh));
                        fresh
                    }
                }
            }
            Matcher::Partial(partial) => {
                match node.partials.iter().find(|(known, _)| known == partial) {
                    Some((_, child)) => *child,
                    None => {
                        node.partials.push((partial.clone(), fresh));
                        node.partials
                            .sort_by(|(a, _), (b, _)| a.rank().cmp(&b.rank()));
                        fresh
                    }
                }
            }
            Matcher::One => *node.one.get_or_insert(fresh),
            Matcher::Rest => *node.rest.get_or_insert(fresh),
        };
        if child == fresh {
            self.nodes.push(Node::default());
        }
        child
    }

    /// Finds the most specific matching pattern whose value `accept` accepts. Returns the result of
    /// `accept` and the captures; `None` if no such pattern matches.
    pub(crate) fn find<'t, T>(
        &'t self,
        path: &Path<'_>,
        accept: impl FnMut(&'t V) -> Option<T>,
    ) -> Option<(T, Captures)> {
        let mut search = Search {
            trie: self,
            path,
            accept,
            captures: Captures::default(),
            failed: Vec::new(),
        };
        let found = search.descend(0, Some(1))?;
        Some((found, search.captures))
    }
}

struct Search<'t, 'p, V, F> {
    trie: &'t Trie<V>,
    path: &'p Path<'p>,
    accept: F,
    captures: Captures,
    /// Positions from which the search has failed: pairs of a node of a `{*rest}` and a start of
    /// the rest from which no end led to a match.
    failed: Vec<(usize, usize)>,
}

impl<'t, V, T, F: FnMut(&'t V) -> Option<T>> Search<'t, '_, V, F> {
    /// Matches the segments from `at` on against the nodes below the node `index`. `at` is `None`
    /// at the end of the path. The length of the longest pattern bounds the recursion depth.
    fn descend(&mut self, index: usize, at: Option<usize>) -> Option<T> {
        let trie = self.trie;
        let node = trie.nodes.get(index)?;
        let Some(start) = at else {
            return (self.accept)(node.value.as_ref()?);
        };
        let path = self.path;
        let (segment, next) = path.segment(start);
        let literal = node
            .literals
            .binary_search_by(|(text, _)| text.as_bytes().cmp(segment));
        if let Some((_, child)) = literal.ok().and_then(|found| node.literals.get(found))
            && let Some(found) = self.descend(*child, next)
        {
            return Some(found);
        }
        for (partial, child) in &node.partials {
            if let Some((from, to)) = partial.find(segment) {
                let span = Span::new(start + from, start + to);
                if let Some(found) = self.captured(span, *child, next) {
                    return Some(found);
                }
            }
        }
        if segment.is_empty() {
            return None;
        }
        if let Some(child) = node.one {
            let span = Span::new(start, start + segment.len());
            if let Some(found) = self.captured(span, child, next) {
                return Some(found);
            }
        }
        self.rest(node.rest?, start, next)
    }

    fn captured(&mut self, span: Span, child: usize, at: Option<usize>) -> Option<T> {
        self.captures.push(span);
        let found = self.descend(child, at);
        if found.is_none() {
            self.captures.pop();
        }
        found
    }

    /// Matches a rest that starts at `start`. Tries the shortest rest first, then longer ones, and
    /// last the rest up to the end of the path.
    fn rest(&mut self, child: usize, start: usize, first_end: Option<usize>) -> Option<T> {
        let is_known = |(node, from): &(usize, usize)| *node == child && *from <= start;
        if self.failed.iter().any(is_known) {
            return None;
        }
        let continues = self.trie.nodes.get(child)?.has_children();
        let mut end = if continues { first_end } else { None };
        while let Some(at) = end {
            if let Some(found) = self.captured(Span::new(start, at - 1), child, end) {
                return Some(found);
            }
            end = self.path.segment(at).1;
        }
        let found = self.captured(Span::new(start, self.path.end()), child, None);
        if found.is_none() {
            self.failed.push((child, start));
        }
        found
    }
}
