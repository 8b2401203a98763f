//! The table of known options: every name, and whether a value follows.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// What an option means to the parser, whatever its spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OptionId {
    AccessLog,
    Admin,
    App,
    Backlog,
    Daemonize,
    DefaultMiddleware,
    Env,
    ErrorLog,
    Eval,
    Group,
    Help,
    Hold,
    Host,
    Include,
    Keepalive,
    KeepaliveTimeout,
    Listen,
    Loader,
    LogFormat,
    MaxRequests,
    Module,
    NarCache,
    NarCacheSize,
    Pages,
    Path,
    Pid,
    Port,
    PreloadApp,
    Priority,
    Proctitle,
    Quiet,
    ReadTimeout,
    Reload,
    ReloadDirectories,
    Server,
    ServerCount,
    Socket,
    Ssl,
    SslCert,
    SslKey,
    Scrub,
    StateDirectory,
    Store,
    Timeout,
    User,
    Verbose,
    Verify,
    Version,
    Workers,
}

/// Whether a value belongs to an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// None; `--x=0` and `--disable-x` switch it off.
    Nothing,
    /// None as `--enable-x` and `--disable-x`, one as `--x`: starman knows these by the bare key.
    Toggle,
    /// One, and it is an error if none follows. The text says what it is.
    Value(&'static str),
    /// One, if the next word does not begin with a dash. For options without effect.
    Optional,
}

/// One row of the table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KnownOption {
    pub(super) id: OptionId,
    pub(super) takes: Takes,
    /// Without dashes; single letters are the short names. The first is the one to suggest.
    pub(super) names: &'static [&'static str],
}

const fn row(id: OptionId, takes: Takes, names: &'static [&'static str]) -> KnownOption {
    KnownOption { id, takes, names }
}

/// Every option that is known, those without effect included.
#[rustfmt::skip]
pub(super) const OPTIONS: &[KnownOption] = {
    use OptionId as Id;
    use Takes::{Nothing, Optional, Toggle, Value};
    &[
        row(Id::AccessLog, Value("a file, or - for standard output"), &["access-log"]),
        row(Id::Admin, Value(LISTEN), &["admin"]),
        row(Id::App, Optional, &["app", "a"]),
        row(Id::Backlog, Value(COUNT), &["backlog"]),
        row(Id::Daemonize, Nothing, &["daemonize", "D"]),
        row(Id::DefaultMiddleware, Nothing, &["default-middleware"]),
        row(Id::Env, Optional, &["env", "E"]),
        row(Id::ErrorLog, Value("a file"), &["error-log"]),
        row(Id::Eval, Optional, &["e"]),
        row(Id::Group, Value("the name or number of a group"), &["group"]),
        row(Id::Help, Nothing, &["help", "h"]),
        row(Id::Hold, Value("a number of seconds, 1 or more, or off"), &["hold"]),
        row(Id::Host, Value("an address, a host name, or one of * *4 *6 !4 !6"), &["host", "o"]),
        row(Id::Include, Optional, &["I"]),
        row(Id::Keepalive, Toggle, &["keepalive"]),
        row(Id::KeepaliveTimeout, Value(SECONDS), &["keepalive-timeout"]),
        row(Id::Listen, Value(LISTEN), &["listen", "l"]),
        row(Id::Loader, Optional, &["loader", "L"]),
        row(Id::LogFormat, Value("one of quiet, default, normal, real-ip, json, verbose, debug"),
            &["log-format"]),
        row(Id::MaxRequests, Value(COUNT), &["max-requests"]),
        row(Id::Module, Optional, &["M"]),
        row(Id::NarCache, Value("a directory"), &["nar-cache"]),
        row(Id::NarCacheSize, Value("a number of bytes, 0 for none"), &["nar-cache-size"]),
        row(Id::Pages, Nothing, &["pages"]),
        row(Id::Path, Value("a URL path that begins with a slash"), &["path"]),
        row(Id::Pid, Value("a file"), &["pid"]),
        row(Id::Port, Value("a port number from 0 to 65535"), &["port", "p"]),
        row(Id::PreloadApp, Nothing, &["preload-app"]),
        row(Id::Priority, Value("a whole number from 0 to 2147483647"), &["priority"]),
        row(Id::Proctitle, Toggle, &["proctitle"]),
        row(Id::Quiet, Nothing, &["quiet"]),
        row(Id::ReadTimeout, Value(SECONDS), &["read-timeout"]),
        row(Id::Reload, Nothing, &["reload", "r"]),
        row(Id::ReloadDirectories, Optional, &["Reload", "R"]),
        row(Id::Scrub, Value("a number of bytes in a second, 0 for none"), &["scrub"]),
        row(Id::Server, Optional, &["server", "s"]),
        row(Id::ServerCount, Optional,
            &["min-servers", "max-servers", "min-spare-servers", "max-spare-servers"]),
        row(Id::Socket, Value("the path of a Unix socket"), &["socket", "S"]),
        row(Id::Ssl, Toggle, &["ssl"]),
        row(Id::SslCert, Value("a file"), &["ssl-cert"]),
        row(Id::SslKey, Value("a file"), &["ssl-key"]),
        row(Id::StateDirectory, Value("a directory"), &["state-directory"]),
        row(Id::Store, Value("a store URI"), &["store"]),
        row(Id::Timeout, Value(SECONDS), &["timeout"]),
        row(Id::User, Value("the name or number of a user"), &["user"]),
        row(Id::Verbose, Nothing, &["verbose"]),
        row(Id::Verify, Value("first or never"), &["verify"]),
        row(Id::Version, Nothing, &["version", "v"]),
        row(Id::Workers, Value(COUNT), &["workers"]),
    ]
};

