//! Declares all options in one table: name, type, bounds, default, description and setter.
//!
//! The configuration file, the environment, the command line, `--help` and the reference of the
//! book are derived from it. `server.rs` declares the options of the process, `storage.rs` those of
//! its bucket and database, `cache.rs` the options of a cache, `upstream.rs` the options of an
//! upstream cache, `oidc.rs` those of an issuer of ID tokens.

pub(super) mod cache;
mod kind;
pub(super) mod oidc;
pub(super) mod server;
pub(super) mod storage;
pub(super) mod upstream;

use std::path::PathBuf;
use std::time::Duration;

use samovar_cache::Rule;

use super::draft::{CacheDraft, IssuerDraft, ServerDraft, UpstreamDraft};
use super::issuer_rules::{self, RuleDraft};
use super::toml::Value;
use super::{CertificateFiles, Configuration, certificates, rules, unit, value};

pub use kind::Kind;

use kind::seconds;

/// The declaration of an option.
#[derive(Debug)]
pub struct OptionSpec {
    /// Dotted name, as in the configuration file.
    pub name: &'static str,
    /// Description of the option, of one or two sentences.
    pub help: &'static str,
    /// Whether nix-serve has the option, too.
    pub in_nix_serve: bool,
    /// Other names of the option on the command lines, without dashes: the names in nix-serve,
    /// starman and nix-serve-ng. Both programs accept them.
    pub aliases: &'static [&'static str],
    /// Options of nix-serve alone that set the same in another form, without dashes.
    pub replaces: &'static [&'static str],
    /// The default in nix-serve, if it is another one.
    nix_serve_default: Option<&'static str>,
    /// Type and bounds of the option's value.
    pub kind: Kind,
    /// Whether the option belongs to the server, to each cache, or to an upstream.
    pub scope: Scope,
    /// Whether the option can be set only for one cache or upstream, in its table.
    pub is_of_one: bool,
    /// Whether a change of the option takes effect at a reload. If not, it does after a restart.
    pub(super) is_reloaded: bool,
    /// How the default is shown. `None` for the first word of a [`Kind::Word`], and if there is no
    /// default.
    shown_default: Option<Shown>,
}

/// An option and its setter.
#[derive(Debug)]
pub(super) struct Row<D> {
    pub(super) spec: OptionSpec,
    pub(super) set: Set<D>,
}

/// What an option belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The server.
    Server,
    /// A cache: the option is set for all caches, or for one cache in `[caches.NAME]`. Takes effect
    /// at start and at reload.
    Cache,
    /// An upstream: the option is set in `[upstreams.NAME]`. Takes effect at start and at reload.
    Upstream,
    /// An issuer of ID tokens: the option is set in `[oidc.NAME]`. Takes effect at start and at
    /// reload.
    Oidc,
}

impl Scope {
    /// The scopes whose things have names, with a table for each.
    pub(super) const NAMED: [Self; 3] = [Self::Cache, Self::Upstream, Self::Oidc];

    /// Returns the name of the table that contains a table per named thing of this scope; empty
    /// for the server, which has no name.
    pub const fn table(self) -> &'static str {
        match self {
            Self::Server => "",
            Self::Cache => "caches",
            Self::Upstream => "upstreams",
            Self::Oidc => "oidc",
        }
    }

    /// Returns the word for a thing of this scope, with an article.
    pub(super) const fn thing(self) -> &'static str {
        match self {
            Self::Server => "the server",
            Self::Cache => "a cache",
            Self::Upstream => "an upstream",
            Self::Oidc => "an OIDC issuer",
        }
    }

    /// Returns the word for a thing of this scope.
    pub(super) fn noun(self) -> &'static str {
        self.thing().rsplit(' ').next().unwrap_or_default()
    }

    /// Returns the full name of an option of one thing: `caches.NAME.OPTION`.
    pub(super) fn full_name(self, name: &str, option: &str) -> String {
        format!("{}.{name}.{option}", self.table())
    }
}

