//! [`OnPins`]: the function that is called when another node may have changed pins.

use std::fmt;
use std::sync::OnceLock;

/// Function that is called when another node may have changed pins.
#[derive(Default)]
pub(crate) struct OnPins(pub(super) OnceLock<Box<dyn Fn() + Send + Sync>>);

impl fmt::Debug for OnPins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_set = self.0.get().is_some();
        f.debug_tuple("OnPins").field(&is_set).finish()
    }
}
