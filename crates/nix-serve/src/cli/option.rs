//! The table of options: names, value, and effect on the configuration.

use std::ffi::OsStr;
use std::num::{NonZeroU32, NonZeroU64};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use samovar_server::config::{
    BACKLOG_MAX, LogForm, OptionSpec, PRIORITY_MAX, Pages, WORKERS_MAX, value,
};
use samovar_server::listener::{Host, ListenSpec, PORT_DEFAULT};

use super::draft::{Draft, LogFormat};

/// An option that nix-serve knows: one row of [`OPTIONS`].
#[derive(Debug)]
pub(super) struct KnownOption {
    /// Full name of an option of both programs. Its names on the command line are declared there.
    pub(super) spec: Option<&'static str>,
    /// Further names without dashes; single letters are the short names.
    pub(super) names: &'static [&'static str],
    pub(super) takes: Takes,
}

impl KnownOption {
    /// Returns the declaration of an option of both programs.
    fn declaration(&self) -> Option<&'static OptionSpec> {
        self.spec.and_then(OptionSpec::find)
    }

    /// Returns all names, without dashes.
    fn all_names(&self) -> Vec<String> {
        let declared = self.declaration();
        let aliases = declared.map_or(&[][..], |spec| spec.aliases);
        let others = self.names.iter().chain(aliases);
        let others = others.map(|name| (*name).to_owned());
        declared
            .map(OptionSpec::option)
            .into_iter()
            .chain(others)
            .collect()
    }

    /// Returns whether the option must not be dropped if its value is empty, as when it comes from
    /// an unset variable.
    pub(super) fn is_protection(&self) -> bool {
        self.spec.is_some_and(|name| PROTECTION.contains(&name))
    }
}

/// Options of nix-serve that ask for protection.
pub(super) const PROTECTION: [&str; 5] = [
    "tls.certificate",
    "tls.key",
    "user",
    "group",
    "secret-key-files",
];

/// Whether an option takes a value, and how it changes the draft of the configuration.
#[derive(Debug, Clone, Copy)]
pub(super) enum Takes {
    /// Takes no value; `--x=0` and `--disable-x` switch the option off.
    Nothing(Switch),
    /// Takes no value as `--enable-x` and `--disable-x`, and an optional boolean as `--x`: starman
    /// stores all three as a key `x` with a value.
    Toggle(Switch),
    /// Takes a required value: a description of valid values, and a setter that returns `None` if
    /// the value is invalid.
    Value(&'static str, fn(&mut Draft, &Given<'_>) -> Option<()>),
    /// Takes a required value that may be any path: a description, and a setter.
    File(&'static str, fn(&mut Draft, PathBuf)),
    /// Takes Perl code as an optional value. The option is refused unless the function returns
    /// true.
    Perl(fn(Option<&OsStr>) -> bool),
    /// Takes an optional value: the next word, if it does not begin with a dash. The option has no
    /// effect, for the given reason; the usual value causes no warning.
    Ignored {
        usual: Option<&'static str>,
        reason: &'static str,
    },
}

/// Switches an option on or off. The text is the option as spelled on the command line.
type Switch = fn(&mut Draft, &str, bool);

/// An option and its value on the command line.
#[derive(Debug)]
pub(super) struct Given<'a> {
    /// The option as spelled, without the value.
    pub(super) option: &'a str,
    pub(super) text: &'a OsStr,
}

impl PartialEq for KnownOption {
    fn eq(&self, other: &Self) -> bool {
        (self.spec, self.names) == (other.spec, other.names)
    }
}

impl Eq for KnownOption {}

const COUNT: &str = "a whole number, 0 for the default";
const SECONDS: &str = "a number of seconds, or a time such as \"10 min\"";
const SIZE: &str = "a number of bytes, such as 4096 or \"64 MiB\", or off";
const NO_APPLICATION: &str = "there is no application to load";
const NO_PERL: &str = "there is no Perl here";
const LISTEN: &str = "HOST:PORT, :PORT, [IPV6]:PORT or the path of a Unix socket";