/// Headings of help, each with its options and tables of options.
const HEADINGS: [(&str, &[&str]); 11] = [
    ("Listening", &["listen", "backlog", "tls"]),
    (
        "Store",
        &[
            "store",
            "nar-cache",
            "narinfo-memory",
            "gc-lease",
            "verify",
            "scrub",
            "state-directory",
        ],
    ),
    (
        "Connections and threads",
        &["workers", "queue", "connections"],
    ),
    (
        "Caches",
        &["prefix", "priority", "compression", "policy", "sources"],
    ),
    ("Keys and signatures", &["secret-key-files", "signing"]),
    ("Access", &["access"]),
    (
        "Uploads",
        &["storage", "bucket", "database", "node", "uploads"],
    ),
    (
        "Upstreams",
        &[
            "upstream",
            "upstream-memory",
            "upstream-budget",
            "upstream-down",
            "negative-ttl",
        ],
    ),
    (
        "Web interface",
        &["pages", "title", "description", "public-url"],
    ),
    ("Logs and monitoring", &["log", "admin"]),
    ("Process", &["user", "group", "pid-file"]),
];

/// Prefix of the environment variables that set options.
pub const VARIABLE_PREFIX: &str = "SAMOVAR_";

/// The default of an option as `--help` and the reference show it.
#[derive(Debug)]
enum Shown {
    /// A description, for a default that is not a single value.
    Words(&'static str),
    /// The value that the default configuration has.
    Value(fn(&Configuration) -> String),
    /// The value in the default configuration, followed by a remark.
    ValueOr(fn(&Configuration) -> String, &'static str),
    /// A description, and the value that it has for a configuration on this machine; `None` if it
    /// has none.
    Effective(&'static str, fn(&Configuration) -> Option<String>),
}

/// Parses a value of one type and stores it in a draft.
#[derive(Debug)]
pub(super) enum Set<D> {
    Text(fn(&mut D, String)),
    Path(fn(&mut D, PathBuf)),
    Paths(fn(&mut D, Vec<PathBuf>)),
    Count(u64, u64, fn(&mut D, u64)),
    Size(u64, u64, fn(&mut D, u64)),
    Time(fn(&mut D, Duration)),
    TimeWithin(u64, u64, fn(&mut D, Duration)),
    Switch(fn(&mut D, bool)),
    Word(&'static [&'static str], fn(&mut D, &str)),
    Texts(fn(&mut D, Vec<String>)),
    /// Text with a syntax of its own: a description of valid values, and a setter that returns
    /// `None` if a value is invalid.
    Parsed(&'static str, fn(&mut D, &str) -> Option<()>),
    /// List whose elements have a syntax of their own; description and setter as above.
    Each(&'static str, fn(&mut D, &[Value]) -> Option<()>),
    Url(fn(&mut D, String)),
    /// URL of another kind, which may contain a login: a description of its beginning, and a setter
    /// that returns a description of valid values if the URL is invalid.
    UrlOf(&'static str, fn(&mut D, String) -> Result<(), String>),
    Urls(fn(&mut D, Vec<String>)),
    Rules(fn(&mut D, Vec<Rule>)),
    Certificates(fn(&mut D, Vec<CertificateFiles>)),
    IssuerRules(fn(&mut D, Vec<RuleDraft>)),
}

/// Resolves the path in a value. For a value `credential:NAME`, returns the path of the service
/// manager's credential `NAME`, or an error message.
pub(super) type FindCredential<'a> = &'a dyn Fn(&str) -> Result<PathBuf, String>;

impl<D> Set<D> {
    const fn kind(&self) -> Kind {
        match self {
            Self::Text(_) | Self::Parsed(..) => Kind::Text,
            Self::Path(_) => Kind::Path,
            Self::Count(min, max, _) => Kind::Count(*min, *max),
            Self::Size(min, max, _) => Kind::Size(*min, *max),
            Self::Time(_) => Kind::Time,
            Self::TimeWithin(min, max, _) => Kind::TimeWithin(*min, *max),
            Self::Switch(_) => Kind::Switch,
            Self::Word(words, _) => Kind::Word(words),
            Self::Paths(_) | Self::Texts(_) | Self::Each(..) => Kind::List,
            Self::Url(_) => Kind::Url,
            Self::UrlOf(expected, _) => Kind::UrlOf(expected),
            Self::Urls(_) => Kind::Urls,
            Self::Rules(_) | Self::Certificates(_) | Self::IssuerRules(_) => Kind::Tables,
        }
    }

    /// Sets the option in a draft. If the value is invalid, the error describes valid values.
    // Long: one case per type of values.
    pub(super) fn apply(
        &self,
        draft: &mut D,
        value: &Value,
        credential: FindCredential<'_>,
    ) -> Result<(), String> {
        let expected = || self.kind().expected();
        let text = || text(value).ok_or_else(expected);
        match self {
            Self::Text(set) => set(draft, text()?.to_owned()),
            Self::Path(set) => set(draft, credential(text()?)?),
            Self::Paths(set) => {
                let texts = texts(value).ok_or_else(expected)?;
                let paths: Result<_, String> = texts.iter().map(|text| credential(text)).collect();
                set(draft, paths?);
            }
            Self::Count(min, max, set) => {
                let count = within(*min, *max, count(value));
                set(draft, count.ok_or_else(expected)?);
            }
            Self::Size(min, max, set) => {
                let size = match value {
                    Value::Text(text) => unit::size(text),
                    value => count(value),
                };
                set(draft, within(*min, *max, size).ok_or_else(expected)?);
            }
            Self::Time(set) => set(draft, unit::time_of(value).ok_or_else(expected)?),
            Self::TimeWithin(min, max, set) => {
                let (min, max) = (Duration::from_millis(*min), Duration::from_millis(*max));
                set(
                    draft,
                    within(min, max, unit::time_of(value)).ok_or_else(expected)?,
                );
            }
            Self::Switch(set) => match value {
                Value::Switch(is_on) => set(draft, *is_on),
                _ => return Err(expected()),
            },
            Self::Word(words, set) => {
                let word = text()?;
                if !words.contains(&word) {
                    return Err(expected());
                }
                set(draft, word);
            }
            Self::Texts(set) => set(draft, texts(value).ok_or_else(expected)?),
            Self::Parsed(expected, set) => {
                let text = self::text(value).and_then(|text| set(draft, text));
                text.ok_or_else(|| (*expected).to_owned())?;
            }
            Self::Each(expected, set) => {
                let values = match value {
                    Value::List(values) => values,
                    one => std::slice::from_ref(one),
                };
                set(draft, values).ok_or_else(|| (*expected).to_owned())?;
            }
            Self::Url(set) => set(draft, value::upstream_url(text()?)?),
            Self::UrlOf(_, set) => set(draft, text()?.to_owned())?,
            Self::Urls(set) => {
                let texts = texts(value).ok_or_else(expected)?;
                let urls = texts.iter().map(|text| value::upstream_url(text));
                set(draft, urls.collect::<Result<_, _>>()?);
            }
            Self::Rules(set) => set(draft, rules::rules(value)?),
            Self::Certificates(set) => set(draft, certificates::certificates(value, credential)?),
            Self::IssuerRules(set) => set(draft, issuer_rules::rules(value)?),
        }
        Ok(())
    }
}

/// Returns a value if it is within these bounds.
fn within<T: PartialOrd>(min: T, max: T, value: Option<T>) -> Option<T> {
    value.filter(|value| (&min..=&max).contains(&value))
}

fn count(value: &Value) -> Option<u64> {
    match value {
        Value::Count(count) => u64::try_from(*count).ok(),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) if !text.is_empty() => Some(text),
        _ => None,
    }
}

/// Converts a list of non-empty texts, or one such text, to a list; `None` for any other value.
fn texts(value: &Value) -> Option<Vec<String>> {
    let owned = |value: &Value| text(value).map(str::to_owned);
    match value {
        Value::List(values) => values.iter().map(owned).collect(),
        one => owned(one).map(|one| vec![one]),
    }
}

const fn server(name: &'static str, set: Set<ServerDraft>, help: &'static str) -> Row<ServerDraft> {
    Row::new(Scope::Server, name, set, help)
}

const fn cache(name: &'static str, set: Set<CacheDraft>, help: &'static str) -> Row<CacheDraft> {
    Row::new(Scope::Cache, name, set, help)
}

const fn upstream(
    name: &'static str,
    set: Set<UpstreamDraft>,
    help: &'static str,
) -> Row<UpstreamDraft> {
    Row::new(Scope::Upstream, name, set, help).of_one()
}

const fn issuer(name: &'static str, set: Set<IssuerDraft>, help: &'static str) -> Row<IssuerDraft> {
    Row::new(Scope::Oidc, name, set, help).of_one()
}

impl<D> Row<D> {
    const fn new(scope: Scope, name: &'static str, set: Set<D>, help: &'static str) -> Self {
        let spec = OptionSpec {
            name,
            help,
            in_nix_serve: false,
            aliases: &[],
            replaces: &[],
            nix_serve_default: None,
            kind: set.kind(),
            scope,
            is_of_one: false,
            is_reloaded: !matches!(scope, Scope::Server),
            shown_default: None,
        };
        Self { spec, set }
    }

    const fn defaults_to(mut self, shown: Shown) -> Self {
        self.spec.shown_default = Some(shown);
        self
    }

    /// Declares that the option can be set only for one cache or upstream.
    const fn of_one(mut self) -> Self {
        self.spec.is_of_one = true;
        self
    }

    /// Declares that a change takes effect at a reload, although the option is one of the server.
    const fn reloaded(mut self) -> Self {
        self.spec.is_reloaded = true;
        self
    }

    /// Declares that nix-serve has the option, too, and its aliases.
    const fn nix_serve(mut self, aliases: &'static [&'static str]) -> Self {
        self.spec.in_nix_serve = true;
        self.spec.aliases = aliases;
        self
    }

    const fn replaces(mut self, options: &'static [&'static str]) -> Self {
        self.spec.replaces = options;
        self
    }

    const fn nix_serve_default(mut self, words: &'static str) -> Self {
        self.spec.nix_serve_default = Some(words);
        self
    }
}

impl OptionSpec {
    /// Returns all options that can be set without the name of a cache or an upstream, in the order
    /// of the reference: those of the server first.
    pub fn all() -> impl Iterator<Item = &'static Self> + Clone {
        Self::declared().filter(|spec| !spec.is_of_one)
    }

    /// Returns all options of a scope in the order of the reference.
    pub fn of(scope: Scope) -> impl Iterator<Item = &'static Self> + Clone {
        Self::declared().filter(move |spec| spec.scope == scope)
    }