const COUNT: &str = "a whole number, 0 for the default";
const SECONDS: &str = "a number of seconds";
const LISTEN: &str = "HOST:PORT, :PORT, [IPV6]:PORT or the path of a Unix socket";

/// An option as the user spelled it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) option: &'static KnownOption,
    /// Set by an `enable-`, `disable-` or `no-` before the name.
    pub(super) switch: Option<bool>,
}

/// Finds an option by `name`, which has neither dashes in front nor `=value` behind.
///
/// Names are exact and case-sensitive, as in `Getopt::Long` with `no_auto_abbrev` and
/// `no_ignore_case`; underscores stand for dashes, as in Plack's pass-through keys.
pub(super) fn find(name: &str) -> Option<Match> {
    let name = name.replace('_', "-");
    if let Some(option) = find_exact(&name) {
        return Some(Match {
            option,
            switch: None,
        });
    }
    if name == "nodefault-middleware" {
        let option = find_exact("default-middleware")?;
        return Some(Match {
            option,
            switch: Some(false),
        });
    }
    let (base_name, on) = split_switch(&name)?;
    let option = find_exact(base_name)?;
    matches!(option.takes, Takes::Nothing | Takes::Toggle).then_some(Match {
        option,
        switch: Some(on),
    })
}

fn find_exact(name: &str) -> Option<&'static KnownOption> {
    OPTIONS.iter().find(|option| option.names.contains(&name))
}

/// Splits `enable-x`, `disable-x` and `no-x`; dashes only, no underscores.
pub(super) fn split_switch(name: &str) -> Option<(&str, bool)> {
    [("enable-", true), ("disable-", false), ("no-", false)]
        .into_iter()
        .find_map(|(prefix, on)| Some((name.strip_prefix(prefix)?, on)))
}

/// An argument taken apart at its dashes and its first `=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spelling<'a> {
    pub(super) dash_count: usize,
    pub(super) name: &'a [u8],
    pub(super) value: Option<&'a OsStr>,
}

impl<'a> Spelling<'a> {
    /// `None` for words that are no options: those without a dash, and `-` itself.
    pub(super) fn of(argument: &'a OsStr) -> Option<Self> {
        let bytes = argument.as_bytes();
        let after_one = bytes.strip_prefix(b"-")?;
        let (dash_count, rest) = match after_one.strip_prefix(b"-") {
            Some(rest) => (2, rest),
            None if after_one.is_empty() => return None,
            None => (1, after_one),
        };
        let (name, value) = match rest.iter().position(|&byte| byte == b'=') {
            Some(at) => (&rest[..at], Some(OsStr::from_bytes(&rest[at + 1..]))),
            None => (rest, None),
        };
        Some(Self {
            dash_count,
            name,
            value,
        })
    }

    /// The known option of this name, if it is one.
    pub(super) fn find(&self) -> Option<Match> {
        find(std::str::from_utf8(self.name).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_stands_twice() {
        let mut names: Vec<_> = OPTIONS.iter().flat_map(|option| option.names).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn switches_are_found_by_their_prefix() {
        let found = find("disable_keepalive").expect("known");
        assert_eq!(
            (found.option.id, found.switch),
            (OptionId::Keepalive, Some(false))
        );
        assert_eq!(
            find("no-listen"),
            None,
            "an option with a value is no switch"
        );
        assert_eq!(find("LISTEN"), None, "case counts");
        assert_eq!(find("lis"), None, "nothing is abbreviated");
    }

    #[test]
    fn spelling_ends_at_the_first_equals_sign() {
        let spelling = Spelling::of(OsStr::new("--store=a=b")).expect("an option");
        assert_eq!(
            (spelling.dash_count, spelling.name),
            (2, b"store".as_slice())
        );
        assert_eq!(spelling.value, Some(OsStr::new("a=b")));
        assert_eq!(Spelling::of(OsStr::new("-")), None);
        assert_eq!(Spelling::of(OsStr::new("word")), None);
    }
}
