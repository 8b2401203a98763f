//! Parses request URLs of uploads.

use samovar_nix::{HashPart, StorePath};
use samovar_storage::verify::FileName;

/// The resource that a URL's path names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) is_below_upload: bool,
    pub(crate) kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    CacheInfo,
    Narinfo(HashPart),
    Listing(HashPart),
    Nar(FileName),
    Log(StorePath),
    DebugInfo,
    Realisation,
    Unknown,
}

impl Target {
    /// Parses the path of a URL, without the prefix of the cache. Clients of uploads never
    /// percent-encode anything but `!`.
    pub(crate) fn of(path: &[u8]) -> Self {
        let below = path.strip_prefix(b"/upload/");
        let rest = below.or_else(|| path.strip_prefix(b"/"));
        Self {
            is_below_upload: below.is_some(),
            kind: rest.map_or(Kind::Unknown, kind),
        }
    }
}

fn kind(path: &[u8]) -> Kind {
    let of_hash_part =
        |text: &[u8], kind: fn(HashPart) -> Kind| HashPart::parse(text).map_or(Kind::Unknown, kind);
    if let Some(name) = path.strip_suffix(b".narinfo") {
        return of_hash_part(name, Kind::Narinfo);
    }
    if let Some(name) = path.strip_suffix(b".ls") {
        return of_hash_part(name, Kind::Listing);
    }
    if let Some(name) = path.strip_prefix(b"nar/") {
        return FileName::parse(name).map_or(Kind::Unknown, Kind::Nar);
    }
    if let Some(name) = path.strip_prefix(b"log/") {
        let name = std::str::from_utf8(name).ok();
        let path = name.and_then(|name| StorePath::from_base_name(name).ok());
        return path.map_or(Kind::Unknown, Kind::Log);
    }
    match path {
        b"nix-cache-info" => Kind::CacheInfo,
        _ if path.starts_with(b"debuginfo/") => Kind::DebugInfo,
        _ if path.starts_with(b"realisations/") || path.starts_with(b"build-trace-v2/") => {
            Kind::Realisation
        }
        _ => Kind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5";
    const N: &str = "1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z";

    fn of(path: &str) -> Target {
        Target::of(path.replace("{H}", H).replace("{N}", N).as_bytes())
    }

    #[test]
    fn urls_are_the_same_below_upload() {
        for path in [
            "/nix-cache-info",
            "/{H}.narinfo",
            "/{H}.ls",
            "/nar/{N}.nar",
            "/nar/{N}.nar.zst",
            "/log/{H}-a.drv",
            "/debuginfo/0.debug",
            "/realisations/sha256:0!out.doi",
        ] {
            let (target, below) = (of(path), of(&format!("/upload{path}")));
            assert_ne!(target.kind, Kind::Unknown, "{path}");
            assert!(!target.is_below_upload && below.is_below_upload);
            assert_eq!(target.kind, below.kind);
        }
    }

    #[test]
    fn other_urls_are_unknown() {
        for path in [
            "",
            "/",
            "/upload",
            "/upload/",
            "/upload/upload/nix-cache-info",
            "/x.narinfo",
            "/{H}-name.narinfo",
            "/nar/{H}.nar",
            "/nar/{H}-{N}.nar",
            "/nar/../{N}.nar",
            "/nar/{N}.nar/x",
            "/log/../../etc/passwd",
            "/log/{H}-a/b",
        ] {
            assert_eq!(of(path).kind, Kind::Unknown, "{path}");
        }
    }
}
