//! Finds files in the listing of a NAR.
//!
//! A listing is read piece by piece and not kept: the listing of a large tree may have hundreds of
//! megabytes. [`samovar_nix::nar::listing`] describes the format.

use std::fmt;
use std::io::{self, Read};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

/// Maximum length of a listing that is read, in bytes.
const LEN_MAX: u64 = 256 << 20;

/// A file or symbolic link in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listed {
    File {
        /// Offset of its first byte in the NAR.
        offset: u64,
        /// Length in bytes.
        size: u64,
    },
    Symlink {
        target: Vec<u8>,
    },
}

/// A file or link at the end of some names, or a link earlier on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) listed: Listed,
    /// Number of names up to and including it.
    pub(crate) depth: usize,
}

/// Finds the file or link at `names`; `None` if there is none.
///
/// # Errors
///
/// If the listing cannot be read, is malformed or longer than [`LEN_MAX`].
pub(crate) fn find(listing: impl Read, names: &[Vec<u8>]) -> io::Result<Option<Found>> {
    let mut found = None;
    let is_on_the_way = |at: &[String]| {
        let same = |(name, wanted): (&String, &Vec<u8>)| name.as_bytes() == wanted;
        at.len() <= names.len() && at.iter().zip(names).all(same)
    };
    walk(listing, &is_on_the_way, &mut |at, listed| {
        let is_link = matches!(listed, Listed::Symlink { .. });
        if at.len() == names.len() || is_link {
            let depth = at.len();
            found = Some(Found { listed, depth });
        }
    })?;
    Ok(found)
}

/// Calls `visit` with the files and links of a listing, and their names. Reads only directories
/// that `enters` accepts, and entries with names that it accepts.
///
/// # Errors
///
/// Those of [`find`].
pub(crate) fn walk(
    listing: impl Read,
    enters: &dyn Fn(&[String]) -> bool,
    visit: &mut dyn FnMut(&[String], Listed),
) -> io::Result<()> {
    let mut walk = Walk {
        names: Vec::new(),
        enters,
        visit,
    };
    let source = io::BufReader::new(listing.take(LEN_MAX));
    let mut json = serde_json::Deserializer::from_reader(source);
    Document(&mut walk).deserialize(&mut json)?;
    Ok(())
}

struct Walk<'a> {
    /// The names of the present entry.
    names: Vec<String>,
    enters: &'a dyn Fn(&[String]) -> bool,
    visit: &'a mut dyn FnMut(&[String], Listed),
}

/// The listing as a whole.
struct Document<'w, 'a>(&'w mut Walk<'a>);

/// A file, link or directory.
struct Node<'w, 'a>(&'w mut Walk<'a>);

/// The entries of a directory.
struct Entries<'w, 'a>(&'w mut Walk<'a>);

/// Implements reading a JSON object by a visitor.
macro_rules! reads_object {
    ($type:ident, $expected:literal) => {
        impl<'de> DeserializeSeed<'de> for $type<'_, '_> {
            type Value = ();

            fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
                json.deserialize_map(self)
            }
        }

        impl<'de> Visitor<'de> for $type<'_, '_> {
            type Value = ();

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($expected)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
                self.read(map)
            }
        }
    };
}

reads_object!(Document, "a listing");
reads_object!(Node, "a node of a listing");
reads_object!(Entries, "the entries of a directory");

impl Document<'_, '_> {
    fn read<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "root" => map.next_value_seed(Node(self.0))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

impl Node<'_, '_> {
    fn read<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut offset, mut size, mut target) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "narOffset" => offset = Some(map.next_value()?),
                "size" => size = Some(map.next_value()?),
                "target" => target = Some(map.next_value::<String>()?),
                "entries" => map.next_value_seed(Entries(self.0))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let listed = match (offset, size, target) {
            (Some(offset), Some(size), None) => Listed::File { offset, size },
            (None, None, Some(target)) => Listed::Symlink {
                target: target.into_bytes(),
            },
            (None, None, None) => return Ok(()),
            _ => return Err(A::Error::custom("a node of two kinds")),
        };
        (self.0.visit)(&self.0.names, listed);
        Ok(())
    }
}

impl Entries<'_, '_> {
    fn read<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let walk = self.0;
        while let Some(name) = map.next_key::<String>()? {
            walk.names.push(name);
            match (walk.enters)(&walk.names) {
                true => map.next_value_seed(Node(walk))?,
                false => drop(map.next_value::<IgnoredAny>()?),
            }
            walk.names.pop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = r#"{"version":1,"root":{"type":"directory","entries":{
        "bin":{"type":"symlink","target":"../other/bin"},
        "lib":{"type":"directory","entries":{
            "a":{"type":"regular","size":3,"executable":true,"narOffset":400},
            "b":{"type":"directory","entries":{}}}}}}}"#;

    #[track_caller]
    fn check(names: &str, expected: Option<(Listed, usize)>) {
        let names: Vec<_> = names
            .split('/')
            .map(|name| name.as_bytes().to_vec())
            .collect();
        let expected = expected.map(|(listed, depth)| Found { listed, depth });
        assert_eq!(find(LISTING.as_bytes(), &names).unwrap(), expected);
    }

    #[test]
    fn files_and_links_are_found() {
        let file = Listed::File {
            offset: 400,
            size: 3,
        };
        check("lib/a", Some((file, 2)));
        let target = b"../other/bin".to_vec();
        let link = Listed::Symlink { target };
        check("bin", Some((link.clone(), 1)));
        check("bin/x/y", Some((link, 1)));
        for none in ["lib", "lib/b", "lib/a/x", "lib/c", "x", "lib/b/x"] {
            check(none, None);
        }
    }

    #[test]
    fn a_listing_of_one_file() {
        let file = br#"{"root":{"type":"regular","size":3,"narOffset":96},"version":1}"#;
        let found = find(&file[..], &[]).unwrap().unwrap();
        assert_eq!(
            found.listed,
            Listed::File {
                offset: 96,
                size: 3
            }
        );
        assert_eq!(find(&file[..], &[b"x".to_vec()]).unwrap(), None);
    }

    #[test]
    fn malformed_listings_are_errors() {
        let deep = |depth: usize| {
            let directory = r#"{"type":"directory","entries":{"a":"#;
            let file = r#"{"type":"regular","size":0,"narOffset":1}"#;
            let root = directory.repeat(depth) + file + &"}}".repeat(depth);
            format!(r#"{{"version":1,"root":{root}}}"#)
        };
        let names = |depth| vec![b"a".to_vec(); depth];
        assert!(find(deep(50).as_bytes(), &names(50)).unwrap().is_some());
        for wrong in ["", "[]", "{\"root\":1}", &LISTING[..90], &deep(1000)] {
            assert!(find(wrong.as_bytes(), &names(1000)).is_err(), "{wrong}");
        }
    }
}
