//! What the thread of a node tells the storage about changes of other nodes.

use samovar_nix::HashPart;

use crate::metadata::CacheId;
use crate::storage::Storage;

impl Storage {
    /// Sets the function that is called when another node may have changed pins. It can be set
    /// once.
    pub fn set_on_pins_changed(&self, on_pins: impl Fn() + Send + Sync + 'static) {
        // Caches of one server set the same function.
        self.on_pins.0.set(Box::new(on_pins)).ok();
    }

    /// Tells that another node may have changed pins.
    pub(crate) fn pins_changed(&self) {
        if let Some(on_pins) = self.on_pins.0.get() {
            on_pins();
        }
    }

    /// Remembers that paths were deleted now, to explain why they are missing.
    pub(crate) fn remember_collected(&self, paths: impl Iterator<Item = (CacheId, HashPart)>) {
        let now = self.metadata.now();
        paths.for_each(|path| self.collected.add(path, now));
    }
}