use Takes::{File, Nothing, Perl, Toggle, Value};

/// Creates the row of an option of nix-serve alone.
const fn row(names: &'static [&'static str], takes: Takes) -> KnownOption {
    KnownOption {
        spec: None,
        names,
        takes,
    }
}

/// Creates the row of an option of both programs, given by its full name.
const fn both(name: &'static str, takes: Takes) -> KnownOption {
    KnownOption {
        spec: Some(name),
        names: &[],
        takes,
    }
}

impl KnownOption {
    const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.names = names;
        self
    }
}

const fn ignored(reason: &'static str) -> Takes {
    Takes::Ignored {
        usual: None,
        reason,
    }
}

const fn ignored_unless(usual: &'static str, reason: &'static str) -> Takes {
    Takes::Ignored {
        usual: Some(usual),
        reason,
    }
}

/// All options, including those without effect.
#[rustfmt::skip]
pub(super) static OPTIONS: &[KnownOption] = &[
    both("log.access", File("a file, or - for standard output", |draft, path| {
        draft.access_log = Some(path.into());
    })),
    both("admin.listen", Value(LISTEN, |draft, given| {
        draft.config.admin.listeners = vec![ListenSpec::parse_strict(given.text)?];
        Some(())
    })),
    row(&["app", "a"], Perl(is_nix_serve)),
    both("backlog", Value(COUNT, |draft, given| {
        // As in Perl, 0 counts as false. So 0 means the default.
        if let Some(count) = NonZeroU32::new(draft.bounded(given, BACKLOG_MAX)?) {
            draft.config.backlog = count.get();
        }
        Some(())
    })),
    row(&["daemonize", "D"], Nothing(|draft, _, on| draft.daemonize = on)),
    row(&["default-middleware", "nodefault-middleware"], Nothing(|draft, option, _| {
        draft.no_effect(option, "there is no middleware");
    })),
    row(&["env", "E"], ignored_unless(
        "deployment",
        "the environment is always deployment (see --log-access, --log-verbose)",
    )),
    both("log.access-format", Value("combined or json", |draft, given| {
        draft.config.access_log_format = match given.text.to_str()? {
            "combined" => LogForm::Combined,
            "json" => LogForm::Json,
            _ => return None,
        };
        Some(())
    })),
    both("log.verbose", Nothing(|draft, _, on| draft.config.is_verbose = on)),
    both("secret-key-files", Value("the file of a secret key", |draft, given| {
        draft.secret_key_files.push(given.text.into());
        Some(())
    })),
    both("connections.stall-time", Value(SECONDS, |draft, given| {
        draft.stall_time = Some(limit(given.text)?);
        Some(())
    })),
    both("log.errors", File("a file", |draft, path| draft.config.error_log = Some(path))),
    row(&["e"], Perl(|_| false)),
    both("gc-lease", Value("a time of at least 1 s, such as \"10 min\", or off", |draft, given| {
        draft.config.gc_lease = Some(value::gc_lease(given.text)?);
        Some(())
    })),
    both("group", Value("the name or number of a group", |draft, given| {
        draft.config.group = Some(given.name()?);
        Some(())
    })),
    row(&["help", "h"], Nothing(|_, _, _| {})),
    row(&["host", "o"], Value(
        "an address, a host name, or one of * *4 *6 !4 !6",
        |draft, given| {
            draft.host = Some(Host::parse(given.text.to_str()?)?);
            Some(())
        },
    )),
    row(&["I"], ignored(NO_PERL)),
    row(&["keepalive"], Toggle(|draft, _, on| draft.keepalive = Some(on))),
    both("connections.idle-time", Value(SECONDS, |draft, given| {
        draft.keepalive_timeout = Some(value::seconds(given.text)?);
        Some(())
    })),
    both("listen", Value(LISTEN, Draft::take_listen)).short(&["l"]),
    row(&["loader", "L"], ignored(NO_APPLICATION)),
    row(&["log-format"], Value(
        "one of quiet, default, normal, real-ip, json, verbose, debug",
        |draft, given| {
            draft.log_format = Some(LogFormat::parse(given.text.to_str()?)?);
            Some(())
        },
    )),
    both("connections.requests", Value(COUNT, |draft, given| {
        draft.config.limits.requests_per_connection_max = value::count(given.text)?;
        Some(())
    })),
    row(&["M"], ignored(NO_PERL)),
    both("nar-cache.directory", File("a directory", |draft, path| {
        draft.config.nar_cache = Some(path);
    })),
    both("nar-cache.size", Value(SIZE, |draft, given| {
        draft.config.nar_cache_size = Some(value::size(given.text)?);
        Some(())
    })),
    both("pages", Nothing(|draft, _, on| {
        draft.config.caches[0].pages = on.then(Pages::default);
    })),
    both("prefix", Value("a URL path that begins with a slash", |draft, given| {
        draft.config.caches[0].prefix = value::url_prefix(given.text)?;
        Some(())
    })),
    both("pid-file", File("a file", |draft, path| draft.config.pid_file = Some(path))),
    row(&["port", "p"], Value("a port number from 0 to 65535", |draft, given| {
        // As in Perl, 0 counts as false. So 0 means the default. `--listen HOST:0` lets the system
        // choose a port.
        let port = value::whole(given.text)?;
        draft.port = Some(if port == 0 { PORT_DEFAULT } else { port });
        Some(())
    })),
    // nix-serve always passes this option to starman.
    row(&["preload-app"], Nothing(|_, _, _| {})),
    both("priority", Value("a whole number from 0 to 2147483647", |draft, given| {
        let priority = value::whole(given.text).filter(|it| u64::from(*it) <= PRIORITY_MAX)?;
        draft.config.caches[0].priority = priority;
        Some(())
    })),
    row(&["proctitle"], Toggle(|draft, option, _| {
        draft.no_effect(option, "the title of the process is never changed");
    })),
    row(&["quiet"], Nothing(|draft, _, on| draft.switch_log_format(LogFormat::Quiet, on))),
    both("connections.head-time", Value(SECONDS, |draft, given| {
        draft.config.limits.head_time = limit(given.text)?;
        Some(())
    })),
    row(&["reload", "r"], Nothing(|draft, option, _| {
        draft.no_effect(option, "there is no application to reload");
    })),
    row(&["Reload", "R"], ignored(NO_APPLICATION)),
    both("scrub", Value(SIZE, |draft, given| {
        draft.config.scrub_rate = NonZeroU64::new(value::size(given.text)?);
        Some(())
    })),
    row(&["server", "s"], ignored_unless("Starman", "there is one server")),
    row(
        &["min-servers", "max-servers", "min-spare-servers", "max-spare-servers"],
        ignored("there are no worker processes (see --workers)"),
    ),
    row(&["socket", "S"], File("the path of a Unix socket", |draft, path| {
        draft.socket = Some(path);
    })),
    row(&["ssl"], Toggle(|draft, option, on| draft.tls = Some((option.to_owned(), on)))),
    both("tls.certificate", Value("a file", |draft, given| {
        draft.tls_certificate = Some((given.option.to_owned(), given.text.into()));
        Some(())
    })),
    both("tls.key", Value("a file", |draft, given| {
        draft.tls_key = Some((given.option.to_owned(), given.text.into()));
        Some(())
    })),
    both("state-directory", File("a directory", |draft, path| {
        draft.config.state_directory = Some(path);
    })),
    both("store", Value("a store URI", |draft, given| {
        draft.config.store = Some(given.name()?);
        Some(())
    })),
    row(&["timeout"], Value(SECONDS, |draft, given| {
        draft.timeout = Some(limit(given.text)?);
        Some(())
    })),
    both("user", Value("the name or number of a user", |draft, given| {
        draft.config.user = Some(given.name()?);
        Some(())
    })),
    row(&["verbose"], Nothing(|draft, _, on| draft.switch_log_format(LogFormat::Verbose, on))),
    both("verify", Value("first or never", |draft, given| {
        draft.config.verifies_first = value::verifies_first(given.text)?;
        Some(())
    })),
    row(&["version", "v"], Nothing(|_, _, _| {})),
    both("workers", Value(COUNT, |draft, given| {
        draft.config.workers = NonZeroU32::new(draft.bounded(given, WORKERS_MAX)?);
        Some(())
    })),
];

