//! Clients of all kinds, well-behaved and misbehaving.

pub(crate) mod connection;
pub(crate) mod h2;
pub(crate) mod hostile;
pub(crate) mod http1;
pub(crate) mod nix;

use std::sync::Arc;

use crate::ask::{Ask, What};
use crate::world::{Facts, World};
use testkit::random::SplitMix64;

/// Returns a random request.
pub(crate) fn anything(world: &World, random: &mut SplitMix64) -> Ask {
    let paths = world.all();
    let one =
        |random: &mut SplitMix64| -> Arc<Facts> { Arc::clone(&paths[random.index(paths.len())]) };
    let facts = one(random);
    let what = match random.weighted(&[40, 30, 8, 6, 6, 3, 3, 2]) {
        0 => What::Narinfo(facts),
        1 => {
            // Between this point and the request, the latest version may be deleted. A path that is
            // absent now has no hash.
            let hash = facts.latest().map(|version| version.nar_hash.clone());
            let hash = hash.unwrap_or_else(|| "0".repeat(52));
            let hash = random.percent(70).then_some(hash);
            What::Nar(facts, hash)
        }
        2 => What::Listing(facts),
        3 => What::Closure(facts),
        4 => {
            let count = random.index(40);
            What::Narinfos((0..count).map(|_| one(random)).collect())
        }
        5 => What::Info,
        6 => What::Log,
        _ => What::Nowhere,
    };
    Ask::random(what, random)
}
