//! A failed read of files means damage only if the path is still registered as before.

use samovar_nix::PathInfo;

use super::*;
use crate::known::shared_store::SharedStore;
use crate::tests::memory_store::MemoryStore;
use crate::tests::recorder::{Recorder, shared};

struct Fixture {
    store: MemoryStore,
    shared: Arc<SharedStore>,
    events: Arc<Recorder>,
    registration: Registration,
}

impl Fixture {
    fn new() -> Self {
        let store = MemoryStore::new();
        let (shared, events) = shared(&store, None);
        let info = store.add_file("a", b"a");
        let snapshot = shared.refresh();
        let registration = shared.registration(Row::from(&info), snapshot);
        Self {
            store,
            shared,
            events,
            registration,
        }
    }

    /// Reports an error, and returns the resulting events.
    fn report(&self, error: impl Into<io::Error>) -> Vec<&'static str> {
        self.registration.report(&error.into());
        self.events.take()
    }

    fn unreadable(&self) -> Refusal {
        self.shared
            .unreadable(&self.registration, &wrong_contents())
    }

    fn register_anew(&self, change: impl FnOnce(&mut PathInfo)) {
        self.store.change(&self.registration.row.path, change);
    }
}

#[test]
fn wrong_bytes_of_a_registered_path_are_damage() {
    let fixture = Fixture::new();
    for error in [wrong_contents(), wrong_size("shorter")] {
        assert_eq!(fixture.report(error), ["path quarantined"]);
    }
}

#[test]
fn a_disk_error_is_not_taken_for_damage() {
    let fixture = Fixture::new();
    for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::OutOfMemory] {
        assert_eq!(fixture.report(kind), ["path failed"]);
    }
    let io_error = io::Error::from(rustix::io::Errno::IO);
    assert_eq!(fixture.report(io_error), ["path failed"]);
}

#[test]
fn wrong_bytes_of_a_path_that_was_collected_or_registered_anew_are_not_taken_for_damage() {
    let fixture = Fixture::new();
    assert!(fixture.registration.is_current().unwrap());
    fixture.register_anew(|info| info.registration = Some(100));
    assert!(!fixture.registration.is_current().unwrap());
    assert_eq!(fixture.report(wrong_contents()), ["path collected"]);
    fixture.store.unregister(&fixture.registration.row.path);
    assert_eq!(fixture.report(wrong_contents()), ["path collected"]);
}

#[test]
fn wrong_bytes_are_not_taken_for_damage_while_the_store_is_unavailable() {
    let fixture = Fixture::new();
    fixture.store.fail(true);
    assert!(fixture.registration.is_current().is_err());
    assert_eq!(fixture.report(wrong_contents()), [""; 0]);
}

#[test]
fn a_missing_file_is_damage_only_if_the_store_is_mounted() {
    let fixture = Fixture::new();
    let file = fixture.store.file(&fixture.registration.row.path);
    assert_eq!(
        fixture.report(io::ErrorKind::NotFound),
        ["path quarantined"]
    );
    // An empty store directory means that its file system is not mounted.
    std::fs::remove_file(file).unwrap();
    assert_eq!(fixture.report(io::ErrorKind::NotFound), ["path failed"]);
}

#[test]
fn files_that_changed_while_they_were_read_are_read_again_before_they_are_damage() {
    let fixture = Fixture::new();
    assert_eq!(fixture.report(Collected), [""; 0]);
    let changed = io::Error::other(TreeError::Changed);
    assert_eq!(fixture.report(changed), [""; 0]);
}

#[test]
fn unreadable_files_are_refused_with_the_present_state_of_the_path() {
    let fixture = Fixture::new();
    assert!(matches!(fixture.unreadable(), Refusal::Unreadable));
    fixture.register_anew(|info| info.nar_hash = samovar_nix::NarHash::from_bytes([1; 32]));
    assert!(matches!(fixture.unreadable(), Refusal::WrongHash));
    fixture.store.fail(true);
    assert!(matches!(fixture.unreadable(), Refusal::Store(_)));
    fixture.store.fail(false);
    fixture.store.unregister(&fixture.registration.row.path);
    assert!(matches!(fixture.unreadable(), Refusal::Absent));
}
