//! [`Target`]: the URLs of the protocol. [`PartQuery`], [`JoinQuery`], [`AssembleQuery`]: their
//! parameters.
//!
//! # Grammar
//!
//! ```text
//! path  = "/open" / "/" push-id
//!         [ "/pack" / "/part/" nar-hash [ "/" number ] / "/join/" nar-hash / "/assemble"
//!           / "/publish" ]
//! query = "sha256=" sha256 / "parts=" number "&compression=" name
//!         / "base=" nar-hash [ "&window=" number ]
//! ```
//!
//! A server ignores other parameters, and the order of those that it knows.

use std::fmt;

use samovar_nix::narinfo::Compression;
use samovar_nix::{Hash, NarHash};

use crate::line::{nar_hash_text, number, parse_sha256};
use crate::names::PushId;
use crate::recipe::{WINDOW_LOG, WINDOW_LOG_MAX, WINDOW_LOG_MIN};

/// Start of the URLs of this version of the protocol. It follows, after a slash, the URL to which
/// stock Nix clients push.
pub const PREFIX: &str = "push/1";

/// Version of the protocol, the last segment of [`PREFIX`].
pub const VERSION: u32 = 1;

/// What a URL of the protocol names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A new push.
    Open,
    /// A push.
    Push(PushId),
    /// NARs of a push.
    Pack(PushId),
    /// The parts of a NAR file.
    Parts(PushId, NarHash),
    /// The part of a NAR file with this number, from 1.
    Part(PushId, NarHash, u32),
    /// The NAR that is joined from its parts.
    Join(PushId, NarHash),
    /// A NAR that is made from a recipe.
    Assemble(PushId),
    /// The narinfos of a push.
    Publish(PushId),
}

impl fmt::Display for Target {
    /// Writes the path of the URL below [`PREFIX`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => write!(f, "/open"),
            Self::Push(id) => write!(f, "/{id}"),
            Self::Pack(id) => write!(f, "/{id}/pack"),
            Self::Parts(id, nar_hash) => write!(f, "/{id}/part/{}", nar_hash_text(nar_hash)),
            Self::Part(id, nar_hash, part_number) => {
                write!(f, "/{id}/part/{}/{part_number}", nar_hash_text(nar_hash))
            }
            Self::Join(id, nar_hash) => write!(f, "/{id}/join/{}", nar_hash_text(nar_hash)),
            Self::Assemble(id) => write!(f, "/{id}/assemble"),
            Self::Publish(id) => write!(f, "/{id}/publish"),
        }
    }
}

impl Target {
    /// Parses the path of a URL below [`PREFIX`]. Returns `None` if the protocol has no such URL.
    #[must_use]
    pub fn parse(path: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(path)
            .ok()?
            .strip_prefix('/')?
            .split('/');
        let mut word = || words.next();
        let id = word()?;
        let (resource, nar_hash, part_number) = (word(), word(), word());
        if id == "open" {
            return resource.is_none().then_some(Self::Open);
        }
        let id = PushId::parse(id)?;
        let nar_hash = nar_hash.map(|text| NarHash::parse_nixbase32(text.as_bytes()));
        let target = match (resource, nar_hash.transpose().ok()?, part_number) {
            (None, None, None) => Self::Push(id),
            (Some("pack"), None, None) => Self::Pack(id),
            (Some("assemble"), None, None) => Self::Assemble(id),
            (Some("publish"), None, None) => Self::Publish(id),
            (Some("part"), Some(nar_hash), None) => Self::Parts(id, nar_hash),
            (Some("join"), Some(nar_hash), None) => Self::Join(id, nar_hash),
            (Some("part"), Some(nar_hash), Some(text)) => {
                Self::Part(id, nar_hash, small_number(text)?)
            }
            _ => return None,
        };
        words.next().is_none().then_some(target)
    }
}

/// Reason why the parameters of a URL are refused. The text names the parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The digest of the part is missing or malformed.
    #[error("the URL needs the parameter sha256: 64 lower-case hexadecimal digits")]
    Sha256,
    /// The number of parts is missing or malformed.
    #[error("the URL needs the parameter parts: the number of parts")]
    Parts,
    /// The compression is missing or unknown.
    #[error("the URL needs the parameter compression: a name such as zstd")]
    Compression,
    /// The hash of the base is missing or malformed.
    #[error("the URL needs the parameter base: the hash of a NAR, 52 characters")]
    Base,
    /// The window is malformed or out of range.
    #[error(
        "the parameter window is the power of two of the zstd window, {WINDOW_LOG_MIN} to \
         {WINDOW_LOG_MAX}"
    )]
    Window,
}

