//! Parses request URLs of the push protocol.

use samovar_http::http::Method;
use samovar_nix::NarHash;
use samovar_protocol::names::PushId;
use samovar_protocol::number;
use samovar_protocol::push::{BODY_LEN_MAX, OPEN_LEN_MAX, PUBLISH_LEN_MAX};

/// The resource of the push protocol that a URL below `push/` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PushRoute {
    Open,
    Push(PushId),
    Pack(PushId),
    Parts(PushId, NarHash),
    Part(PushId, NarHash, u32),
    Join(PushId, NarHash),
    Assemble(PushId),
    Publish(PushId),
}

impl PushRoute {
    /// Parses the path of a URL, without the prefix of the cache and `upload/push/`.
    pub(crate) fn of(path: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(path).ok()?.split('/');
        let mut word = || words.next();
        let (version, id) = (word()?, word()?);
        if version != "1" {
            return None;
        }
        let (resource, nar_hash, number) = (word(), word(), word());
        if id == "open" {
            return resource.is_none().then_some(Self::Open);
        }
        let id = PushId::parse(id)?;
        let nar_hash = nar_hash.map(|text| NarHash::parse_nixbase32(text.as_bytes()));
        let target = match (resource, nar_hash.transpose().ok()?, number) {
            (None, None, None) => Self::Push(id),
            (Some("pack"), None, None) => Self::Pack(id),
            (Some("assemble"), None, None) => Self::Assemble(id),
            (Some("publish"), None, None) => Self::Publish(id),
            (Some("part"), Some(nar_hash), None) => Self::Parts(id, nar_hash),
            (Some("join"), Some(nar_hash), None) => Self::Join(id, nar_hash),
            (Some("part"), Some(nar_hash), Some(number)) => {
                Self::Part(id, nar_hash, small_number(number)?)
            }
            _ => return None,
        };
        words.next().is_none().then_some(target)
    }

    /// Returns the only method that this target allows, and the method's name.
    pub(crate) fn method(self) -> (Method, &'static str) {
        match self {
            Self::Open | Self::Join(..) | Self::Assemble(_) | Self::Publish(_) => {
                (Method::Post, "POST")
            }
            Self::Pack(_) | Self::Part(..) => (Method::Put, "PUT"),
            Self::Parts(..) => (Method::Get, "GET"),
            Self::Push(_) => (Method::Delete, "DELETE"),
        }
    }

    /// Returns the maximum length of the request body, in bytes. `None`: the request has no body.
    pub(crate) fn body_len_max(self) -> Option<u64> {
        match self {
            Self::Open => Some(OPEN_LEN_MAX),
            Self::Pack(_) | Self::Part(..) | Self::Assemble(_) => Some(BODY_LEN_MAX),
            Self::Publish(_) => Some(PUBLISH_LEN_MAX),
            Self::Join(..) | Self::Parts(..) | Self::Push(_) => None,
        }
    }
}

/// Parses a decimal number without leading zeros.
pub(crate) fn small_number(text: &str) -> Option<u32> {
    u32::try_from(number(text.as_bytes())?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f1b7c6d0c8e4a5f9d3e2b1a0c9d8e7f";
    const N: &str = "1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z";

    fn of(path: &str) -> Option<PushRoute> {
        PushRoute::of(path.replace("{ID}", ID).replace("{N}", N).as_bytes())
    }

    #[test]
    fn urls() {
        let id = PushId::parse(ID).unwrap();
        let nar_hash = NarHash::parse_nixbase32(N.as_bytes()).unwrap();
        assert_eq!(of("1/open"), Some(PushRoute::Open));
        assert_eq!(of("1/{ID}"), Some(PushRoute::Push(id)));
        assert_eq!(of("1/{ID}/pack"), Some(PushRoute::Pack(id)));
        assert_eq!(of("1/{ID}/assemble"), Some(PushRoute::Assemble(id)));
        assert_eq!(of("1/{ID}/publish"), Some(PushRoute::Publish(id)));
        assert_eq!(of("1/{ID}/part/{N}"), Some(PushRoute::Parts(id, nar_hash)));
        assert_eq!(
            of("1/{ID}/part/{N}/7"),
            Some(PushRoute::Part(id, nar_hash, 7))
        );
        assert_eq!(of("1/{ID}/join/{N}"), Some(PushRoute::Join(id, nar_hash)));
    }

    #[test]
    fn other_urls_are_unknown() {
        for path in [
            "",
            "1",
            "1/",
            "2/open",
            "1/open/",
            "1/opened",
            "1/{ID}/",
            "1/{ID}0/pack",
            "1/+{ID}/pack",
            "1/4F1B7C6D0C8E4A5F9D3E2B1A0C9D8E7F/pack",
            "1/{ID}/pack/",
            "1/{ID}/pack/{N}",
            "1/{ID}/assemble/",
            "1/{ID}/assemble/{N}",
            "1/{ID}/part",
            "1/{ID}/part/",
            "1/{ID}/part/{ID}",
            "1/{ID}/part/{N}/",
            "1/{ID}/part/{N}/07",
            "1/{ID}/part/{N}/4294967296",
            "1/{ID}/part/{N}/7/",
            "1/{ID}/join/{N}/1",
            "1/../open",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
