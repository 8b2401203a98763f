//! Errors in the access configuration.

use std::io;
use std::path::PathBuf;

/// An error in the access configuration: what, where, and how to fix it, in one line. Never
/// contains the content of a secret file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// A file cannot be read.
    #[error("the {kind} {path:?} cannot be read")]
    Unreadable {
        /// Purpose of the file.
        kind: FileKind,
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        error: io::Error,
    },
    /// A secret file is readable by all users.
    #[error("the {kind} {path:?} is readable by all users: run `chmod o-rwx` on it")]
    ReadableByAll {
        /// Purpose of the file.
        kind: FileKind,
        /// Path of the file.
        path: PathBuf,
    },
    /// A line of a file is wrong.
    #[error("the {kind} {path:?}, line {line}: {problem}")]
    Line {
        /// Purpose of the file.
        kind: FileKind,
        /// Path of the file.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// What is wrong.
        problem: LineProblem,
    },
    /// Not a network.
    #[error(
        "{0:?} is not a network: expected an address or a prefix such as \"192.0.2.0/24\" or \
         \"2001:db8::/32\""
    )]
    Network(String),
    /// Not a fingerprint.
    #[error(
        "{0:?} is not a SHA-256 fingerprint: expected 64 hex digits, as \
         `openssl x509 -noout -fingerprint -sha256 -in FILE` prints them"
    )]
    Fingerprint(String),
    /// A rate limit that admits no request.
    #[error("a rate limit needs at least 1 request per second and a burst of at least 1")]
    RateLimit,
    /// A realm that cannot be sent in `WWW-Authenticate`.
    #[error("the realm {0:?} must be printable ASCII without quotes and backslashes")]
    Realm(String),
    /// The system has no random numbers.
    #[error("the system provides no random numbers")]
    Random(#[source] io::Error),
}

/// Purpose of a secret file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileKind {
    /// Users with hashed passwords.
    #[error("users file")]
    Users,
    /// Hashed tokens.
    #[error("tokens file")]
    Tokens,
}

/// What is wrong with a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineProblem {
    /// No colon.
    #[error("expected NAME:HASH, as `samovar password NAME` prints")]
    NoUser,
    /// A hash that is none any more.
    #[error("{0} is too weak: replace the line with the output of `samovar password NAME`")]
    Weak(&'static str),
    /// Nothing that looks like a hash.
    #[error(
        "the password is not hashed, or by an unknown algorithm: replace the line with the output \
         of `samovar password NAME`"
    )]
    Plain,
    /// A hash with something missing.
    #[error(
        "the hash is damaged or incomplete: replace the line with the output of \
         `samovar password NAME`"
    )]
    Damaged,
    /// A hash that takes too long.
    #[error(
        "verifying this hash would take too much memory or time (at most 256 MiB and 16 rounds of \
         Argon2id, cost 14 of bcrypt): replace the line with the output of `samovar password NAME`"
    )]
    Costly,
    /// The name stands there already.
    #[error("duplicate user: delete one of the lines")]
    Again,
    /// Not a token.
    #[error("expected NAME:SHA256 with 64 hex digits, as `samovar token NAME` prints")]
    NoToken,
}