/// Returns whether `--app` names nix-serve's own application. Any other may be a wrapper that asks
/// for passwords.
fn is_nix_serve(text: Option<&OsStr>) -> bool {
    let name = text.and_then(|path| Path::new(path).file_name());
    name == Some("nix-serve.psgi".as_ref())
}

/// Parses a time limit; 0 means no limit. Returns `None` if the text is not a time.
fn limit(text: &OsStr) -> Option<Duration> {
    let time = value::seconds(text)?;
    Some(if time.is_zero() { Duration::MAX } else { time })
}

impl Given<'_> {
    /// Returns the value as text for system calls; `None` if it is not UTF-8 or contains a NUL.
    fn name(&self) -> Option<String> {
        let text = self.text.to_str()?;
        (!text.contains('\0')).then(|| text.to_owned())
    }
}

/// Finds an option by `name`, which has no leading dashes and no `=value`. Also returns the switch
/// for a prefix `enable-`, `disable-` or `no-` of the name.
///
/// Names are exact and case-sensitive, as in `Getopt::Long` with `no_auto_abbrev` and
/// `no_ignore_case`. Underscores count as dashes, as in Plack's pass-through keys.
pub(super) fn find(name: &str) -> Option<(&'static KnownOption, Option<bool>)> {
    let name = name.replace('_', "-");
    if let Some(option) = find_exact(&name) {
        return Some((option, None));
    }
    let (base_name, on) = split_switch(&name)?;
    let option = find_exact(base_name)?;
    matches!(option.takes, Nothing(_) | Toggle(_)).then_some((option, Some(on)))
}

