//! [`localized`]: the narinfo that is served instead of the upstream's.

use samovar_nix::narinfo::{Compression, NarInfo};
use samovar_nix::{HashPart, NarHash, Signature};

use crate::settings::Resign;

/// Returns the narinfo to serve, with this server's URL of the NAR, and with the signatures that
/// `resign` demands. `own`: the signatures by the keys of the cache.
#[must_use]
pub fn localized(info: &NarInfo, resign: Resign, own: Vec<Signature>) -> NarInfo {
    let hash_part = info.store_path.hash_part();
    let is_by_another =
        |one: &&Signature| own.iter().all(|other| other.key_name() != one.key_name());
    let signatures = match resign {
        Resign::No => info.signatures.clone(),
        Resign::Add => own
            .iter()
            .chain(info.signatures.iter().filter(is_by_another))
            .cloned()
            .collect(),
        Resign::Only => own,
    };
    NarInfo {
        url: nar_url(hash_part, &info.nar_hash, info.compression),
        signatures,
        ..info.clone()
    }
}

/// Returns the URL of an upstream's NAR on this server, relative to the cache:
/// `nar/<hash part>-<NAR hash>.nar`, and a suffix for the compression. The URL names the path, so
/// that the server finds the NAR again after a restart, whatever form the upstream's own URL has.
#[must_use]
pub fn nar_url(hash_part: HashPart, nar_hash: &NarHash, compression: Compression) -> String {
    let nar_hash = nar_hash.nixbase32();
    let nar_hash = String::from_utf8_lossy(&nar_hash);
    let suffix = suffix(compression);
    format!("nar/{hash_part}-{nar_hash}.nar{suffix}")
}

/// Returns the suffix that [`nar_url`] gives to NARs of this compression.
fn suffix(compression: Compression) -> String {
    match compression {
        Compression::None => String::new(),
        Compression::Zstd => ".zst".to_owned(),
        other => format!(".{}", other.name()),
    }
}

/// Returns the compression whose suffix, after `.nar`, is this one; `None` if none has it.
#[must_use]
pub fn compression_of(given: &str) -> Option<Compression> {
    match given {
        "" => Some(Compression::None),
        ".zst" => Some(Compression::Zstd),
        given => Compression::from_name(given.strip_prefix('.')?)
            .filter(|compression| suffix(*compression) == given),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_compression_has_a_suffix_of_its_own() {
        let all = [
            Compression::None,
            Compression::Brotli,
            Compression::Bzip2,
            Compression::Gzip,
            Compression::Lz4,
            Compression::Lzip,
            Compression::Xz,
            Compression::Zstd,
        ];
        for compression in all {
            assert_eq!(compression_of(&suffix(compression)), Some(compression));
        }
        for unknown in [".none", ".zstd", "xz", ".", ".rar"] {
            assert_eq!(compression_of(unknown), None, "{unknown}");
        }
        let (hash_part, nar_hash) = (HashPart::from_bytes([1; 20]), NarHash::from_bytes([2; 32]));
        let url = nar_url(hash_part, &nar_hash, Compression::Xz);
        assert!(
            url.starts_with(&format!("nar/{hash_part}-")) && url.ends_with(".nar.xz"),
            "{url}"
        );
    }
}
