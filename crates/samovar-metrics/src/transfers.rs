//! The NARs that are being sent.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use samovar_http::{Batch, Body, Peer, Progress, Source};

use crate::status::TransferStatus;

/// A list of the NARs that are being sent.
#[derive(Debug, Default)]
pub struct Transfers {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    /// The transfers in progress by ID. IDs increase with time.
    list: BTreeMap<u64, Arc<Transfer>>,
}

#[derive(Debug)]
struct Transfer {
    path: String,
    peer: Peer,
    len: u64,
    sent_len: AtomicU64,
    since: Instant,
}

/// A body that records how many of its bytes were read.
struct Watched {
    body: Box<dyn Source>,
    transfer: Arc<Transfer>,
    id: u64,
    all: Arc<Transfers>,
}

impl Transfers {
    /// Wraps a body, so that it is listed until it is dropped. A body in memory is returned
    /// unchanged, because it is sent at once.
    pub fn watch(self: &Arc<Self>, body: Body, path: String, peer: Peer) -> Body {
        let Body::Source(body) = body else {
            return body;
        };
        let transfer = Arc::new(Transfer {
            path,
            peer,
            len: body.len().unwrap_or(0),
            sent_len: AtomicU64::new(0),
            since: Instant::now(),
        });
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        state.list.insert(id, Arc::clone(&transfer));
        drop(state);
        Body::Source(Box::new(Watched {
            body,
            transfer,
            id,
            all: Arc::clone(self),
        }))
    }

    /// Returns the `count_max` oldest transfers, and the number of all transfers.
    pub(crate) fn list(&self, count_max: usize) -> (Vec<TransferStatus>, usize) {
        let state = self.state();
        let oldest = state.list.iter().take(count_max);
        let list: Vec<_> = oldest
            .map(|(id, transfer)| (*id, Arc::clone(transfer)))
            .collect();
        let count = state.list.len();
        drop(state);
        let status = |(id, transfer): (u64, Arc<Transfer>)| TransferStatus {
            id,
            path: transfer.path.clone(),
            client: transfer.peer.to_string(),
            sent_len: transfer.sent_len.load(Ordering::Relaxed),
            len: transfer.len,
            age_s: transfer.since.elapsed().as_secs_f64(),
        };
        (list.into_iter().map(status).collect(), count)
    }

    pub(crate) fn count(&self) -> usize {
        self.state().list.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Watched {
    fn len(&self) -> Option<u64> {
        self.body.len()
    }

    fn pull(&mut self, batch: &mut Batch) -> io::Result<Progress> {
        let before = batch.added_len();
        let progress = self.body.pull(batch);
        let added_len = batch.added_len().saturating_sub(before);
        self.transfer
            .sent_len
            .fetch_add(added_len, Ordering::Relaxed);
        progress
    }

    fn file_failed(&mut self, error: &io::Error) {
        self.body.file_failed(error);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let gone = self.all.state().list.remove(&self.id);
        // Free the transfer after the lock of the list is released.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nothing;

    impl Source for Nothing {
        fn len(&self) -> Option<u64> {
            Some(7)
        }

        fn pull(&mut self, _: &mut Batch) -> io::Result<Progress> {
            Ok(Progress::End)
        }
    }

    #[test]
    fn a_body_is_listed_until_it_is_dropped() {
        let all = Arc::new(Transfers::default());
        let peer = Peer::Tcp(([192, 0, 2, 7], 80).into());
        let body = |name: &str| all.watch(Body::Source(Box::new(Nothing)), name.into(), peer);
        let bodies: Vec<_> = ["a", "b", "c"].into_iter().map(body).collect();
        let (list, count) = all.list(2);
        assert_eq!((list.len(), count), (2, 3));
        assert_eq!((&*list[0].path, &*list[1].path), ("a", "b"));
        assert_eq!((list[0].len, &*list[0].client), (7, "192.0.2.7"));
        drop(bodies);
        assert_eq!(all.list(2), (Vec::new(), 0));
        let memory = all.watch(Body::Bytes(vec![1].into()), "d".into(), peer);
        assert_eq!(all.count(), 0);
        drop(memory);
    }
}
