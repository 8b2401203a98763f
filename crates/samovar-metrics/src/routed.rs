//! What a cache has found out about a request, for the metrics and the access log.

use samovar_http::Tag;
use samovar_nix::HashPart;

use crate::class::Class;

/// The meaning of a request's URL. It is found once, and travels with the request as its [`Tag`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Routed {
    /// The class of the request.
    pub class: Class,
    /// The [number](crate::ServedCache::number) of the cache with the longest prefix of the URL,
    /// also if that cache refuses the request; `None` if there is none.
    pub cache: Option<u16>,
    /// The hash part of the requested path, if the URL has one.
    pub hash_part: Option<HashPart>,
}

/// Bits of the second byte of a tag: which parts follow.
const HAS_CACHE: u8 = 1;
const HAS_HASH_PART: u8 = 2;

impl Routed {
    /// Returns the tag of the request: the number of the class from one, the parts that follow, the
    /// number of the cache, the hash part.
    #[must_use]
    pub fn tag(self) -> Tag {
        let mut tag = Tag::default();
        let bytes = &mut tag.0;
        bytes[0] = self.class as u8 + 1;
        if let Some(number) = self.cache {
            bytes[1] |= HAS_CACHE;
            bytes[2..4].copy_from_slice(&number.to_le_bytes());
        }
        if let Some(hash_part) = self.hash_part {
            bytes[1] |= HAS_HASH_PART;
            bytes[4..].copy_from_slice(hash_part.as_bytes());
        }
        tag
    }

    /// Reads a tag. A request without one has not reached a cache.
    #[must_use]
    pub fn of(tag: Tag) -> Self {
        let [class, parts, low, high, hash_part @ ..] = tag.0;
        let class = usize::from(class).checked_sub(1);
        let class = class.and_then(|number| Class::ALL.get(number).copied());
        let cache = u16::from_le_bytes([low, high]);
        let hash_part = HashPart::from_bytes(hash_part);
        Self {
            class: class.unwrap_or(Class::Other),
            cache: (parts & HAS_CACHE != 0).then_some(cache),
            hash_part: (parts & HAS_HASH_PART != 0).then_some(hash_part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_holds_all_parts() {
        for class in Class::ALL {
            for cache in [None, Some(0), Some(u16::MAX)] {
                for hash_part in [None, Some(HashPart::from_bytes([0xa5; 20]))] {
                    let routed = Routed {
                        class,
                        cache,
                        hash_part,
                    };
                    assert_eq!(Routed::of(routed.tag()), routed);
                }
            }
        }
        let unknown = Routed::of(Tag::default());
        assert_eq!((unknown.class, unknown.cache), (Class::Other, None));
    }
}
