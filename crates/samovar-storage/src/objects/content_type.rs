//! How objects are written to a bucket: with the `Content-Type` that clients expect.

use samovar_bucket::PutOptions;

/// Returns how an object is written.
pub(super) fn options(key: &str, sha256: Option<[u8; 32]>) -> PutOptions {
    let content_type = if key.ends_with(".narinfo") {
        "text/x-nix-narinfo"
    } else if key.starts_with("nar/") {
        "application/x-nix-nar"
    } else if key == crate::layout::CACHE_INFO {
        "text/x-nix-cache-info"
    } else if key.starts_with("log/") {
        "text/plain; charset=utf-8"
    } else {
        "application/octet-stream"
    };
    PutOptions {
        content_type: Some(content_type.to_owned()),
        sha256,
        ..PutOptions::default()
    }
}
