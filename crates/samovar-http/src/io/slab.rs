//! Connections of one I/O thread by key.

use super::key::Key;
use super::link::Link;
use super::sys::Edges;

/// Where a connection is.
#[derive(Debug)]
enum Place {
    Vacant,
    Here(Link),
    /// With a worker. Edges that came meanwhile are kept: they do not come again.
    Away(Edges),
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    place: Place,
}

/// The connections of one I/O thread, those with workers included.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    count: usize,
}

impl Slab {
    /// Connections here and away.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Finds a place for a new connection. It counts as away until it is put there.
    pub(crate) fn reserve(&mut self) -> Key {
        self.count += 1;
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                place: Place::Vacant,
            });
            u32::try_from(self.slots.len() - 1).expect("fewer connections than 2^32 descriptors")
        });
        let slot = &mut self.slots[index as usize];
        slot.place = Place::Away(Edges::default());
        Key {
            index,
            generation: slot.generation,
        }
    }

    /// Frees a place, whether its connection is here or was taken out; `false` if it was free.
    pub(crate) fn free(&mut self, key: Key) -> bool {
        let Some(slot) = self.slot(key) else {
            return false;
        };
        slot.place = Place::Vacant;
        // Wraps after four billion connections on one place; an event that old does not exist.
        // The two largest keys mean the listeners and the wake-up, so they are left out.
        slot.generation = if slot.generation >= u32::MAX - 2 {
            0
        } else {
            slot.generation + 1
        };
        self.vacant.push(key.index);
        self.count -= 1;
        true
    }

    /// Takes a connection out, to work on it or to give it away.
    pub(crate) fn take(&mut self, key: Key) -> Option<Link> {
        let slot = self.slot(key)?;
        match std::mem::replace(&mut slot.place, Place::Away(Edges::default())) {
            Place::Here(link) => Some(link),
            other => {
                slot.place = other;
                None
            }
        }
    }

    /// Puts a connection back.
    pub(crate) fn put(&mut self, key: Key, mut link: Link) {
        let Some(slot) = self.slot(key) else { return };
        if let Place::Away(edges) = slot.place {
            link.note(edges);
        }
        slot.place = Place::Here(link);
    }

    /// Whether a connection is with a worker, or on its way back.
    pub(crate) fn is_away(&mut self, key: Key) -> bool {
        self.slot(key)
            .is_some_and(|slot| matches!(slot.place, Place::Away(_)))
    }

    /// Remembers what happened to a connection that is away.
    pub(crate) fn note(&mut self, key: Key, news: Edges) {
        if let Some(Slot {
            place: Place::Away(edges),
            ..
        }) = self.slot(key)
        {
            *edges |= news;
        }
    }

    /// What happened since the connection was taken out; says so once.
    pub(crate) fn take_edges(&mut self, key: Key) -> Edges {
        match self.slot(key) {
            Some(Slot {
                place: Place::Away(edges),
                ..
            }) => std::mem::take(edges),
            _ => Edges::default(),
        }
    }

    /// The keys of all connections that are here.
    pub(crate) fn keys_here(&self, keys: &mut Vec<Key>) {
        keys.clear();
        for (index, slot) in self.slots.iter().enumerate() {
            if let (Place::Here(_), Ok(index)) = (&slot.place, u32::try_from(index)) {
                keys.push(Key {
                    index,
                    generation: slot.generation,
                });
            }
        }
    }

    /// A connection that is here.
    pub(crate) fn peek(&self, key: Key) -> Option<&Link> {
        match self.slots.get(key.index as usize) {
            Some(Slot {
                generation,
                place: Place::Here(link),
            }) if *generation == key.generation => Some(link),
            _ => None,
        }
    }

    fn slot(&mut self, key: Key) -> Option<&mut Slot> {
        self.slots.get_mut(key.index as usize).filter(|slot| {
            slot.generation == key.generation && !matches!(slot.place, Place::Vacant)
        })
    }
}
