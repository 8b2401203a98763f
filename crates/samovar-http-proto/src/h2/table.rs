//! A map from stream numbers to streams.

/// A map with at most a few hundred entries, for which a linear search is faster than hashing.
#[derive(Debug)]
pub(super) struct Table<S> {
    /// `ids[i]` is the stream number of `entries[i]`, or 0 for a free slot.
    ids: Vec<u32>,
    entries: Vec<Option<S>>,
    count: usize,
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self {
            ids: Vec::new(),
            entries: Vec::new(),
            count: 0,
        }
    }
}

impl<S> Table<S> {
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of slots, both used and free.
    pub(super) fn slot_count(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn insert(&mut self, id: u32, entry: S) {
        let slot = self.slot(0).unwrap_or_else(|| {
            self.ids.push(0);
            self.entries.push(None);
            self.ids.len() - 1
        });
        if let (Some(slot_id), Some(slot)) = (self.ids.get_mut(slot), self.entries.get_mut(slot)) {
            (*slot_id, *slot) = (id, Some(entry));
            self.count += 1;
        }
    }

    pub(super) fn find(&mut self, id: u32) -> Option<&mut S> {
        let slot = self.slot(id)?;
        self.entries.get_mut(slot)?.as_mut()
    }

    pub(super) fn peek(&self, id: u32) -> Option<&S> {
        self.entries.get(self.slot(id)?)?.as_ref()
    }

    /// Returns the stream in a slot, with its number; `None` if the slot is free.
    pub(super) fn at(&mut self, slot: usize) -> Option<(u32, &mut S)> {
        let id = *self.ids.get(slot)?;
        Some((id, self.entries.get_mut(slot)?.as_mut()?))
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<S> {
        let slot = self.slot(id)?;
        let entry = self.entries.get_mut(slot)?.take()?;
        *self.ids.get_mut(slot)? = 0;
        self.count -= 1;
        Some(entry)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &S)> {
        let slots = self.ids.iter().zip(&self.entries);
        slots.filter_map(|(id, entry)| Some((*id, entry.as_ref()?)))
    }

    fn slot(&self, id: u32) -> Option<usize> {
        self.ids.iter().position(|taken| *taken == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused() {
        let mut table = Table::default();
        for id in [1, 3, 5] {
            table.insert(id, id * 10);
        }
        assert_eq!(table.remove(3), Some(30));
        assert_eq!((table.remove(3), table.count()), (None, 2));
        table.insert(7, 70);
        assert_eq!(table.slot_count(), 3);
        assert_eq!(table.find(7), Some(&mut 70));
        assert_eq!(table.at(1), Some((7, &mut 70)));
        assert_eq!(table.peek(0), None);
        let all: Vec<_> = table.iter().map(|(id, _)| id).collect();
        assert_eq!(all, [1, 7, 5]);
    }
}
