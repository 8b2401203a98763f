//! Damaged messages, for property tests.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Changes of a message: bytes at some places, and its end.
#[derive(Debug, Clone)]
pub(crate) struct Damage {
    bytes: Vec<(Index, u8)>,
    cut: Option<Index>,
}

impl Damage {
    pub(crate) fn of(&self, message: &[u8]) -> Vec<u8> {
        let mut bytes = message.to_vec();
        if let (Some(cut), false) = (&self.cut, bytes.is_empty()) {
            bytes.truncate(cut.index(bytes.len()));
        }
        if !bytes.is_empty() {
            for (at, byte) in &self.bytes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
        }
        bytes
    }

    pub(crate) fn of_text(&self, message: &str) -> String {
        String::from_utf8_lossy(&self.of(message.as_bytes())).into_owned()
    }
}

/// Up to three bytes change, mostly to bytes that messages contain.
pub(crate) fn damage() -> impl Strategy<Value = Damage> {
    let byte = prop_oneof![any::<u8>(), prop::sample::select(&b" \n0129aen-%"[..])];
    let bytes = vec((any::<Index>(), byte), 0..4);
    let cut = prop::option::weighted(0.3, any::<Index>());
    (bytes, cut).prop_map(|(bytes, cut)| Damage { bytes, cut })
}
