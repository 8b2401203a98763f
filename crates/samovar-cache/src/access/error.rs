//! Errors in the access configuration.

use std::io;
use std::path::PathBuf;

/// An error in the access configuration: one line that says what is wrong, where, and how to fix
/// it. It never contains text of a secret file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// A file cannot be read.
    #[error("the {kind} {path:?} cannot be read: {error}; {}", cure(*.kind, .error))]
    Unreadable {
        /// Purpose of the unreadable file.
        kind: FileKind,
        /// Path of the unreadable file.
        path: PathBuf,
        /// Error of reading the file.
        error: io::Error,
    },
    /// A secret file is readable by all users.
    #[error("the {kind} {path:?} is readable by all users: run `chmod o-rwx` on it")]
    ReadableByAll {
        /// Purpose of the file that all users can read.
        kind: FileKind,
        /// Path of the file that all users can read.
        path: PathBuf,
    },
    /// A line of a secret file is wrong.
    #[error("the {kind} {path:?}, line {line}: {problem}")]
    Line {
        /// Purpose of the file with the wrong line.
        kind: FileKind,
        /// Path of the file with the wrong line.
        path: PathBuf,
        /// Number of the wrong line, starting at 1.
        line: usize,
        /// The fault in this line.
        problem: LineProblem,
    },
    /// An entry that is neither a network nor an address.
    #[error(
        "{0:?} is not a network: expected an address or a prefix such as \"192.0.2.0/24\" or \
         \"2001:db8::/32\""
    )]
    Network(String),
    /// An entry that is not a SHA-256 fingerprint.
    #[error(
        "{0:?} is not a SHA-256 fingerprint: expected 64 hex digits, as \
         `openssl x509 -noout -fingerprint -sha256 -in FILE` prints them"
    )]
    Fingerprint(String),
    /// The configured rate limit would admit no request.
    #[error("a rate limit needs at least 1 request per second and a burst of at least 1")]
    RateLimit,
    /// A realm that cannot be sent in `WWW-Authenticate`.
    #[error("the realm {0:?} must be printable ASCII without quotes and backslashes")]
    Realm(String),
    /// The system provides no random numbers.
    #[error("the system provides no random numbers")]
    Random(#[source] io::Error),
}

/// Returns what to do about a file that cannot be read.
fn cure(kind: FileKind, error: &io::Error) -> String {
    let (option, command) = match kind {
        FileKind::Users => ("access.users-file", "samovar password NAME"),
        FileKind::Tokens => ("access.tokens-file", "samovar token line NAME"),
    };
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "change its owner or mode, so that the user of the server can read it".to_owned()
        }
        io::ErrorKind::NotFound => {
            format!("correct its path in {option}; `{command}` prints lines for a new one")
        }
        _ => format!("name another file in {option}"),
    }
}

/// Purpose of a secret file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileKind {
    /// Users with hashed passwords.
    #[error("users file")]
    Users,
    /// The tokens file, with hashed tokens.
    #[error("tokens file")]
    Tokens,
}

/// The fault in a line of a secret file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineProblem {
    /// No colon after the user name.
    #[error("expected NAME:HASH, as `samovar password NAME` prints")]
    NoUser,
    /// A hash algorithm that is no longer secure; contains its name.
    #[error("{0} is too weak: replace the line with the output of `samovar password NAME`")]
    Weak(&'static str),
    /// No hash, or an unknown algorithm.
    #[error(
        "the password is not hashed, or by an unknown algorithm: replace the line with the output \
         of `samovar password NAME`"
    )]
    Plain,
    /// An incomplete or damaged hash.
    #[error(
        "the hash is damaged or incomplete: replace the line with the output of \
         `samovar password NAME`"
    )]
    Damaged,
    /// A hash that takes too much memory or time to verify.
    #[error(
        "verifying this hash would take too much memory or time (at most 256 MiB and 16 rounds of \
         Argon2id, cost 14 of bcrypt): replace the line with the output of `samovar password NAME`"
    )]
    Costly,
    /// A name that an earlier line has defined.
    #[error("duplicate user: delete one of the lines")]
    Again,
    /// A line that is not a hashed token.
    #[error("expected NAME:SHA256 with 64 hex digits, as `samovar token line NAME` prints")]
    NoToken,
}
