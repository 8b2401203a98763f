//! Responses about paths of upstreams that a policy hides. They must be those about a path that no
//! upstream has, also while upstreams are down or slow. So a path that stands for the hidden one,
//! and that nobody has, is looked up, and the response is about that path.

use std::sync::Arc;

use samovar_http::Responder;
use samovar_nix::HashPart;
use sha2::{Digest as _, Sha256};

use crate::refusal::Refusal;
use crate::upstream::message::{LookedUp, Wanted};
use crate::upstream::of_cache::CacheUpstreams;
use crate::upstream::of_client::Request;

/// Responds about a path that is absent or that the policy hides, or about which it cannot decide.
pub(super) fn respond(
    cache: &Arc<CacheUpstreams>,
    hash_part: HashPart,
    refusal: Refusal,
    request: Request,
    responder: Responder,
) {
    if !refusal.is_absence() {
        return responder.respond(request.mark(refusal.answer().response()));
    }
    if cache.reader().policy.is_open_to_foreign() {
        let response = cache.misses.absent(&request.own);
        return responder.respond(request.mark(response));
    }
    let wanted = Wanted::path(stand_in(cache, hash_part));
    let (of, via) = (Arc::clone(cache), Arc::clone(&request.via));
    let done = move |looked_up: LookedUp| {
        let response = match looked_up {
            LookedUp::Unknown(miss) => of.misses.unknown(&request.own, &miss),
            LookedUp::Found(_) | LookedUp::Absent(_) => of.misses.absent(&request.own),
        };
        responder.respond(request.mark(response));
    };
    cache.ask(&cache.ids, wanted, via, Box::new(done));
}

/// Returns the hash part of the path that stands for a hidden one: always the same, so that answers
/// about it are remembered as those about any other path, and known only to this server.
pub(super) fn stand_in(cache: &CacheUpstreams, hash_part: HashPart) -> HashPart {
    let secret = cache.upstreams.secret();
    let digest = Sha256::new()
        .chain_update(secret)
        .chain_update(hash_part.as_bytes());
    let mut bytes = [0; 20];
    bytes.copy_from_slice(&digest.finalize()[..20]);
    HashPart::from_bytes(bytes)
}
