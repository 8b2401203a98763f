//! [`admit`]: whether a narinfo of an upstream may be served.

use samovar_nix::narinfo::{Compression, NarInfo, NarInfoError};
use samovar_nix::{HashPart, Method, NarHash, StoreDir, StorePath, is_path_of};

use crate::settings::UpstreamSettings;

/// Maximum length of a narinfo, in bytes.
pub const NARINFO_LEN_MAX: usize = 1 << 20;

/// Maximum length of a NAR, in bytes.
const NAR_SIZE_MAX: u64 = 64 << 30;

/// Reason why a narinfo of an upstream is not served. `Display` prints a fragment for messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Distrust {
    /// The text is not a narinfo for this store.
    #[error("its answer is not a narinfo: {0}")]
    Malformed(NarInfoError),
    /// The text is longer than [`NARINFO_LEN_MAX`].
    #[error("its narinfo has more than {NARINFO_LEN_MAX} bytes")]
    TooLong,
    /// The narinfo describes another path.
    #[error("its narinfo describes {0}, which is another path")]
    OtherPath(StorePath),
    /// No trusted key has signed the narinfo. Contains the key names of its signatures.
    #[error("its narinfo has no signature by a trusted key, only by: {0:?}")]
    Untrusted(Vec<String>),
    /// The content address does not match the path.
    #[error("its narinfo has a content address that does not match the path")]
    ContentAddress,
    /// NARs with this compression cannot be verified.
    #[error("its NAR is compressed with {0}, which is not supported")]
    Compression(&'static str),
    /// The URL of the NAR is not below the URL of the cache.
    #[error("its narinfo has the URL {0:?}, which is not below the cache's own")]
    Url(String),
    /// The NAR is longer than 64 GiB. Contains its length.
    #[error("its NAR has {0} bytes, more than 64 GiB")]
    NarSize(u64),
}

/// Parses a narinfo that an upstream has sent for a path, and returns it if it may be served.
///
/// # Errors
///
/// [`Distrust`].
pub fn admit(
    settings: &UpstreamSettings,
    dir: &StoreDir,
    hash_part: HashPart,
    text: &[u8],
) -> Result<NarInfo, Distrust> {
    if text.len() > NARINFO_LEN_MAX {
        return Err(Distrust::TooLong);
    }
    let info = NarInfo::parse(dir, text).map_err(Distrust::Malformed)?;
    if info.store_path.hash_part() != hash_part {
        return Err(Distrust::OtherPath(info.store_path));
    }
    if !is_below(&info.url) {
        return Err(Distrust::Url(info.url));
    }
    check(settings, dir, &info)?;
    Ok(info)
}

/// Checks that a narinfo may be served: that its NAR can be verified, and that a trusted key has
/// signed it or its content address proves it.
///
/// # Errors
///
/// [`Distrust`].
pub fn check(settings: &UpstreamSettings, dir: &StoreDir, info: &NarInfo) -> Result<(), Distrust> {
    if info.nar_size > NAR_SIZE_MAX {
        return Err(Distrust::NarSize(info.nar_size));
    }
    match info.compression {
        Compression::None
        | Compression::Brotli
        | Compression::Bzip2
        | Compression::Gzip
        | Compression::Lz4
        | Compression::Lzip
        | Compression::Xz
        | Compression::Zstd => {}
        other => return Err(Distrust::Compression(other.name())),
    }
    let is_proved = match &info.content_address {
        Some(address) => {
            if !is_path_of(address, dir, &info.store_path, &info.references) {
                return Err(Distrust::ContentAddress);
            }
            let is_nar =
                address.method() == Method::Nar && !info.references.contains(&info.store_path);
            is_nar && NarHash::from_hash(address.hash()).is_ok_and(|hash| hash == info.nar_hash)
        }
        None => false,
    };
    if is_proved || settings.is_unsigned || is_signed(settings, dir, info) {
        return Ok(());
    }
    let names = info.signatures.iter().map(|one| one.key_name().to_owned());
    Err(Distrust::Untrusted(names.collect()))
}

/// Returns whether a trusted key has signed a narinfo.
fn is_signed(settings: &UpstreamSettings, dir: &StoreDir, info: &NarInfo) -> bool {
    let fingerprint = info.fingerprint(dir);
    info.signatures.iter().any(|signature| {
        let named = |key: &&samovar_nix::PublicKey| key.name() == signature.key_name();
        let mut keys = settings.public_keys.iter().filter(named);
        keys.any(|key| key.verify(fingerprint.as_bytes(), signature))
    })
}

/// Returns whether a URL of a narinfo is relative to the cache and stays below it.
fn is_below(url: &str) -> bool {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_graphic() && c != '\\';
    !url.starts_with('/')
        && !path.contains("://")
        && url.chars().all(is_plain)
        && path.split('/').all(|segment| {
            let dots = segment.replace("%2e", ".").replace("%2E", ".");
            dots != ".." && dots != "."
        })
}

