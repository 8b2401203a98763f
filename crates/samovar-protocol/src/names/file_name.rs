//! [`FileName`]: the name of an uploaded NAR file.

use std::fmt;

use samovar_nix::narinfo::Compression;
use samovar_nix::nixbase32;

/// Name of an uploaded file below `nar/`. It consists of the file's SHA-256 in Nix's base-32,
/// `.nar`, and a suffix for the compression. If a deletion of the object with this name may still
/// be in progress, the storage inserts a number, from `.2`, before `.nar`. Such a name denotes the
/// same file.
///
/// | suffix | `compression=` of Nix |
/// | --- | --- |
/// | none | `none`, `gzip`, and any that has no suffix of its own |
/// | `.br` | `br` |
/// | `.bz2` | `bzip2` |
/// | `.gz` | none; other clients |
/// | `.lz4` | `lz4` |
/// | `.lzip` | `lzip` |
/// | `.xz` | `xz` |
/// | `.zst` | `zstd` |
///
/// Source: `src/libstore/binary-cache-store.cc`, the same in Nix 2.8.0, 2.26.3 and 2.34.8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileName {
    file_hash: [u8; 32],
    compression: Compression,
}

/// Length of the hash in the name, in bytes.
const HASH_LEN: usize = nixbase32::encoded_len(32);

const SUFFIXES: [(&str, Compression); 8] = [
    (".nar", Compression::None),
    (".nar.br", Compression::Brotli),
    (".nar.bz2", Compression::Bzip2),
    (".nar.gz", Compression::Gzip),
    (".nar.lz4", Compression::Lz4),
    (".nar.lzip", Compression::Lzip),
    (".nar.xz", Compression::Xz),
    (".nar.zst", Compression::Zstd),
];

impl FileName {
    /// Parses a name without `nar/`. Names are case-sensitive. Returns `None` if the name is
    /// malformed.
    #[must_use]
    pub fn parse(name: &[u8]) -> Option<Self> {
        let (hash, suffix) = name.split_at_checked(HASH_LEN)?;
        let file_hash = nixbase32::decode_array(hash).ok()?;
        let suffix = without_number(suffix);
        let (_, compression) = SUFFIXES
            .into_iter()
            .find(|(known, _)| known.as_bytes() == suffix)?;
        Some(Self {
            file_hash,
            compression,
        })
    }

    /// Makes the name of a NAR file from its SHA-256 hash and its compression.
    #[must_use]
    pub const fn new(file_hash: [u8; 32], compression: Compression) -> Self {
        Self {
            file_hash,
            compression,
        }
    }

    /// Returns the name of copy `number` of the file. Copy 1 has the plain name.
    #[must_use]
    pub fn numbered(&self, number: u32) -> String {
        let name = self.to_string();
        match (number, name.split_at_checked(HASH_LEN)) {
            (2.., Some((hash, suffix))) => format!("{hash}.{number}{suffix}"),
            _ => name,
        }
    }

    /// Returns the file's SHA-256.
    #[must_use]
    pub const fn file_hash(&self) -> &[u8; 32] {
        &self.file_hash
    }

    /// Returns the compression that the suffix states. It is [`Compression::None`] for a plain
    /// `.nar`, which may also be compressed with gzip: only the bytes of the file tell.
    #[must_use]
    pub const fn compression(&self) -> Compression {
        self.compression
    }
}

/// Removes the number of a copy, such as `.2` in `.2.nar.zst`.
fn without_number(suffix: &[u8]) -> &[u8] {
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u32>().ok();
    let after = suffix.strip_prefix(b".").and_then(|rest| {
        let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
        let (digits, after) = rest.split_at(end);
        number(digits).filter(|number| *number > 1).map(|_| after)
    });
    after.unwrap_or(suffix)
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = SUFFIXES
            .into_iter()
            .find(|&(_, known)| known == self.compression)
            .map_or(".nar", |(suffix, _)| suffix);
        f.write_str(&nixbase32::encode(&self.file_hash))?;
        f.write_str(suffix)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::damage::damage;

    #[test]
    fn file_names_are_read_strictly() {
        const HASH: &str = "1fb14p4f4kphcxxd4ld35s8apmpf6zi358y6b98pn4dnsylrfy3s";
        for (suffix, compression) in [
            (".nar", Compression::None),
            (".nar.br", Compression::Brotli),
            (".nar.bz2", Compression::Bzip2),
            (".nar.gz", Compression::Gzip),
            (".nar.lz4", Compression::Lz4),
            (".nar.lzip", Compression::Lzip),
            (".nar.xz", Compression::Xz),
            (".nar.zst", Compression::Zstd),
        ] {
            let text = format!("{HASH}{suffix}");
            let name = FileName::parse(text.as_bytes()).unwrap();
            assert_eq!(name.compression(), compression);
            assert_eq!(nixbase32::encode(name.file_hash()), HASH);
            assert_eq!(name.to_string(), text);
        }
        for wrong in [
            "",
            HASH,
            ".nar",
            ".nar.xz",
            &format!("{HASH}.NAR"),
            &format!("{HASH}.nar."),
            &format!("{HASH}.nar.XZ"),
            &format!("{HASH}.nar.bzip2"),
            &format!("{HASH}.nar.lz"),
            &format!("{HASH}.nar.zstd"),
            &format!("{HASH}.nar.xz.xz"),
            &format!("{HASH}.nar.xz/"),
            &format!("{HASH}.nar.xz\0"),
            &format!("{HASH}.nar.xz "),
            &format!("{HASH}.nar?"),
            &format!("{HASH}.ls"),
            &format!("/{HASH}.nar"),
            &format!("../{HASH}.nar"),
            &format!("nar/{HASH}.nar"),
            &format!("0{HASH}.nar"),
            &format!("{}.nar", &HASH[1..]),
            &format!("{}.nar", HASH.to_uppercase()),
            &format!("{}.nar", HASH.replace('f', "e")),
            // 52 digits have 260 bits, 4 more than the hash: the first digit must be 0 or 1.
            &format!("2{}.nar", &HASH[1..]),
            &format!("sha256:{HASH}.nar"),
            &format!(
                "{}.nar",
                "7a7897a9d7b6117b515ac6a332e237eed6ab902ea351d27a67f04ee2c82561b9"
            ),
        ] {
            assert_eq!(FileName::parse(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(FileName::parse(&[0xff; 56]), None);
    }

    #[test]
    fn copies_have_numbers() {
        const HASH: &str = "1fb14p4f4kphcxxd4ld35s8apmpf6zi358y6b98pn4dnsylrfy3s";
        let name = FileName::parse(format!("{HASH}.nar.zst").as_bytes()).unwrap();
        assert_eq!(name.numbered(1), format!("{HASH}.nar.zst"));
        assert_eq!(name.numbered(2), format!("{HASH}.2.nar.zst"));
        for wrong in ["1", "0", "", "4294967296", "a"] {
            let text = format!("{HASH}.{wrong}.nar.zst");
            assert_eq!(FileName::parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn names_are_read_as_they_were_written(
            file_hash: [u8; 32],
            (_, compression) in prop::sample::select(&SUFFIXES[..]),
            number in 1_u32..,
            damage in damage(),
        ) {
            let name = FileName::new(file_hash, compression);
            prop_assert_eq!(FileName::parse(name.to_string().as_bytes()), Some(name));
            prop_assert_eq!(FileName::parse(name.numbered(number).as_bytes()), Some(name));
            let _no_panic = FileName::parse(&damage.of(name.numbered(number).as_bytes()));
        }
    }
}
