//! The connections of one I/O thread, by key.

use super::link::Link;
use crate::net::key::Key;
use crate::sys::Edges;

/// The state of a slot.
#[derive(Debug)]
enum State {
    Vacant,
    Here(Link),
    /// The connection was taken out. Stores readiness events meanwhile, because epoll reports each
    /// edge only once.
    Away(Edges),
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    state: State,
}

/// The connections of one I/O thread, including those that workers have.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    count: usize,
}

impl Slab {
    /// Returns the number of connections, including those taken out.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Reserves a slot for a new connection, which counts as taken out until [`put`](Self::put).
    pub(crate) fn reserve(&mut self) -> Key {
        self.count += 1;
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                state: State::Vacant,
            });
            u32::try_from(self.slots.len() - 1).expect("fewer connections than 2^32 descriptors")
        });
        let slot = &mut self.slots[index as usize];
        slot.state = State::Away(Edges::default());
        Key {
            index,
            generation: slot.generation,
        }
    }

    /// Frees a slot, even if its connection was taken out; returns `false` if the slot was already
    /// free.
    pub(crate) fn free(&mut self, key: Key) -> bool {
        let Some(slot) = self.slot(key) else {
            return false;
        };
        slot.state = State::Vacant;
        // Generations wrap after four billion connections in one slot; no queued event is that old.
        // The two largest generations are reserved for the keys of listeners and of the wake-up.
        slot.generation = if slot.generation >= u32::MAX - 2 {
            0
        } else {
            slot.generation + 1
        };
        self.vacant.push(key.index);
        self.count -= 1;
        true
    }

    /// Takes a connection out of its slot, for a step or for a worker; returns `None` if it was
    /// taken out already, or is closed.
    pub(crate) fn take(&mut self, key: Key) -> Option<Link> {
        let slot = self.slot(key)?;
        match std::mem::replace(&mut slot.state, State::Away(Edges::default())) {
            State::Here(link) => Some(link),
            other => {
                slot.state = other;
                None
            }
        }
    }

    /// Puts a connection back into its slot.
    pub(crate) fn put(&mut self, key: Key, mut link: Link) {
        let Some(slot) = self.slot(key) else { return };
        if let State::Away(edges) = slot.state {
            link.note(edges);
        }
        slot.state = State::Here(link);
    }

    /// Returns whether the connection was taken out and not put back yet, for example because a
    /// worker has it.
    pub(crate) fn is_away(&mut self, key: Key) -> bool {
        self.slot(key)
            .is_some_and(|slot| matches!(slot.state, State::Away(_)))
    }

    /// Records readiness events of a connection that was taken out.
    pub(crate) fn note(&mut self, key: Key, news: Edges) {
        if let Some(Slot {
            state: State::Away(edges),
            ..
        }) = self.slot(key)
        {
            *edges |= news;
        }
    }

    /// Takes the events recorded since the connection was taken out.
    pub(crate) fn take_edges(&mut self, key: Key) -> Edges {
        match self.slot(key) {
            Some(Slot {
                state: State::Away(edges),
                ..
            }) => std::mem::take(edges),
            _ => Edges::default(),
        }
    }

    /// Collects the keys of all connections that are in their slots.
    pub(crate) fn keys_here(&self, keys: &mut Vec<Key>) {
        keys.clear();
        for (index, slot) in self.slots.iter().enumerate() {
            if let (State::Here(_), Ok(index)) = (&slot.state, u32::try_from(index)) {
                keys.push(Key {
                    index,
                    generation: slot.generation,
                });
            }
        }
    }

    /// Returns a connection; `None` if it was taken out or is closed.
    pub(crate) fn peek(&self, key: Key) -> Option<&Link> {
        match self.slots.get(key.index as usize) {
            Some(Slot {
                generation,
                state: State::Here(link),
            }) if *generation == key.generation => Some(link),
            _ => None,
        }
    }

    fn slot(&mut self, key: Key) -> Option<&mut Slot> {
        self.slots.get_mut(key.index as usize).filter(|slot| {
            slot.generation == key.generation && !matches!(slot.state, State::Vacant)
        })
    }
}
