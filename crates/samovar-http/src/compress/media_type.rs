//! Media types that are worth compressing.

/// Compressible types outside of `text/`. Formats with built-in compression (JPEG, WOFF, ZIP,
/// video) are excluded.
const COMPRESSIBLE: [&str; 21] = [
    "application/javascript",
    "application/json",
    "application/jsonl",
    "application/manifest+json",
    "application/rtf",
    "application/sql",
    "application/toml",
    "application/vnd.ms-fontobject",
    "application/wasm",
    "application/x-javascript",
    "application/x-ndjson",
    "application/x-sh",
    "application/xml",
    "application/yaml",
    "font/otf",
    "font/ttf",
    "image/bmp",
    "image/svg+xml",
    "image/vnd.microsoft.icon",
    "image/x-icon",
    "model/obj",
];

/// Returns whether content of this `Content-Type` usually compresses. Parameters are ignored.
pub(super) fn is_compressible(content_type: &[u8]) -> bool {
    let essence = content_type.split(|&byte| byte == b';').next();
    let essence = essence.unwrap_or_default().trim_ascii();
    let starts_with = |prefix: &[u8]| {
        let start = essence.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    let ends_with = |suffix: &[u8]| {
        let start = essence.len().checked_sub(suffix.len());
        let end = start.and_then(|start| essence.get(start..));
        end.is_some_and(|end| end.eq_ignore_ascii_case(suffix))
    };
    // RFC 6838, 4.2.8: a structured suffix such as `+json` names the underlying format.
    starts_with(b"text/")
        || [&b"+json"[..], b"+xml", b"+yaml", b"+json-seq"]
            .into_iter()
            .any(ends_with)
        || COMPRESSIBLE
            .iter()
            .any(|name| essence.eq_ignore_ascii_case(name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_compressible_and_images_are_not() {
        for yes in [
            "text/html; charset=utf-8",
            "TEXT/plain",
            "text/event-stream",
            "application/json",
            "application/problem+JSON;x=y",
            "application/atom+xml",
            "image/svg+xml",
            "application/wasm",
            " text/css ",
        ] {
            assert!(is_compressible(yes.as_bytes()), "{yes}");
        }
        for no in [
            "",
            "text",
            "image/png",
            "image/jpeg",
            "video/mp4",
            "application/octet-stream",
            "application/zip",
            "font/woff2",
            "application/x-nix-nar",
            "multipart/byteranges",
            "json",
        ] {
            assert!(!is_compressible(no.as_bytes()), "{no}");
        }
    }
}
