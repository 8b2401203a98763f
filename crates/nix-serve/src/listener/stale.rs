//! A Unix socket file that a dead server left behind.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Why the path cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StaleError {
    /// Somebody accepts connections there.
    #[error("another server listens on this socket")]
    InUse,
    /// There is something that is no socket. It is not ours to remove.
    #[error("there is a file at this path that is no socket")]
    NotASocket,
    /// The path could not be looked at, or the file not be removed.
    #[error("cannot remove the socket that was left behind")]
    Io(#[from] io::Error),
}

/// Removes the socket file at `path` if nobody listens there any more; does nothing if there is no
/// file.
///
/// Returns whether one was removed. Two servers starting at once could both find the file dead, and
/// the second remove the first one's: the window is a few microseconds and needs a dead file to
/// begin with.
///
/// # Errors
///
/// [`StaleError`]; then the path must not be bound.
///
/// # Source
///
/// `Net::Server` removes whatever is at the path, and takes a living server's socket away.
/// nix-serve-ng never removes it, and does not start again after a crash.
pub fn remove_stale(path: &Path) -> Result<bool, StaleError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error.into()),
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(StaleError::NotASocket),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path)?;
            Ok(true)
        }
        // A full backlog, a datagram socket, no permission: all are signs of life.
        Ok(_) | Err(_) => Err(StaleError::InUse),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_a_dead_socket_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        assert!(!remove_stale(&path).expect("nothing there"));

        let listener = UnixListener::bind(&path).expect("binds");
        assert!(matches!(remove_stale(&path), Err(StaleError::InUse)));
        drop(listener);
        assert!(remove_stale(&path).expect("dead"));
        assert!(!path.exists());

        fs::write(&path, "precious").expect("writes");
        assert!(matches!(remove_stale(&path), Err(StaleError::NotASocket)));
        assert!(path.exists());
    }
}