/// The parameters of [`Target::Part`] in a request that sends the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartQuery {
    /// SHA-256 of the part.
    pub sha256: [u8; 32],
}

impl fmt::Display for PartQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256={}", Hash::sha256(&self.sha256).base16())
    }
}

impl PartQuery {
    /// Parses the query of a URL.
    ///
    /// # Errors
    ///
    /// [`QueryError::Sha256`].
    pub fn parse(query: &[u8]) -> Result<Self, QueryError> {
        let sha256 = parameter(query, "sha256").and_then(parse_sha256);
        let sha256 = sha256.ok_or(QueryError::Sha256)?;
        Ok(Self { sha256 })
    }
}

/// The parameters of [`Target::Join`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinQuery {
    /// Number of the parts.
    pub part_count: u32,
    /// Compression of the joined file.
    pub compression: Compression,
}

impl fmt::Display for JoinQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, compression) = (self.part_count, self.compression.name());
        write!(f, "parts={count}&compression={compression}")
    }
}

impl JoinQuery {
    /// Parses the query of a URL.
    ///
    /// # Errors
    ///
    /// [`QueryError::Parts`], [`QueryError::Compression`].
    pub fn parse(query: &[u8]) -> Result<Self, QueryError> {
        let part_count = parameter(query, "parts").and_then(small_number);
        let part_count = part_count.ok_or(QueryError::Parts)?;
        let compression = parameter(query, "compression").and_then(Compression::from_name);
        Ok(Self {
            part_count,
            compression: compression.ok_or(QueryError::Compression)?,
        })
    }
}

/// The parameters of [`Target::Assemble`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssembleQuery {
    /// Hash of the NAR from which pieces are taken.
    pub base: NarHash,
    /// Maximum window of the compressed recipe, as a power of two.
    pub window_log: u32,
}

impl fmt::Display for AssembleQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "base={}", nar_hash_text(&self.base))?;
        match self.window_log {
            WINDOW_LOG => Ok(()),
            window_log => write!(f, "&window={window_log}"),
        }
    }
}

impl AssembleQuery {
    /// Parses the query of a URL.
    ///
    /// # Errors
    ///
    /// [`QueryError::Base`], [`QueryError::Window`].
    pub fn parse(query: &[u8]) -> Result<Self, QueryError> {
        let base = parameter(query, "base");
        let base = base.and_then(|text| NarHash::parse_nixbase32(text.as_bytes()).ok());
        let base = base.ok_or(QueryError::Base)?;
        let window_log = match parameter(query, "window") {
            None => WINDOW_LOG,
            Some(text) => small_number(text)
                .filter(|log| (WINDOW_LOG_MIN..=WINDOW_LOG_MAX).contains(log))
                .ok_or(QueryError::Window)?,
        };
        Ok(Self { base, window_log })
    }
}

/// Returns the value of a parameter in a query, or `None` if the query lacks it.
fn parameter<'a>(query: &'a [u8], name: &str) -> Option<&'a str> {
    let query = std::str::from_utf8(query).ok()?;
    let mut parameters = query.split('&').filter_map(|text| text.split_once('='));
    parameters.find_map(|(found, value)| (found == name).then_some(value))
}

