//! Every key of a configuration: the one table behind the file, the environment, the command line,
//! `--help` and the reference.

/// A key, as it is spelled in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// With dots between the names of tables and its own.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// What holds where it is not given, for people.
    pub default: &'static str,
    /// One sentence or two.
    pub help: &'static str,
    /// Whom it is about.
    pub scope: Scope,
}

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A file or directory.
    Path,
    /// A whole number.
    Count,
    /// Bytes: a number, or one with a unit, as in `"64 MiB"`.
    Size,
    /// Seconds: a number, or a text with a unit, as in `"10 min"`.
    Time,
    /// `true` or `false`.
    Switch,
    /// One of these.
    Word(&'static [&'static str]),
    /// Texts; in the environment separated by white space, on the command line each in an option of
    /// its own.
    List,
    /// Tables in a list; in the environment and on the command line written as in the file.
    Tables,
}

/// Whom a key is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The server. Takes effect at start.
    Start,
    /// A cache: for all of them, or for one in `[caches.NAME]`. Takes effect at start and when the
    /// configuration is read again.
    Cache,
}

/// The table that holds a table for each named cache.
pub(super) const CACHES: &str = "caches";

/// What the name of an environment variable begins with.
pub const VARIABLE_PREFIX: &str = "SAMOVAR_";

const fn key(
    name: &'static str,
    kind: Kind,
    scope: Scope,
    default: &'static str,
    help: &'static str,
) -> Key {
    Key {
        name,
        kind,
        default,
        help,
        scope,
    }
}

use Kind::{Count, List, Path, Size, Switch, Tables, Text, Time, Word};
use Scope::{Cache, Start};

