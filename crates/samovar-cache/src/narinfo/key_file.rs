//! Reads secret key files.

use std::io;
use std::path::{Path, PathBuf};

use samovar_nix::{KeyError, SecretKey};

use crate::private_file;

/// Maximum size of a key file, in bytes.
const FILE_LEN_MAX: u64 = 64 * 1024;

/// The reason why a key file cannot be used, with its path and the fix, in one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileError {
    /// `NIX_SECRET_KEY_FILE` is empty.
    #[error(
        "NIX_SECRET_KEY_FILE is set but empty: name the file of the secret key, or unset it to \
         serve without a key"
    )]
    Unnamed,
    /// The file does not exist.
    #[error(
        "the secret key file {0:?} does not exist: make one with \
         `nix-store --store dummy:// --generate-binary-cache-key NAME SECRET-FILE PUBLIC-FILE`, \
         or name none (NIX_SECRET_KEY_FILE, secret-key-files) to serve without a key"
    )]
    Missing(PathBuf),
    /// The server's user has no permission to read the file.
    #[error("the secret key file {0:?} is not readable for this user: change its owner or mode")]
    PermissionDenied(PathBuf),
    /// The file is empty.
    #[error(
        "the secret key file {0:?} is empty: make a new one with \
         `nix-store --store dummy:// --generate-binary-cache-key NAME SECRET-FILE PUBLIC-FILE`"
    )]
    Empty(PathBuf),
    /// The file is not a Nix secret key.
    #[error(
        "the secret key file {0:?} holds no Nix secret key, which is one line NAME:BASE64 with 64 \
         bytes (a public key has 32): name the file of the secret key, or make a new one with \
         `nix-store --store dummy:// --generate-binary-cache-key NAME SECRET-FILE PUBLIC-FILE`"
    )]
    Malformed(PathBuf),
    /// The key has a name that no key of Nix may have.
    #[error(
        "the key in the secret key file {0:?} has a name that is empty, or has a blank or a \
         control character, so no client can trust it: make a new one with \
         `nix-store --store dummy:// --generate-binary-cache-key NAME SECRET-FILE PUBLIC-FILE`, \
         and a NAME such as cache.example.org-1"
    )]
    Name(PathBuf),
    /// Reading the file failed with another error.
    #[error(
        "the secret key file {0:?} cannot be read: name a regular file that this user can read"
    )]
    Io(PathBuf, #[source] io::Error),
}

/// A secret key, and warnings about its file.
#[derive(Debug)]
pub struct LoadedKey {
    /// The secret key.
    pub key: SecretKey,
    /// Warnings about the key file, one line each.
    pub warnings: Vec<String>,
}

/// Reads a secret key in the format of `nix-store --generate-binary-cache-key`. Surrounding white
/// space is ignored.
///
/// # Errors
///
/// Any [`KeyFileError`].
pub fn load_key(path: &Path) -> Result<LoadedKey, KeyFileError> {
    if path.as_os_str().is_empty() {
        return Err(KeyFileError::Unnamed);
    }
    let (text, mode) = private_file::read(path, FILE_LEN_MAX).map_err(|error| {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => KeyFileError::Missing(path),
            io::ErrorKind::PermissionDenied => KeyFileError::PermissionDenied(path),
            io::ErrorKind::InvalidData | io::ErrorKind::FileTooLarge => {
                KeyFileError::Malformed(path)
            }
            _ => KeyFileError::Io(path, error),
        }
    })?;
    if text.trim().is_empty() {
        return Err(KeyFileError::Empty(path.to_owned()));
    }
    // The parser's error could quote the key, so it is dropped.
    let key = SecretKey::parse(&text).map_err(|error| match error {
        KeyError::Name => KeyFileError::Name(path.to_owned()),
        _ => KeyFileError::Malformed(path.to_owned()),
    })?;
    let mut warnings = Vec::new();
    if mode & 0o077 != 0 {
        warnings.push(format!(
            "the secret key file {path:?} can be read by others: `chmod 600` it"
        ));
    }
    if !key.halves_agree() {
        warnings.push(format!(
            "the public half in the secret key file {path:?} does not belong to the secret one: \
             clients must trust {}",
            key.public()
        ));
    }
    Ok(LoadedKey { key, warnings })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const KEY: &str = "test-1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8DoQe/884Qvh1w3RjnS8CZZ+TWMJulDV8d3IZkElUxuA==";

    #[track_caller]
    fn check(content: &str, mode: u32, expected: Result<usize, &str>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        match (load_key(&path), expected) {
            (Ok(loaded), Ok(warnings)) => assert_eq!(loaded.warnings.len(), warnings),
            (Err(error), Err(part)) => {
                let text = error.to_string();
                assert!(text.contains(part) && text.contains("key\""), "{text}");
                assert!(!text.contains("AAECAw"), "{text}");
            }
            (outcome, _) => panic!("{outcome:?}"),
        }
    }

    #[test]
    fn key_files_are_loaded_or_refused_with_the_reason() {
        check(KEY, 0o600, Ok(0));
        check(&format!("  {KEY}\n\n"), 0o400, Ok(0));
        check(KEY, 0o644, Ok(1));
        check("", 0o600, Err("is empty"));
        check(" \n", 0o600, Err("is empty"));
        for name in ["my key", "", "a\u{7f}"] {
            let named = KEY.replace("test-1", name);
            check(&named, 0o600, Err("has a blank or a control character"));
        }
        check("test-1:AAECAw==", 0o600, Err("no Nix secret key"));
        check(&KEY.replace(':', ""), 0o600, Err("no Nix secret key"));
    }

    #[test]
    fn a_missing_file_and_a_directory_are_refused() {
        let error = load_key(Path::new("/nonexistent/key")).unwrap_err();
        assert!(error.to_string().contains("does not exist"), "{error}");
        assert!(matches!(
            load_key(Path::new("/")),
            Err(KeyFileError::Io(..))
        ));
    }
}