    /// Returns all options. Options of different scopes may have the same name.
    pub(super) fn declared() -> impl Iterator<Item = &'static Self> + Clone {
        let of_server = server::OPTIONS.iter().chain(storage::OPTIONS);
        let of_server = of_server.map(|row| &row.spec);
        let of_caches = cache::OPTIONS.iter().map(|row| &row.spec);
        let of_upstreams = upstream::OPTIONS.iter().map(|row| &row.spec);
        let of_issuers = oidc::OPTIONS.iter().map(|row| &row.spec);
        let of_named = of_caches.chain(of_upstreams).chain(of_issuers);
        of_server.chain(of_named)
    }

    /// Returns all options in the order of help, each with its heading.
    pub fn by_heading() -> impl Iterator<Item = (&'static str, &'static Self)> {
        HEADINGS.iter().flat_map(|(heading, tables)| {
            let is_below = |spec: &&Self| {
                let table = spec.name.split('.').next();
                table.is_some_and(|table| tables.contains(&table))
            };
            Self::all()
                .filter(is_below)
                .map(move |spec| (*heading, spec))
        })
    }

    /// Returns whether the option can be set in the table of one thing of this scope; without a
    /// scope, whether it can be set for all.
    pub(super) fn fits(&self, scope: Option<Scope>) -> bool {
        scope.map_or(!self.is_of_one, |scope| self.scope == scope)
    }

    /// Finds an option of [`all`](Self::all) by its dotted name; `None` if there is none.
    pub fn find(name: &str) -> Option<&'static Self> {
        Self::all().find(|spec| spec.name == name)
    }

    /// Finds an option by its name or alias on the command line, without dashes.
    pub fn by_option(name: &str) -> Option<&'static Self> {
        Self::all().find(|spec| spec.option() == name || spec.aliases.contains(&name))
    }

    /// Finds the option that replaces an option of nix-serve alone, given without dashes.
    pub fn replacing(name: &str) -> Option<&'static Self> {
        Self::all().find(|spec| spec.replaces.contains(&name))
    }

    /// Returns the default in nix-serve as text.
    pub fn default_in_nix_serve(&self) -> String {
        self.nix_serve_default
            .map_or_else(|| self.default(), str::to_owned)
    }

    /// Returns the default as text, for `--help` and the reference.
    pub fn default(&self) -> String {
        let value = |shown: fn(&Configuration) -> String| shown(&Configuration::default());
        match (&self.shown_default, self.kind) {
            (Some(Shown::Words(words) | Shown::Effective(words, _)), _) => (*words).to_owned(),
            (Some(Shown::Value(shown)), _) => value(*shown),
            (Some(Shown::ValueOr(shown, words)), _) => format!("{}, {words}", value(*shown)),
            (None, Kind::Word([first, ..])) => (*first).to_owned(),
            (None, _) => "none".to_owned(),
        }
    }

    /// Returns the value of an option that is not set, and a remark, which may be empty. Returns
    /// `None` if the default is not a single value.
    pub(super) fn effective(&self, config: &Configuration) -> Option<(Value, &'static str)> {
        let default = Configuration::default();
        // A named cache may override what is set for all caches.
        let is_named = config.caches.iter().any(|cache| !cache.name.is_empty());
        let config = match self.scope {
            Scope::Cache if is_named => &default,
            _ => config,
        };
        let (text, remark) = match (&self.shown_default, self.kind) {
            (Some(Shown::Value(shown)), _) => (shown(config), ""),
            (Some(Shown::ValueOr(shown, remark)), _) => (shown(config), *remark),
            (Some(Shown::Effective(_, shown)), _) => (shown(config)?, ""),
            (None, Kind::Word([first, ..])) => ((*first).to_owned(), ""),
            _ => return None,
        };
        Some((self.kind.value(&text)?, remark))
    }

    /// Returns the option's name on the command line of `samovar serve`, without the leading
    /// dashes.
    pub fn option(&self) -> String {
        self.name.replace('.', "-")
    }

    /// Returns the option's environment variable.
    pub fn variable(&self) -> String {
        let table = match self.is_of_one {
            true => format!("{}__NAME__", upper_case(self.scope.table())),
            false => String::new(),
        };
        format!("{VARIABLE_PREFIX}{table}{}", upper_case(self.name))
    }

    /// Returns the option's full name, with the name `NAME` for the cache or upstream if it can be
    /// set only for one.
    pub fn full_name(&self) -> String {
        match self.is_of_one {
            true => self.scope.full_name("NAME", self.name),
            false => self.name.to_owned(),
        }
    }
}