fn find_exact(name: &str) -> Option<&'static KnownOption> {
    let spec = OptionSpec::by_option(name).map(|spec| spec.name);
    OPTIONS
        .iter()
        .find(|option| option.names.contains(&name) || spec.is_some() && option.spec == spec)
}

/// Returns all names, without dashes.
pub(super) fn names() -> Vec<String> {
    OPTIONS.iter().flat_map(KnownOption::all_names).collect()
}

/// Splits `enable-x`, `disable-x` and `no-x`. Accepts dashes only, not underscores.
pub(super) fn split_switch(name: &str) -> Option<(&str, bool)> {
    [("enable-", true), ("disable-", false), ("no-", false)]
        .into_iter()
        .find_map(|(prefix, on)| Some((name.strip_prefix(prefix)?, on)))
}

/// An argument split at its dashes and its first `=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spelling<'a> {
    pub(super) dash_count: usize,
    pub(super) name: &'a [u8],
    pub(super) value: Option<&'a OsStr>,
}

impl<'a> Spelling<'a> {
    /// Splits an argument. Returns `None` for words without a dash, and for `-` itself.
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

    /// Finds the option of nix-serve with this name; `None` if there is none. Also returns the
    /// switch for a prefix such as `enable-`.
    pub(super) fn find(&self) -> Option<(&'static KnownOption, Option<bool>)> {
        find(std::str::from_utf8(self.name).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names = names();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    /// The rows and the declarations agree.
    #[test]
    fn every_declared_option_of_nix_serve_is_known() {
        for spec in OptionSpec::all() {
            let rows = OPTIONS
                .iter()
                .filter(|option| option.spec == Some(spec.name));
            assert_eq!(
                rows.count(),
                usize::from(spec.in_nix_serve),
                "{}",
                spec.name
            );
            for name in spec.replaces {
                let option = find(name).map(|(option, _)| option).expect(name);
                assert_eq!(option.spec, None, "{name}");
            }
        }
    }

    #[test]
    fn switches_are_found_by_their_prefix() {
        let (option, switch) = find("disable_keepalive").expect("known");
        assert_eq!((option.names[0], switch), ("keepalive", Some(false)));
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