#[cfg(test)]
mod tests {
    use samovar_nix::SecretKey;

    use super::*;

    const KEY: &str = "test-1:gnYx2cNPnVfKG+NQJRjK2Yvs2ccB/GHVbOSUNDFEXjV8kvkSEu41hROuZ6jnRGbEk/lA9pfd2Ao/eSSbU2MDpA==";
    const BASE: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-base-1.0";

    fn settings(keys: &[SecretKey]) -> UpstreamSettings {
        UpstreamSettings {
            public_keys: keys.iter().map(SecretKey::public).collect(),
            ..UpstreamSettings::new("up".to_owned(), "http://up".to_owned())
        }
    }

    fn info(key: Option<&SecretKey>) -> NarInfo {
        let dir = StoreDir::default();
        let mut info = NarInfo::parse(
            &dir,
            format!(
                "StorePath: /nix/store/{BASE}\nURL: nar/base.nar\nCompression: none\nNarHash: \
                 sha256:1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z\nNarSize: 120\n"
            )
            .as_bytes(),
        )
        .unwrap();
        let fingerprint = info.fingerprint(&dir);
        info.signatures = key
            .iter()
            .map(|key| key.sign(fingerprint.as_bytes()))
            .collect();
        info
    }

    fn admitted(settings: &UpstreamSettings, info: &NarInfo) -> Result<NarInfo, Distrust> {
        let mut text = Vec::new();
        info.write(&StoreDir::default(), &mut text).unwrap();
        admit(
            settings,
            &StoreDir::default(),
            info.store_path.hash_part(),
            &text,
        )
    }

    #[test]
    fn only_a_signature_by_a_trusted_key_or_unsigned_admits_a_narinfo() {
        let key = SecretKey::parse(KEY).unwrap();
        let trusting = settings(std::slice::from_ref(&key));
        let signed = info(Some(&key));
        assert_eq!(admitted(&trusting, &signed), Ok(signed.clone()));
        let names = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned());
            Err(Distrust::Untrusted(names.collect()))
        };
        assert_eq!(admitted(&settings(&[]), &signed), names(&["test-1"]));
        assert_eq!(admitted(&trusting, &info(None)), names(&[]));
        let other_size = NarInfo {
            nar_size: 121,
            ..signed.clone()
        };
        assert_eq!(admitted(&trusting, &other_size), names(&["test-1"]));
        let unsigned = UpstreamSettings {
            is_unsigned: true,
            ..settings(&[])
        };
        assert_eq!(admitted(&unsigned, &other_size), Ok(other_size.clone()));
    }

    #[test]
    fn what_is_not_the_narinfo_of_the_path_is_refused_even_if_unsigned() {
        let unsigned = UpstreamSettings {
            is_unsigned: true,
            ..settings(&[])
        };
        let dir = StoreDir::default();
        let hash_part = info(None).store_path.hash_part();
        let refused = |text: &[u8]| admit(&unsigned, &dir, hash_part, text).unwrap_err();
        assert!(matches!(
            refused(b"<!DOCTYPE html>\n<html>\n"),
            Distrust::Malformed(_)
        ));
        assert!(matches!(
            refused(b"{\"error\": \"no\"}\n"),
            Distrust::Malformed(_)
        ));
        assert!(matches!(refused(b""), Distrust::Malformed(_)));
        assert_eq!(refused(&vec![b'a'; NARINFO_LEN_MAX + 1]), Distrust::TooLong);
        let other = HashPart::from_bytes([1; 20]);
        let mut text = Vec::new();
        info(None).write(&dir, &mut text).unwrap();
        let found = admit(&unsigned, &dir, other, &text).unwrap_err();
        assert_eq!(found, Distrust::OtherPath(info(None).store_path));
        for compression in [Compression::Lrzip, Compression::Compress] {
            let found = admitted(
                &unsigned,
                &NarInfo {
                    compression,
                    ..info(None)
                },
            );
            assert_eq!(found, Err(Distrust::Compression(compression.name())));
        }
        let found = admitted(
            &unsigned,
            &NarInfo {
                nar_size: u64::MAX,
                ..info(None)
            },
        );
        assert_eq!(found, Err(Distrust::NarSize(u64::MAX)));
    }

    #[test]
    fn a_url_stays_below_the_cache() {
        for url in [
            "nar/a.nar",
            "nar/a.nar?hash=b",
            "a",
            "nar/..a",
            "x/y/z.nar.xz",
        ] {
            assert!(is_below(url), "{url}");
        }
        let above = [
            "/a",
            "//a",
            "http://a/b",
            "../a",
            "nar/../../a",
            "nar/%2e%2E/a",
            "nar/./a",
            "nar\\a",
            "a b",
            "a\tb",
            "nar/\u{e9}",
        ];
        for url in above {
            assert!(!is_below(url), "{url}");
        }
    }
}