/// Converts the name of an option to the form of environment variables.
pub(super) fn upper_case(name: &str) -> String {
    name.replace(['.', '-'], "_").to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_in_every_spelling() {
        for spell in [OptionSpec::option, OptionSpec::variable] {
            let all: HashSet<String> = OptionSpec::all().map(spell).collect();
            assert_eq!(all.len(), OptionSpec::all().count());
        }
        let others = OptionSpec::all().flat_map(|spec| [spec.aliases, spec.replaces].concat());
        let others: Vec<&str> = others.collect();
        let unique: HashSet<&str> = others.iter().copied().collect();
        assert_eq!(others.len(), unique.len());
        assert!(OptionSpec::all().all(|spec| !unique.contains(&*spec.option())));
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'-' || byte == b'.';
        assert!(OptionSpec::all().all(|spec| spec.name.bytes().all(is_plain)));
        // The variable `SAMOVAR_CACHES__NAME__OPTION` must not be ambiguous.
        let begins = |spec: &OptionSpec| {
            let mut tables = Scope::NAMED.iter().map(|scope| scope.table());
            tables.any(|table| spec.name.starts_with(table))
        };
        assert!(!OptionSpec::all().any(begins));
        for scope in Scope::NAMED {
            let names: HashSet<&str> = OptionSpec::of(scope).map(|spec| spec.name).collect();
            assert_eq!(names.len(), OptionSpec::of(scope).count());
        }
    }

    #[test]
    fn every_option_has_a_default_and_a_description() {
        for spec in OptionSpec::declared() {
            assert!(!spec.default().is_empty(), "{}", spec.name);
            assert!(spec.help.ends_with('.'), "{}", spec.name);
        }
        for spec in OptionSpec::all() {
            let headings = OptionSpec::by_heading().filter(|(_, other)| other.name == spec.name);
            assert_eq!(headings.count(), 1, "{}", spec.name);
        }
    }

    /// The first word of an option is its default.
    #[test]
    fn the_first_word_is_the_default() {
        check_first_words(server::OPTIONS);
        check_first_words(storage::OPTIONS);
        check_first_words(cache::OPTIONS);
        check_first_words(upstream::OPTIONS);
        check_first_words(oidc::OPTIONS);
    }

    fn check_first_words<D: Default + PartialEq + std::fmt::Debug>(rows: &[Row<D>]) {
        let path = |text: &str| Ok(PathBuf::from(text));
        for row in rows {
            let Kind::Word([first, ..]) = row.spec.kind else {
                continue;
            };
            let value = Value::Text((*first).to_owned());
            let mut draft = D::default();
            row.set.apply(&mut draft, &value, &path).expect("is a word");
            assert_eq!(draft, D::default(), "{}", row.spec.name);
        }
    }
}
