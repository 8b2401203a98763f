//! Parses request URLs of uploads.

use samovar_http::http::percent;
use samovar_nix::{HashPart, StorePath};
use samovar_protocol::names::{FileName, PinName};
use samovar_store::RealisationId;

use crate::route::{self, path};

use super::push_target;

/// The resource that the path of a URL names.
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
    Realisation(RealisationId),
    /// `pin/`: the list of pins.
    Pins,
    /// `pin-events`: the WebSocket for changes of pins.
    PinEvents,
    /// A URL below `pin/`. `None`: the rest is not the name of a pin.
    Pin(Option<PinName>),
    /// A URL below `push/`. `None`: the push protocol has no such URL.
    Push(Option<push_target::Target>),
    Unknown,
}

impl Kind {
    /// Parses a path below `upload`.
    fn below_upload(path: &[u8]) -> Self {
        if let Some([b'/', name @ ..]) = path::below(path, b"/pin") {
            return match name {
                b"" => Self::Pins,
                name => Self::Pin(pin_name(name)),
            };
        }
        if let Some([b'/', ..]) = path::below(path, b"/push") {
            let decoded = path::decode(path);
            let rest = decoded
                .as_deref()
                .and_then(|path| path.strip_prefix(b"/push/"));
            return Self::Push(rest.and_then(push_target::Target::of));
        }
        match path::decode(path).as_deref() {
            Some(b"/pin-events") => Self::PinEvents,
            _ => Self::of(path),
        }
    }

    /// Parses a path that exists at the cache's own URL, too.
    fn of(path: &[u8]) -> Self {
        let decoded = path::decode(path);
        let path = decoded.as_deref().and_then(|path| path.strip_prefix(b"/"));
        path.map_or(Self::Unknown, kind)
    }

    /// Whether a request of any method is about a push or a pin, and needs a token.
    pub(crate) fn has_own_methods(&self) -> bool {
        matches!(
            self,
            Self::Push(_) | Self::Pins | Self::PinEvents | Self::Pin(_)
        )
    }
}

impl Target {
    /// Parses the path of a URL, without the cache's prefix.
    pub(crate) fn of(path: &[u8]) -> Self {
        let below = path::below(path, b"/upload").filter(|rest| !rest.is_empty());
        Self {
            is_below_upload: below.is_some(),
            kind: match below {
                Some(rest) => Kind::below_upload(rest),
                None => Kind::of(path),
            },
        }
    }
}

/// Parses a percent-encoded name of a pin, which may contain encoded slashes.
fn pin_name(text: &[u8]) -> Option<PinName> {
    let name = percent::decode(text).filter(|_| !text.contains(&b'/'))?;
    std::str::from_utf8(&name).ok()?.parse().ok()
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
    if let Some(name) = path.strip_suffix(b".doi") {
        let name = std::str::from_utf8(name).ok();
        let id = name.and_then(route::realisation);
        return id.map_or(Kind::Unknown, Kind::Realisation);
    }
    match path {
        b"nix-cache-info" => Kind::CacheInfo,
        _ if path.starts_with(b"debuginfo/") => Kind::DebugInfo,
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
            "/realisations/sha256:{N}!out.doi",
            "/realisations/sha256:{N}%21out.doi",
            "/log/{H}-a%2Bb.drv",
            "/%6Eix-cache-info",
            "/n%61r/{N}.nar",
            "/build-trace-v2/{H}-a.drv/out.doi",
        ] {
            let (target, below) = (of(path), of(&format!("/upload{path}")));
            assert_ne!(target.kind, Kind::Unknown, "{path}");
            assert!(!target.is_below_upload && below.is_below_upload);
            assert_eq!(target.kind, below.kind);
        }
    }

    #[test]
    fn names_of_pins() {
        let name = |path: &str| match of(path).kind {
            Kind::Pin(name) => Some(name.map(|name| name.to_string())),
            _ => None,
        };
        let is = |text: &str| Some(Some(text.to_owned()));
        assert_eq!(name("/upload/pin/main"), is("main"));
        assert_eq!(name("/upload/pin/a%2Fb%20%C3%A4"), is("a/b \u{e4}"));
        assert_eq!(of("/upload/pin/").kind, Kind::Pins);
        assert_eq!(of("/upload/pin-events").kind, Kind::PinEvents);
        assert_eq!(name("/%75pload/%70in/a%2Fb"), is("a/b"));
        for wrong in ["a/b", "a%0a", "a%00", "a%2", "%FF"] {
            assert_eq!(name(&format!("/upload/pin/{wrong}")), Some(None), "{wrong}");
        }
        for other in ["/pin/main", "/upload/pin"] {
            assert_eq!(name(other), None);
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
            "/pin-events",
            "/upload/pin-events/",
            "/x.narinfo",
            "/{H}-name.narinfo",
            "/nar/{H}.nar",
            "/nar/{H}-{N}.nar",
            "/nar/../{N}.nar",
            "/nar/{N}.nar/x",
            "/nar%2F{N}.nar",
            "/nix-cache-info%00",
            "/log/{H}-a%252Bb.drv",
            "/log/{H}-a%2",
            "/log/../../etc/passwd",
            "/log/{H}-a/b",
            "/realisations/sha256:0!out.doi",
            "/realisations/sha256:{N}!out",
            "/realisations/sha256:{N}!a%2fb.doi",
            "/build-trace-v2/{H}-a/out.doi",
            "/build-trace-v2/{H}-a.drv/a/b.doi",
            "/build-trace-v2/{H}-a.drv%2fout.doi",
        ] {
            assert_eq!(of(path).kind, Kind::Unknown, "{path}");
        }
    }
}
