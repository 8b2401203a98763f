//! From settings to a configuration.

use std::ffi::OsStr;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::time::Duration;

use samovar_cache::{PolicyConfig, PublicKey, Rule, Sign, Stored};

use super::keys::{CACHES, KEYS, Key, Kind, Scope};
use super::settings::{ConfigError, Setting, Settings, expected};
use super::toml::Value;
use super::{
    AdminSettings, CacheSettings, ClientAddress, Configuration, Connections, HoldTime, LogForm,
    LogTarget, PRIORITY_MAX, Pages, TimeLimit, Tls, Verify, WORKERS_MAX, rules, unit, value,
};
use super::{CONNECTIONS_MAX, HEAD_LEN_MAX, HEAD_LEN_MIN, QUEUE_LEN_MAX, STREAMS_MAX};
use crate::listener::ListenSpec;

/// What stands before the name of a credential of the service manager.
const CREDENTIAL: &str = "credential:";

/// Reads all settings; `variable` looks up what else the environment says, such as
/// `CREDENTIALS_DIRECTORY`.
///
/// # Errors
///
/// [`ConfigError`] for the first setting that means nothing.
pub fn read(
    settings: &Settings,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Configuration, ConfigError> {
    let variable: &dyn Fn(&str) -> Option<String> = &variable;
    let reader = Reader {
        settings,
        cache: None,
        variable,
    };
    let defaults = Configuration::default();
    let (listeners, tls) = reader.listeners(&defaults)?;
    let count_max = |max: u32| reader.count("workers", 1, max.into());
    let workers = count_max(WORKERS_MAX)?.and_then(|count| NonZeroU32::new(clamped(count)));
    let first_of = |name: &str| {
        let names = variable(name)?;
        let first = names.split(':').next().unwrap_or_default();
        (!first.is_empty()).then(|| PathBuf::from(first))
    };
    let never_for_zero = |time: Option<Duration>| match time {
        None => TimeLimit::Default,
        Some(Duration::ZERO) => TimeLimit::Unlimited,
        Some(time) => TimeLimit::After(time),
    };
    let verify = reader.word("verify")?;
    let client_address = reader.word("log.client-address")?;
    let caches = reader.caches()?;
    let believes_nobody = |cache: &CacheSettings| cache.access.trusted_proxies.is_empty();
    if client_address == Some("forwarded") && caches.iter().all(believes_nobody) {
        return Err(together(
            "log.client-address = \"forwarded\" needs access.trusted-proxies, too: nobody else is \
             believed",
        ));
    }
    let scrub_rate = reader.size("scrub")?.and_then(NonZeroU64::new);
    let state_directory = reader.path("state-directory")?;
    Ok(Configuration {
        listeners,
        listen_given: settings.exactly("listen").is_some(),
        tls,
        backlog: reader
            .count("backlog", 1, u32::MAX.into())?
            .map_or(defaults.backlog, clamped),
        workers,
        connections: Connections {
            requests_max: reader
                .count("connections.requests", 0, i64::MAX)?
                .and_then(|count| NonZeroU64::new(count.unsigned_abs())),
            is_kept: true,
            idle_time: reader.time("connections.idle-time")?,
            head_time: never_for_zero(reader.time("connections.head-time")?),
            stall_time: never_for_zero(reader.time("connections.stall-time")?),
            count_max: reader.limit("connections.max", CONNECTIONS_MAX)?,
            head_len_max: reader
                .size_within("connections.head-size", HEAD_LEN_MIN, HEAD_LEN_MAX)?
                .and_then(|len| usize::try_from(len).ok()),
            streams_max: reader.limit("connections.streams", STREAMS_MAX)?,
            queue_len_max: reader.limit("queue", QUEUE_LEN_MAX)?,
        },
        user: reader.text("user")?,
        group: reader.text("group")?,
        pid_file: reader.path("pid-file")?,
        error_log: reader.path("log.errors")?,
        is_verbose: reader.switch("log.verbose")?.unwrap_or_default(),
        access_log: reader
            .path("log.access")?
            .map(|path| match path.as_os_str() == "-" {
                true => LogTarget::StandardOutput,
                false => LogTarget::File(path),
            }),
        access_log_format: match reader.word("log.access-format")? {
            Some("json") => LogForm::Json,
            _ => LogForm::Combined,
        },
        admin: reader.admin()?,
        client_address: match client_address {
            Some("forwarded") => ClientAddress::Forwarded,
            _ => ClientAddress::Peer,
        },
        store: reader.text("store")?,
        nar_cache: reader.path("nar-cache.directory")?,
        cache_directory: first_of("CACHE_DIRECTORY").unwrap_or(defaults.cache_directory),
        nar_cache_size: reader.size("nar-cache.size")?,
        hold: reader.time("hold")?.map(|time| match time.is_zero() {
            true => HoldTime::Off,
            // Each time costs the daemon a process.
            false => HoldTime::For(time.max(Duration::from_secs(1))),
        }),
        verify: match verify {
            Some("never") => Verify::Never,
            _ => Verify::First,
        },
        state_directory: state_directory.or_else(|| first_of("STATE_DIRECTORY")),
        scrub_rate,
        caches,
        ..defaults
    })
}

pub(super) fn clamped(count: i64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Looks settings up: those of one cache, or those of the server and of all caches.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) settings: &'a Settings,
    pub(super) cache: Option<&'a str>,
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Reader<'a> {
    /// The value of a key, made by `make`, which says `None` to what means nothing.
    pub(super) fn get<T>(
        &self,
        name: &str,
        expected: impl FnOnce() -> String,
        make: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        debug_assert!(Key::find(name).is_some(), "{name} is a key");
        let Some((full_name, setting)) = self.settings.find(self.cache, name) else {
            return Ok(None);
        };
        match make(&setting.value) {
            Some(value) => Ok(Some(value)),
            None => Err(wrong(full_name, setting, expected())),
        }
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<String>, ConfigError> {
        self.get(
            name,
            || expected(Kind::Text),
            |value| match value {
                Value::Text(text) if !text.is_empty() => Some(text.clone()),
                _ => None,
            },
        )
    }

    pub(super) fn path(&self, name: &str) -> Result<Option<PathBuf>, ConfigError> {
        Ok(self.text(name)?.map(PathBuf::from))
    }

    pub(super) fn switch(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        self.get(
            name,
            || expected(Kind::Switch),
            |value| match value {
                Value::Switch(is_on) => Some(*is_on),
                _ => None,
            },
        )
    }

    pub(super) fn count(&self, name: &str, min: i64, max: i64) -> Result<Option<i64>, ConfigError> {
        let expected = || match max {
            i64::MAX => format!("a whole number from {min}"),
            _ => format!("a whole number from {min} to {max}"),
        };
        self.get(name, expected, |value| match value {
            Value::Count(count) => (min..=max).contains(count).then_some(*count),
            _ => None,
        })
    }

    fn size(&self, name: &str) -> Result<Option<u64>, ConfigError> {
        self.get(
            name,
            || expected(Kind::Size),
            |value| match value {
                Value::Count(count) => u64::try_from(*count).ok(),
                Value::Text(text) => unit::size(text),
                _ => None,
            },
        )
    }

    fn size_within(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, ConfigError> {
        let Some(size) = self.size(name)? else {
            return Ok(None);
        };
        match (min..=max).contains(&size) {
            true => Ok(Some(size)),
            false => self.get(name, || format!("from {min} to {max} bytes"), |_| None),
        }
    }

    /// A whole number from 1 to `max`.
    fn limit<T: TryFrom<u32>>(&self, name: &str, max: u32) -> Result<Option<T>, ConfigError> {
        let count = self.count(name, 1, max.into())?.map(clamped);
        Ok(count.and_then(|count| count.try_into().ok()))
    }

    fn time(&self, name: &str) -> Result<Option<Duration>, ConfigError> {
        self.get(
            name,
            || expected(Kind::Time),
            |value| match value {
                Value::Count(count) => unit::time(&count.to_string()),
                Value::Text(text) => unit::time(text),
                _ => None,
            },
        )
    }

    pub(super) fn word(&self, name: &str) -> Result<Option<&'static str>, ConfigError> {
        let Some(Kind::Word(words)) = Key::find(name).map(|key| key.kind) else {
            return Ok(None);
        };
        self.get(
            name,
            || expected(Kind::Word(words)),
            |value| match value {
                Value::Text(text) => words.iter().copied().find(|word| word == text),
                _ => None,
            },
        )
    }

    /// A list of texts that are not empty; one text stands for a list of it.
    pub(super) fn list(&self, name: &str) -> Result<Option<Vec<String>>, ConfigError> {
        let text = |value: &Value| match value {
            Value::Text(text) if !text.is_empty() => Some(text.clone()),
            _ => None,
        };
        self.get(
            name,
            || expected(Kind::List),
            |value| match value {
                Value::List(values) => values.iter().map(text).collect(),
                one => text(one).map(|one| vec![one]),
            },
        )
    }

    /// Paths of files, which may be credentials of the service manager.
    pub(super) fn files(&self, name: &str) -> Result<Option<Vec<PathBuf>>, ConfigError> {
        let Some(texts) = self.list(name)? else {
            return Ok(None);
        };
        let path = |text: String| match text.strip_prefix(CREDENTIAL) {
            None => Ok(PathBuf::from(text)),
            Some(credential) if credential.contains('/') => {
                Err("a credential's name, which has no slash".to_owned())
            }
            Some(credential) => (self.variable)("CREDENTIALS_DIRECTORY")
                .map(|directory| Path::new(&directory).join(credential))
                .ok_or_else(|| {
                    "the path of a file: the service manager has given this process no \
                     credentials (LoadCredential=)"
                        .to_owned()
                }),
        };
        let paths: Result<Vec<_>, String> = texts.into_iter().map(path).collect();
        paths.map(Some).map_err(|expected| {
            let (name, setting) = self
                .settings
                .find(self.cache, name)
                .expect("it was found above");
            wrong(name, setting, expected)
        })
    }

    fn admin(&self) -> Result<AdminSettings, ConfigError> {
        let defaults = AdminSettings::default();
        let given = self.listen("admin.listen")?;
        Ok(AdminSettings {
            is_default: given.is_none(),
            listeners: given.unwrap_or(defaults.listeners),
            has_top_paths: self.switch("admin.top-paths")?.unwrap_or_default(),
        })
    }

    /// What to listen on, each once.
    fn listen(&self, name: &str) -> Result<Option<Vec<ListenSpec>>, ConfigError> {
        let spec = |value: &Value| {
            let Value::Text(text) = value else {
                return None;
            };
            let parsed = ListenSpec::parse(OsStr::new(text)).ok()?;
            // A word without a slash was meant for a port or a host.
            let is_clear = !parsed.bare_name && parsed.ignored_suffix.is_none();
            (is_clear && !parsed.tls).then_some(parsed.spec)
        };
        let expected =
            || "a list of HOST:PORT, [ADDRESS]:PORT, :PORT or paths of sockets".to_owned();
        let specs: Option<Vec<ListenSpec>> = self.get(name, expected, |value| match value {
            Value::List(values) => values.iter().map(spec).collect(),
            one => spec(one).map(|one| vec![one]),
        })?;
        let mut each_once = Vec::new();
        for spec in specs.iter().flatten() {
            if !each_once.contains(spec) {
                each_once.push(spec.clone());
            }
        }
        Ok(specs.map(|_| each_once))
    }

    fn listeners(
        &self,
        defaults: &Configuration,
    ) -> Result<(Vec<ListenSpec>, Option<Tls>), ConfigError> {
        let listeners = self.listen("listen")?;
        if let (Some([]), Some(setting)) = (listeners.as_deref(), self.settings.exactly("listen")) {
            let expected = "at least one of HOST:PORT, [ADDRESS]:PORT, :PORT or paths of sockets";
            return Err(wrong("listen".to_owned(), setting, expected.to_owned()));
        }
        let listeners = listeners.unwrap_or_else(|| defaults.listeners.clone());
        if self.word("tls.client-certificates")? == Some("required")
            && self.path("tls.client-authorities")?.is_none()
        {
            return Err(together(
                "tls.client-certificates = \"required\" needs tls.client-authorities, too",
            ));
        }
        let tls = match (self.path("tls.certificate")?, self.path("tls.key")?) {
            (Some(certificate), Some(key)) => Some(Tls {
                certificate,
                key,
                only: None,
                clients: self.client_authority()?,
            }),
            (None, None) if self.path("tls.client-authorities")?.is_some() => {
                return Err(together(
                    "tls.client-authorities needs tls.certificate, too",
                ));
            }
            (None, None) => None,
            (Some(_), None) => return Err(together("tls.certificate needs tls.key, too")),
            (None, Some(_)) => return Err(together("tls.key needs tls.certificate, too")),
        };
        Ok((listeners, tls))
    }

    fn caches(&self) -> Result<Vec<CacheSettings>, ConfigError> {
        let names: Vec<&str> = self.settings.caches().collect();
        if names.is_empty() {
            return Ok(vec![self.cache("")?]);
        }
        if let Some(setting) = self.settings.exactly("prefix") {
            return Err(wrong(
                "prefix".to_owned(),
                setting,
                format!("given for each cache in [{CACHES}.NAME], since some are named"),
            ));
        }
        let mut caches: Vec<CacheSettings> = Vec::new();
        for name in names {
            let one = Self {
                cache: Some(name),
                ..*self
            };
            let cache = one.cache(name)?;
            if let Some(other) = caches.iter().find(|other| other.prefix == cache.prefix) {
                let prefix = if cache.prefix.is_empty() {
                    "/"
                } else {
                    &cache.prefix
                };
                return Err(ConfigError::Together(format!(
                    "the caches {} and {name} are both at {prefix}: give one another prefix",
                    other.name
                )));
            }
            caches.push(cache);
        }
        Ok(caches)
    }

    fn cache(&self, name: &str) -> Result<CacheSettings, ConfigError> {
        let prefix = self.get(
            "prefix",
            || "a URL path, such as /team-a".to_owned(),
            |prefix| match prefix {
                Value::Text(text) => value::url_prefix(OsStr::new(text)),
                _ => None,
            },
        )?;
        let default_prefix = match name {
            "" => String::new(),
            name => format!("/{name}"),
        };
        let priority = self.count("priority", 0, PRIORITY_MAX.into())?;
        let key_files = self.files("secret-key-files")?.unwrap_or_else(|| {
            let file = (self.variable)("NIX_SECRET_KEY_FILE");
            file.map(PathBuf::from).into_iter().collect()
        });
        let title = self.text("title")?.unwrap_or_else(|| name.to_owned());
        let description = self.text("description")?.unwrap_or_default();
        let public_url = self.get(
            "public-url",
            || "a URL that begins with http:// or https://".to_owned(),
            |url| match url {
                Value::Text(text) => value::public_url(text),
                _ => None,
            },
        )?;
        let pages = self.switch("pages")?.unwrap_or(true).then_some(Pages {
            title,
            description,
            public_url,
        });
        Ok(CacheSettings {
            name: name.to_owned(),
            prefix: prefix.unwrap_or(default_prefix),
            priority: priority.map_or(CacheSettings::PRIORITY_DEFAULT, clamped),
            secret_key_files: key_files,
            access: self.access()?,
            sign: self.sign()?,
            stored: match self.word("signing.stored")? {
                Some("keep") => Stored::Keep,
                _ => Stored::Replace,
            },
            emit_ca: self.switch("signing.content-addresses")?.unwrap_or(false),
            signs_realisations: self.switch("signing.realisations")?.unwrap_or(false),
            policy: PolicyConfig {
                allow: self.rules("policy.allow")?,
                deny: self.rules("policy.deny")?,
            },
            pages,
        })
    }

    fn rules(&self, name: &str) -> Result<Vec<Rule>, ConfigError> {
        let Some((full_name, setting)) = self.settings.find(self.cache, name) else {
            return Ok(Vec::new());
        };
        rules::rules(&setting.value).map_err(|expected| wrong(full_name, setting, expected))
    }

    fn sign(&self) -> Result<Sign, ConfigError> {
        let keys = self.get(
            "signing.trusted-keys",
            || "a list of public keys, NAME:BASE64".to_owned(),
            |value| {
                let key = |value: &Value| match value {
                    Value::Text(text) => rules::public_key(text).ok(),
                    _ => None,
                };
                match value {
                    Value::List(values) => values.iter().map(key).collect(),
                    one => key(one).map(|one| vec![one]),
                }
            },
        )?;
        let keys: Vec<PublicKey> = keys.unwrap_or_default();
        Ok(match self.word("signing.sign")? {
            Some("trusted") if keys.is_empty() => {
                let message = "signing.sign = \"trusted\" needs signing.trusted-keys, too";
                return Err(together(message));
            }
            Some("trusted") => Sign::TrustedBy(keys),
            Some("ultimate") => Sign::Ultimate,
            Some("none") => Sign::None,
            _ => Sign::All,
        })
    }
}

pub(super) fn wrong(key: String, setting: &Setting, expected: String) -> ConfigError {
    ConfigError::Value {
        origin: setting.origin.clone(),
        key,
        expected,
        found: setting.value.to_string(),
    }
}

pub(super) fn together(message: &str) -> ConfigError {
    ConfigError::Together(message.to_owned())
}

/// The effective configuration, as a file that says the same, and where each value came from.
pub fn show(settings: &Settings) -> String {
    let mut text = String::new();
    let line = |text: &mut String, name: &str, found: Option<&Setting>, default: &str| {
        let line = match found {
            Some(setting) => format!("{name} = {}  # {}\n", setting.value, setting.origin),
            None => format!("# {name}: {default}\n"),
        };
        text.push_str(&line);
    };
    for key in KEYS {
        line(&mut text, key.name, settings.exactly(key.name), key.default);
    }
    for cache in settings.caches() {
        let before = text.len();
        for key in KEYS.iter().filter(|key| key.scope == Scope::Cache) {
            let name = format!("{CACHES}.{cache}.{}", key.name);
            if let Some(setting) = settings.exactly(&name) {
                line(&mut text, &name, Some(setting), key.default);
            }
        }
        if text.len() == before {
            text.push_str(&format!("{CACHES}.{cache} = {{}}\n"));
        }
    }
    text
}
