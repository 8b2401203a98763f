//! What is wrong with what an operator configured.

use std::io;
use std::path::PathBuf;

/// Why access rules cannot be used: what, where, and how to mend it, in one line. Nothing of what a
/// secret file holds is in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// A file is not there, or not readable, or no such file at all.
    #[error("the {kind} {path:?} cannot be read")]
    Unreadable {
        /// What the file is for.
        kind: FileKind,
        /// Where it is.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// Everybody on the machine may read it.
    #[error("the {kind} {path:?} can be read by everybody: `chmod o-rwx` it")]
    ReadableByAll {
        /// What the file is for.
        kind: FileKind,
        /// Where it is.
        path: PathBuf,
    },
    /// A line of a file is wrong.
    #[error("the {kind} {path:?}, line {line}: {problem}")]
    Line {
        /// What the file is for.
        kind: FileKind,
        /// Where it is.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// What is wrong.
        problem: LineProblem,
    },
    /// Not a network.
    #[error(
        "{0:?} is no network: an address or a prefix such as \"192.0.2.0/24\" or \"2001:db8::/32\" \
         is expected"
    )]
    Network(String),
    /// Not a fingerprint.
    #[error(
        "{0:?} is no SHA-256 fingerprint: 64 hex digits are expected, as \
         `openssl x509 -noout -fingerprint -sha256 -in FILE` prints them"
    )]
    Fingerprint(String),
    /// A limit that lets nobody through.
    #[error("a rate limit needs at least 1 request a second and a burst of at least 1")]
    RateLimit,
    /// The realm would break the header it stands in.
    #[error("the realm {0:?} may hold printable ASCII alone, without quotes and backslashes")]
    Realm(String),
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    Random(#[source] io::Error),
}

/// What a file is for.
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
    #[error("NAME:HASH is expected; `samovar password NAME` prints such a line")]
    NoUser,
    /// A hash that is none any more.
    #[error(
        "{0} keeps no password secret: replace the line by what `samovar password NAME` prints"
    )]
    Weak(&'static str),
    /// Nothing that looks like a hash.
    #[error(
        "the password is not hashed, or in a way that is not known: replace the line by what \
         `samovar password NAME` prints"
    )]
    Plain,
    /// A hash with something missing.
    #[error(
        "the hash is damaged or not complete: replace the line by what `samovar password NAME` \
         prints"
    )]
    Damaged,
    /// A hash that takes too long.
    #[error(
        "verifying this hash would take too much memory or time (at most 256 MiB and 16 rounds of \
         Argon2id, cost 14 of bcrypt): replace the line by what `samovar password NAME` prints"
    )]
    Costly,
    /// The name stands there already.
    #[error("this user has a line already: delete one of them")]
    Again,
    /// Not a token.
    #[error("NAME:SHA256 is expected, 64 hex digits; `samovar token NAME` prints such a line")]
    NoToken,
}
