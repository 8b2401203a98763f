//! Parses request URLs below `upload/`.

use samovar_http::http::percent;
use samovar_metrics::Class;
use samovar_nix::{HashPart, StorePath};
use samovar_protocol::names::{FileName, PinName};
use samovar_protocol::push::{PREFIX, Target};
use samovar_store::RealisationId;

use super::{Route, own, path};

/// The resource that a path below `/upload/` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UploadRoute {
    /// The rest of the URL is one of the cache's own. Only uploaded paths exist there.
    Of(Box<Route>),
    /// `pin/`: the list of pins.
    Pins,
    /// `pin-events`: the WebSocket for changes of pins.
    PinEvents,
    /// A URL below `pin/`. `None`: the rest is not the name of a pin.
    Pin(Option<PinName>),
    /// `oidc`: the exchange of ID tokens.
    Oidc,
    /// A URL below `push/`. `None`: the push protocol has no such URL.
    Push(Option<Target>),
}

/// What clients upload to a URL and read from it, at the cache's own URL and below `/upload/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource<'a> {
    CacheInfo,
    Narinfo(HashPart),
    Listing(HashPart),
    Nar(FileName),
    Log(&'a StorePath),
    DebugInfo,
    Realisation(&'a RealisationId),
}

impl UploadRoute {
    /// Parses a decoded path without `/upload/`.
    pub(super) fn of_decoded(path: &[u8], query: Option<&[u8]>) -> Self {
        if let Some(name) = path.strip_prefix(b"pin/") {
            return match name {
                b"" => Self::Pins,
                name => Self::Pin(pin_name(name).filter(|_| !name.contains(&b'/'))),
            };
        }
        if path.starts_with(b"push/") {
            let below = path.strip_prefix(PREFIX.as_bytes());
            return Self::Push(below.and_then(Target::parse));
        }
        match path {
            b"pin-events" => Self::PinEvents,
            b"oidc" => Self::Oidc,
            _ => Self::Of(Box::new(own(path, query, true))),
        }
    }

    /// Parses a percent-encoded path that cannot be decoded as a whole: that of a pin whose name
    /// has an encoded slash, or that of nothing. Returns `None` if it is not below `/upload/`.
    pub(super) fn of_undecodable(path: &[u8]) -> Option<Self> {
        let below = |prefix| match path::below(path, prefix) {
            Some([b'/', rest @ ..]) => Some(rest),
            _ => None,
        };
        if let Some(name) = below(b"/upload/pin") {
            let decoded = percent::decode(name).filter(|_| !name.contains(&b'/'));
            return Some(Self::Pin(decoded.and_then(|name| pin_name(&name))));
        }
        if below(b"/upload/push").is_some() {
            return Some(Self::Push(None));
        }
        below(b"/upload").map(|_| Self::Of(Box::new(Route::Unknown(Class::Other))))
    }
}

fn pin_name(name: &[u8]) -> Option<PinName> {
    std::str::from_utf8(name).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5";
    const N: &str = "1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z";

    fn of(path: &str) -> Route {
        Route::of(path.replace("{H}", H).replace("{N}", N).as_bytes(), None)
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
            let (route, below) = (of(path), of(&format!("/upload{path}")));
            assert_ne!(route.resource(), None, "{path}");
            assert_eq!(below.resource(), route.resource());
            assert_eq!(below, Route::Upload(UploadRoute::Of(Box::new(route))));
        }
    }

    #[test]
    fn urls_of_pushes() {
        let push = |path: &str| match of(path) {
            Route::Upload(UploadRoute::Push(target)) => Some(target),
            _ => None,
        };
        assert_eq!(push("/upload/push/1/open"), Some(Some(Target::Open)));
        for unknown in [
            "", "1", "1/", "1open", "10/open", "2/open", "1/opened", "1//open",
        ] {
            assert_eq!(
                push(&format!("/upload/push/{unknown}")),
                Some(None),
                "{unknown}"
            );
        }
        assert_eq!(push("/upload/push"), None);
    }

    #[test]
    fn names_of_pins() {
        let name = |path: &str| match of(path) {
            Route::Upload(UploadRoute::Pin(name)) => Some(name.map(|name| name.to_string())),
            _ => None,
        };
        let is = |text: &str| Some(Some(text.to_owned()));
        assert_eq!(name("/upload/pin/main"), is("main"));
        assert_eq!(name("/upload/pin/a%2Fb%20%C3%A4"), is("a/b \u{e4}"));
        assert_eq!(of("/upload/pin/"), Route::Upload(UploadRoute::Pins));
        let events = Route::Upload(UploadRoute::PinEvents);
        assert_eq!(of("/upload/pin-events"), events);
        assert_eq!(of("/upload/oidc"), Route::Upload(UploadRoute::Oidc));
        assert_eq!(name("/%75pload/%70in/a%2Fb"), is("a/b"));
        for wrong in ["a/b", "a%0a", "a%00", "a%2", "%FF"] {
            assert_eq!(name(&format!("/upload/pin/{wrong}")), Some(None), "{wrong}");
        }
        for other in ["/pin/main", "/upload/pin"] {
            assert_eq!(name(other), None);
        }
    }

    #[test]
    fn other_urls_take_no_uploads() {
        for path in [
            "",
            "/",
            "/upload",
            "/upload/",
            "/upload/narinfos",
            "/upload/%zz",
            "/upload/upload/nix-cache-info",
            "/pin-events",
            "/upload/pin-events/",
            "/oidc",
            "/upload/oidc/",
            "/upload/OIDC",
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
            let route = of(path);
            assert_eq!(route.resource(), None, "{path}");
            assert!(!route.has_own_methods(), "{path}");
        }
    }
}
