//! The logical store directory.

use std::fmt;

/// The directory prefix of store paths: absolute, normalized, without a trailing slash.
///
/// It is the *logical* directory, which is part of every path and signature. The files may be in
/// another directory.
///
/// # Examples
///
/// ```
/// # use samovar_nix::StoreDir;
/// assert_eq!(StoreDir::default().as_str(), "/nix/store");
/// assert_eq!(StoreDir::new("/gnu/store/")?.as_str(), "/gnu/store");
/// # Ok::<(), samovar_nix::StoreDirError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StoreDir(String);

/// Error of checking a store directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreDirError {
    /// The directory does not start with a slash.
    #[error("the store directory must be absolute")]
    NotAbsolute,
    /// The directory is `/`, or has an empty component, `.` or `..`.
    #[error("the store directory must be in normal form")]
    NotNormal,
    /// The directory holds a control character, which could end a line of a narinfo.
    #[error("the store directory holds a control character")]
    Control,
}

impl StoreDir {
    /// Checks a directory and removes its trailing slashes.
    ///
    /// # Errors
    ///
    /// Any [`StoreDirError`].
    pub fn new(dir: &str) -> Result<Self, StoreDirError> {
        let components = dir.strip_prefix('/').ok_or(StoreDirError::NotAbsolute)?;
        let components = components.trim_end_matches('/');
        if components
            .split('/')
            .any(|component| matches!(component, "" | "." | ".."))
        {
            return Err(StoreDirError::NotNormal);
        }
        if components.contains(|c: char| c.is_control()) {
            return Err(StoreDirError::Control);
        }
        Ok(Self(format!("/{components}")))
    }

    /// Returns the directory as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for StoreDir {
    fn default() -> Self {
        Self("/nix/store".into())
    }
}

impl fmt::Display for StoreDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(dir: &str, expected: Result<&str, StoreDirError>) {
        assert_eq!(
            StoreDir::new(dir).as_ref().map(StoreDir::as_str),
            expected.as_ref().copied()
        );
    }

    #[test]
    fn directories() {
        check("/nix/store", Ok("/nix/store"));
        check("/nix/store//", Ok("/nix/store"));
        check("/s", Ok("/s"));
        check(
            "/home/me/.local/share/nix/root/nix/store",
            Ok("/home/me/.local/share/nix/root/nix/store"),
        );
        check("", Err(StoreDirError::NotAbsolute));
        check("nix/store", Err(StoreDirError::NotAbsolute));
        check("/", Err(StoreDirError::NotNormal));
        check("//nix", Err(StoreDirError::NotNormal));
        check("/nix//store", Err(StoreDirError::NotNormal));
        check("/nix/./store", Err(StoreDirError::NotNormal));
        check("/nix/../store", Err(StoreDirError::NotNormal));
        check("/nix/store\nSig: x", Err(StoreDirError::Control));
    }
}
