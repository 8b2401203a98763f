//! The response to HEAD for a NAR of an upstream, and the metadata that its narinfo states.

use samovar_http::{Body, Response};
use samovar_nix::PathInfo;
use samovar_nix::narinfo::NarInfo;

use crate::answer::stored_nar::Unread;
use crate::known::small_nars;
use crate::upstream::request::file_len;

/// Returns the response to HEAD for a NAR. Nothing is requested for it.
pub(super) fn head_of_nar(narinfo: &NarInfo) -> Response {
    let body = match file_len(narinfo) {
        Some(len) => Body::Source(Box::new(Unread(len))),
        None => Body::Empty,
    };
    small_nars::HEAD.response(body)
}

/// Converts a narinfo into a row as in the Nix store.
pub(super) fn info_of(narinfo: &NarInfo, now: i64) -> PathInfo {
    PathInfo {
        path: narinfo.store_path.clone(),
        nar_hash: narinfo.nar_hash,
        nar_size: narinfo.nar_size,
        references: narinfo.references.clone(),
        deriver: narinfo.deriver.clone(),
        signatures: narinfo.signatures.clone(),
        content_address: narinfo.content_address,
        registration_time: now,
        ultimate: false,
        registration: None,
    }
}