/// All of them, in the order of the reference.
pub const KEYS: &[Key] = &[
    key(
        "listen",
        List,
        Start,
        "every address, port 5000",
        "What to listen on: HOST:PORT, [ADDRESS]:PORT, :PORT, or the path of a unix socket. \
         Sockets that a service manager passes are used instead, and must be among \
         these addresses if any are given.",
    ),
    key(
        "backlog",
        Count,
        Start,
        "1024",
        "Connections that may wait to be accepted, for each listener.",
    ),
    key(
        "workers",
        Count,
        Start,
        "as many as seem right",
        "Threads for work that may block, at most 1024.",
    ),
    key(
        "tls.certificate",
        Path,
        Start,
        "none: plain HTTP",
        "PEM: the server's certificate and then its issuers'. Read again on reload.",
    ),
    key(
        "tls.key",
        Path,
        Start,
        "none",
        "PEM: the certificate's private key. Read again on reload.",
    ),
    key(
        "tls.client-authorities",
        Path,
        Start,
        "none: clients are not asked for certificates",
        "PEM: the authorities whose client certificates are good. Who may read with one is \
         access.certificates. Read again on reload.",
    ),
    key(
        "tls.client-certificates",
        Word(&["optional", "required"]),
        Start,
        "optional",
        "Whether a client without a certificate is turned away in the handshake.",
    ),
    key(
        "user",
        Text,
        Start,
        "whoever starts it",
        "Name or number of the user to become once the sockets are bound.",
    ),
    key(
        "group",
        Text,
        Start,
        "the user's",
        "Name or number of the group to become.",
    ),
    key(
        "pid-file",
        Path,
        Start,
        "none",
        "File for the number of the process.",
    ),
    key(
        "store",
        Text,
        Start,
        "$NIX_REMOTE, or this machine's store",
        "The store that is served, as a URI of Nix: a directory, local?root=…, daemon.",
    ),
    key(
        "queue",
        Count,
        Start,
        "4096",
        "Requests that may wait for a worker, at most 1,000,000; more get 503.",
    ),
    key(
        "connections.max",
        Count,
        Start,
        "16384, or what the limit of open files allows",
        "Connections at once, 1 to 1,000,000; then one at rest is closed for a new one, or that \
         gets 503. The limit of open files holds as well.",
    ),
    key(
        "connections.head-size",
        Size,
        Start,
        "16 KiB",
        "Bytes of the head of a request, 1 KiB to 64 KiB; longer ones get 431.",
    ),
    key(
        "connections.streams",
        Count,
        Start,
        "100",
        "Requests at once on a connection of HTTP/2, at most 10,000; more are to be tried again.",
    ),
    key(
        "connections.requests",
        Count,
        Start,
        "no limit",
        "Requests after which a connection is closed.",
    ),
    key(
        "connections.idle-time",
        Time,
        Start,
        "60 s",
        "How long a connection may be idle between requests; 0 closes it after each.",
    ),
    key(
        "connections.head-time",
        Time,
        Start,
        "10 s",
        "Time from the first byte, or from accepting, to the whole request head; 0 for no limit.",
    ),
    key(
        "connections.stall-time",
        Time,
        Start,
        "30 s",
        "Time without progress after which a connection is closed; 0 for no limit.",
    ),
    key(
        "nar-cache.directory",
        Path,
        Start,
        "$CACHE_DIRECTORY, or /var/tmp",
        "Where NARs of many small files are kept, on a disk, without a name.",
    ),
    key(
        "nar-cache.size",
        Size,
        Start,
        "1 GiB, or an eighth of what is free there",
        "Bytes of them; 0 for none.",
    ),
    key(
        "hold",
        Time,
        Start,
        "10 min, if there is a daemon",
        "How long at least a path that was announced is held against garbage collection; 0 for not \
         at all.",
    ),
    key(
        "verify",
        Word(&["first", "never"]),
        Start,
        "first",
        "Which NARs are hashed on their way: the first of each path, or none.",
    ),
    key(
        "scrub",
        Size,
        Start,
        "0",
        "Bytes verified in a second that nobody asks for; 0 for none.",
    ),
    key(
        "state-directory",
        Path,
        Start,
        "$STATE_DIRECTORY, or nowhere",
        "Where is written down what was found out about files.",
    ),
    key(
        "log.errors",
        Path,
        Start,
        "standard error",
        "File for what the server has to say. Opened anew on reload.",
    ),
    key(
        "log.verbose",
        Switch,
        Start,
        "false",
        "Whether detail is written there.",
    ),
    key(
        "log.access",
        Path,
        Start,
        "none",
        "File for a line about each request; - is standard output. Opened anew on reload.",
    ),
    key(
        "log.access-format",
        Word(&["combined", "json"]),
        Start,
        "combined",
        "How these lines are written: Apache's combined format, or one JSON object each.",
    ),
    key(
        "admin.listen",
        List,
        Start,
        "127.0.0.1:5001",
        "What metrics and status are served on: /metrics, /healthz, /readyz, /version, /status; an \
         empty list for nothing. Whoever reaches it sees what is asked for, and by whom.",
    ),
    key(
        "admin.top-paths",
        Switch,
        Start,
        "false",
        "Whether the paths most asked for are labels in /metrics. They are in the status anyway.",
    ),
    key(
        "log.client-address",
        Word(&["peer", "forwarded"]),
        Start,
        "peer",
        "Whose address stands there: the peer's, or the one that a proxy of \
         access.trusted-proxies names in access.forwarded-header.",
    ),
    key(
        "prefix",
        Text,
        Cache,
        "/, and /NAME for a named cache",
        "URL path under which the cache is found. Cannot be given for all caches at once if some \
         are named.",
    ),
    key(
        "priority",
        Count,
        Cache,
        "30",
        "Priority in nix-cache-info: clients ask caches with a lower one first. That of \
         cache.nixos.org is 40.",
    ),
    key(
        "secret-key-files",
        List,
        Cache,
        "$NIX_SECRET_KEY_FILE, or none",
        "Files of the keys to sign with, as nix-store --generate-binary-cache-key makes them. \
         credential:NAME is a credential of the service manager.",
    ),
    key(
        "access.users-file",
        Path,
        Cache,
        "none",
        "File of users for HTTP Basic: NAME:HASH a line, Argon2id or bcrypt, as samovar password \
         prints it. Nix sends what its netrc-file says. Read again on reload.",
    ),
    key(
        "access.tokens-file",
        Path,
        Cache,
        "none",
        "File of tokens: NAME:SHA256 a line, as samovar token prints it. For Authorization: \
         Bearer, and as the password of any user. Read again on reload.",
    ),
    key(
        "access.networks",
        List,
        Cache,
        "none",
        "Networks and addresses that may read, such as 192.0.2.0/24.",
    ),
    key(
        "access.trusted-proxies",
        List,
        Cache,
        "none",
        "Networks and addresses of proxies that are believed when they say from whom they were \
         asked; unix for those on a unix socket.",
    ),
    key(
        "access.forwarded-header",
        Word(&["x-forwarded-for", "forwarded"]),
        Cache,
        "x-forwarded-for",
        "Where they say it. The other header is not looked at.",
    ),
    key(
        "access.uids",
        List,
        Cache,
        "none",
        "Numbers of users whose processes may read by a unix socket.",
    ),
    key(
        "access.gids",
        List,
        Cache,
        "none",
        "The same for the primary group of a process.",
    ),
    key(
        "access.certificates.any",
        Switch,
        Cache,
        "false",
        "Whether every client certificate from tls.client-authorities may read.",
    ),
    key(
        "access.certificates.fingerprints",
        List,
        Cache,
        "none",
        "Client certificates that may read, by SHA-256.",
    ),
    key(
        "access.certificates.common-names",
        List,
        Cache,
        "none",
        "The same by the common name of the subject.",
    ),
    key(
        "access.certificates.dns-names",
        List,
        Cache,
        "none",
        "The same by a DNS name among the subject's alternative names.",
    ),
    key(
        "access.certificates.uris",
        List,
        Cache,
        "none",
        "The same by a URI among them.",
    ),
    key(
        "access.refuse-with",
        Word(&["fitting", "401", "403", "404"]),
        Cache,
        "fitting: 401 where credentials could help, else 403",
        "What others get. Every Nix takes 403 and 404 for a miss and asks its next cache; from \
         2.35 on 401 is an error.",
    ),
    key(
        "access.realm",
        Text,
        Cache,
        "Nix binary cache",
        "What a browser shows when it asks for a password.",
    ),
    key(
        "access.rate",
        Count,
        Cache,
        "no limit",
        "Requests a second that one client may send in the long run: a user, or an address. More \
         get 429, which makes the builds of Nix clients fail if it lasts.",
    ),
    key(
        "access.burst",
        Count,
        Cache,
        "a minute's",
        "Requests it may send at once after a pause. Let it be more than the largest closure has \
         paths.",
    ),
    key(
        "signing.sign",
        Word(&["all", "ultimate", "trusted", "none"]),
        Cache,
        "all",
        "What the keys sign: everything, what was built here, what has a stored signature by one \
         of signing.trusted-keys, or nothing.",
    ),
    key(
        "signing.trusted-keys",
        List,
        Cache,
        "none",
        "Public keys, NAME:BASE64, for signing.sign = \"trusted\".",
    ),
    key(
        "signing.stored",
        Word(&["replace", "keep"]),
        Cache,
        "replace",
        "Whether stored signatures are sent beside the cache's own, or only where it does \
         not sign.",
    ),
    key(
        "signing.content-addresses",
        Switch,
        Cache,
        "false",
        "Whether narinfos say what the names of content-addressed paths were computed from (CA).",
    ),
    key(
        "signing.realisations",
        Switch,
        Cache,
        "false",
        "Whether realisations of content-addressed derivations are signed as their paths are.",
    ),
    key(
        "policy.allow",
        Tables,
        Cache,
        "everything",
        "What may be read: paths of which one of these rules holds. A rule is a table, and holds \
         if all does that it asks for: roots (the closure of what these store paths, links or \
         folders of links lead to), signed-by, ultimate, names (patterns with * and ?), min-age, \
         max-age.",
    ),
    key(
        "policy.deny",
        Tables,
        Cache,
        "nothing",
        "What may not be read, whatever is allowed: paths of which one of these rules holds.",
    ),
    key(
        "pages",
        Switch,
        Cache,
        "true; nix-serve: false",
        "Whether there are pages for people: what this cache is and how to use it, what is known \
         of a path, its files.",
    ),
    key(
        "title",
        Text,
        Cache,
        "the cache's name, or Samovar",
        "What its pages call it.",
    ),
    key(
        "description",
        Text,
        Cache,
        "none",
        "A sentence or two about it, on its first page.",
    ),
    key(
        "public-url",
        Text,
        Cache,
        "the one that a visitor's browser has reached",
        "The URL that clients shall use, as its first page tells them.",
    ),
];

impl Key {
    /// The key of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }

    /// Its option on the command line, without dashes before it.
    pub fn option(&self) -> String {
        self.name.replace('.', "-")
    }

    /// Its variable in the environment.
    pub fn variable(&self) -> String {
        format!("{VARIABLE_PREFIX}{}", shouted(self.name))
    }
}

/// As it stands in the name of a variable.
pub(super) fn shouted(name: &str) -> String {
    name.replace(['.', '-'], "_").to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_different_in_every_spelling() {
        for spell in [Key::option, Key::variable] {
            let all: HashSet<String> = KEYS.iter().map(spell).collect();
            assert_eq!(all.len(), KEYS.len());
        }
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'-' || byte == b'.';
        assert!(KEYS.iter().all(|key| key.name.bytes().all(is_plain)));
        // `SAMOVAR_CACHES__NAME__KEY` means nothing else.
        assert!(KEYS.iter().all(|key| !key.name.starts_with(CACHES)));
    }
}