fn small_number(text: &str) -> Option<u32> {
    u32::try_from(number(text.as_bytes())?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "4f1b7c6d0c8e4a5f9d3e2b1a0c9d8e7f";
    const N: &str = "1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z";

    fn of(path: &str) -> Option<Target> {
        Target::parse(path.replace("{ID}", ID).replace("{N}", N).as_bytes())
    }

    #[test]
    fn urls() {
        let id = PushId::parse(ID).unwrap();
        let nar_hash = NarHash::parse_nixbase32(N.as_bytes()).unwrap();
        for (path, target) in [
            ("/open", Target::Open),
            ("/{ID}", Target::Push(id)),
            ("/{ID}/pack", Target::Pack(id)),
            ("/{ID}/assemble", Target::Assemble(id)),
            ("/{ID}/publish", Target::Publish(id)),
            ("/{ID}/part/{N}", Target::Parts(id, nar_hash)),
            ("/{ID}/part/{N}/7", Target::Part(id, nar_hash, 7)),
            ("/{ID}/join/{N}", Target::Join(id, nar_hash)),
        ] {
            assert_eq!(of(path), Some(target));
            let written = target.to_string();
            assert_eq!(written, path.replace("{ID}", ID).replace("{N}", N));
        }
    }

    #[test]
    fn other_urls_are_unknown() {
        for path in [
            "",
            "/",
            "open",
            "/open/",
            "/opened",
            "/{ID}/",
            "/{ID}0/pack",
            "/+{ID}/pack",
            "/4F1B7C6D0C8E4A5F9D3E2B1A0C9D8E7F/pack",
            "/{ID}/pack/",
            "/{ID}/pack/{N}",
            "/{ID}/assemble/",
            "/{ID}/assemble/{N}",
            "/{ID}/part",
            "/{ID}/part/",
            "/{ID}/part/{ID}",
            "/{ID}/part/{N}/",
            "/{ID}/part/{N}/07",
            "/{ID}/part/{N}/4294967296",
            "/{ID}/part/{N}/7/",
            "/{ID}/join/{N}/1",
            "/../open",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }

    #[test]
    fn parameters_in_a_query() {
        let sha256 = "ab".repeat(32);
        let part = PartQuery { sha256: [0xab; 32] };
        assert_eq!(part.to_string(), format!("sha256={sha256}"));
        for query in [format!("sha256={sha256}"), format!("a=b&sha256={sha256}&c")] {
            assert_eq!(PartQuery::parse(query.as_bytes()), Ok(part));
        }
        let join = JoinQuery {
            part_count: 3,
            compression: Compression::Zstd,
        };
        assert_eq!(join.to_string(), "parts=3&compression=zstd");
        assert_eq!(JoinQuery::parse(b"compression=zstd&parts=3"), Ok(join));
        let base = NarHash::parse_nixbase32(N.as_bytes()).unwrap();
        for (window_log, suffix) in [(WINDOW_LOG, ""), (27, "&window=27"), (10, "&window=10")] {
            let query = AssembleQuery { base, window_log };
            assert_eq!(query.to_string(), format!("base={N}{suffix}"));
            assert_eq!(
                AssembleQuery::parse(query.to_string().as_bytes()),
                Ok(query)
            );
        }
    }

    #[test]
    fn a_refusal_names_the_parameter() {
        for query in ["", "sha256", "sha256=00", "SHA256=", "\u{e4}"] {
            assert_eq!(PartQuery::parse(query.as_bytes()), Err(QueryError::Sha256));
        }
        assert_eq!(PartQuery::parse(b"\xff"), Err(QueryError::Sha256));
        for (query, expected) in [
            ("compression=zstd", QueryError::Parts),
            ("parts=01&compression=zstd", QueryError::Parts),
            ("parts=4294967296&compression=zstd", QueryError::Parts),
            ("parts=1", QueryError::Compression),
            ("parts=1&compression=ZSTD", QueryError::Compression),
        ] {
            assert_eq!(JoinQuery::parse(query.as_bytes()), Err(expected), "{query}");
        }
        assert_eq!(AssembleQuery::parse(b"base=1"), Err(QueryError::Base));
        for window in ["9", "28", "", "023"] {
            let query = format!("base={N}&window={window}");
            assert_eq!(
                AssembleQuery::parse(query.as_bytes()),
                Err(QueryError::Window)
            );
        }
    }

    fn targets() -> impl Strategy<Value = Target> {
        let found = any::<(u128, [u8; 32], u32, u8)>();
        found.prop_map(|(id, nar_hash, part_number, kind)| {
            let (id, nar_hash) = (PushId::from_number(id), NarHash::from_bytes(nar_hash));
            match kind % 8 {
                0 => Target::Open,
                1 => Target::Push(id),
                2 => Target::Pack(id),
                3 => Target::Parts(id, nar_hash),
                4 => Target::Part(id, nar_hash, part_number),
                5 => Target::Join(id, nar_hash),
                6 => Target::Assemble(id),
                _ => Target::Publish(id),
            }
        })
    }

    proptest! {
        #[test]
        fn urls_are_read_as_they_were_written(target in targets()) {
            prop_assert_eq!(Target::parse(target.to_string().as_bytes()), Some(target));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(target) = Target::parse(&bytes) {
                prop_assert_eq!(target.to_string().into_bytes(), bytes);
            }
        }
    }
}
