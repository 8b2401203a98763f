//! [`Memory`]: what is remembered about paths, bounded in number and in time.

use std::collections::HashMap;
use std::time::Instant;

use samovar_nix::HashPart;

/// A table of facts about paths. New facts go into the young generation. When it is full, the old
/// generation is dropped, and the young generation becomes the old one.
#[derive(Debug)]
pub struct Memory<V> {
    young: HashMap<HashPart, (V, Instant)>,
    old: HashMap<HashPart, (V, Instant)>,
    count_max: usize,
}

impl<V> Memory<V> {
    /// Creates an empty table. `count_max`: maximum number of facts.
    #[must_use]
    pub fn new(count_max: usize) -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            count_max,
        }
    }

    /// Returns the fact about a path, if it counts at this time.
    #[must_use]
    pub fn get(&self, hash_part: &HashPart, now: Instant) -> Option<&V> {
        let young = self.young.get(hash_part);
        let (value, until) = young.or_else(|| self.old.get(hash_part))?;
        (now < *until).then_some(value)
    }

    /// Returns the fact about a path, whether or not it still counts.
    #[must_use]
    pub fn last(&self, hash_part: &HashPart) -> Option<&V> {
        let young = self.young.get(hash_part);
        let (value, _) = young.or_else(|| self.old.get(hash_part))?;
        Some(value)
    }

    /// Adds or replaces the fact about a path, which counts until the given time.
    pub fn insert(&mut self, hash_part: HashPart, value: V, until: Instant) {
        if self.young.len() >= self.count_max / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&hash_part);
        self.young.insert(hash_part, (value, until));
    }

    /// Forgets the fact about a path.
    pub fn remove(&mut self, hash_part: &HashPart) {
        self.young.remove(hash_part);
        self.old.remove(hash_part);
    }

    /// Returns the number of facts in memory, including those that no longer count.
    #[must_use]
    pub fn count(&self) -> usize {
        self.young.len().saturating_add(self.old.len())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn path(number: u8) -> HashPart {
        HashPart::from_bytes([number; 20])
    }

    #[test]
    fn a_fact_counts_until_its_time_and_the_number_of_facts_is_bounded() {
        // The only clock: all other times are relative to it.
        #[expect(clippy::disallowed_methods, reason = "a test needs one instant")]
        let now = Instant::now();
        let later = now + Duration::from_secs(60);
        let mut memory = Memory::new(10);
        memory.insert(path(1), "a", later);
        assert_eq!(memory.get(&path(1), now), Some(&"a"));
        assert_eq!(memory.get(&path(1), later), None);
        assert_eq!(memory.last(&path(1)), Some(&"a"));
        memory.insert(path(1), "b", later);
        assert_eq!(memory.get(&path(1), now), Some(&"b"));
        assert_eq!(memory.count(), 1);
        for number in 2..100 {
            memory.insert(path(number), "c", later);
            assert!(memory.count() <= 10);
            assert_eq!(memory.get(&path(number), now), Some(&"c"));
        }
        assert_eq!(memory.get(&path(1), now), None);
        memory.remove(&path(99));
        assert_eq!(memory.get(&path(99), now), None);
    }
}
