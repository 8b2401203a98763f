//! Options as they are taken, one after the other, until all are seen.

use std::ffi::{OsStr, OsString};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

use super::error::{CliError, Refusal, UsageError};
use super::nearest::nearest;
use super::option::{OPTIONS, OptionId, Takes};
use super::options::{LogFormat, Options};
use super::scanner::{Item, Value};
use super::warning::Warning;
use crate::environment::admin_address;
use samovar_server::config::{
    HoldTime, LogTarget, PRIORITY_MAX, TimeLimit, Verify, WORKERS_MAX, value,
};
use samovar_server::listener::{Host, ListenSpec, PORT_DEFAULT};

/// Options whose meaning depends on others, until all are seen.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) options: Options,
    pub(super) listen: Vec<ListenSpec>,
    pub(super) socket: Option<PathBuf>,
    pub(super) host: Option<Host>,
    pub(super) port: Option<u16>,
    /// The option that switched TLS on or off, if one did.
    pub(super) tls: Option<(String, bool)>,
    /// Listeners with `:ssl`, and how the first was spelled; these cannot be switched off.
    pub(super) tls_listeners: Vec<ListenSpec>,
    pub(super) tls_listener: Option<String>,
    /// The option as spelled, and its value.
    pub(super) tls_certificate: Option<(String, PathBuf)>,
    pub(super) tls_key: Option<(String, PathBuf)>,
    pub(super) words: Vec<String>,
    pub(super) warnings: Vec<Warning>,
}

impl Draft {
    pub(super) fn take(&mut self, item: Item) -> Result<(), CliError> {
        match item {
            Item::Word(word) => self.words.push(lossy(&word)),
            Item::Unknown { spelled, value } => self.take_unknown(spelled, value)?,
            Item::ValueMissing {
                spelled: option,
                expected,
                next,
            } => {
                let next = next.as_deref().map(lossy);
                return Err(UsageError::ValueMissing {
                    option,
                    expected,
                    next,
                }
                .into());
            }
            Item::Known {
                id,
                spelled,
                value: Value::Text(text),
            } => {
                self.take_text(id, spelled, &text)?;
            }
            Item::Known {
                id,
                spelled,
                value: Value::Switch(on),
            } => self.take_switch(id, spelled, on),
            Item::Known {
                id,
                spelled,
                value: Value::None,
            } => {
                self.take_without_effect(id, spelled, None)?;
            }
        }
        Ok(())
    }

    fn take_unknown(&mut self, option: String, value: Option<OsString>) -> Result<(), CliError> {
        let key = option.trim_start_matches('-').replace('-', "_");
        if let Some(key) = key.strip_prefix("net_server_") {
            return self.take_net_server(key, option, value.as_deref());
        }
        if is_protection_of_samovar_serve(&key) {
            return Err(Refusal::SamovarServe { option }.into());
        }
        if key.to_ascii_lowercase().starts_with("ssl_") {
            return Err(Refusal::AccessRule { option }.into());
        }
        let nearest = nearest(&option);
        let value = value.as_deref().map(lossy);
        self.warnings.push(Warning::UnknownOption {
            option,
            value,
            nearest,
        });
        Ok(())
    }

    /// `Net::Server`'s own keys. Those that keep somebody out must not be dropped.
    fn take_net_server(
        &mut self,
        key: &str,
        option: String,
        value: Option<&OsStr>,
    ) -> Result<(), CliError> {
        let value = value.map(lossy).unwrap_or_default().to_lowercase();
        let restricts = match key {
            "allow"
            | "deny"
            | "cidr_allow"
            | "cidr_deny"
            | "user"
            | "group"
            | "chroot"
            | "conf_file"
            | "double_reverse_lookups" => true,
            "reverse_lookups" => value.starts_with("double"),
            "proto" if value.contains("ssl") => {
                self.tls = Some((option, true));
                return Ok(());
            }
            _ => false,
        };
        if restricts {
            return Err(Refusal::AccessRule { option }.into());
        }
        self.no_effect(option, "there is no Net::Server underneath");
        Ok(())
    }

    /// Options with a value. Flat, one arm an option.
    fn take_text(&mut self, id: OptionId, spelled: String, text: &OsStr) -> Result<(), CliError> {
        let takes_value = OPTIONS
            .iter()
            .any(|known| known.id == id && matches!(known.takes, Takes::Value(_)));
        if !takes_value {
            return self.take_without_effect(id, spelled, Some(text));
        }
        if text.is_empty() && PROTECTION.contains(&id) {
            return Err(Refusal::Empty { option: spelled }.into());
        }
        if text.is_empty() {
            self.warnings.push(Warning::EmptyValue { option: spelled });
            return Ok(());
        }
        let options = &mut self.options;
        let understood = match id {
            OptionId::Admin => set(&mut options.admin, admin_address(text).map(Some)),
            OptionId::AccessLog => set(&mut options.access_log, Some(Some(log_target(text)))),
            OptionId::Backlog => self.take_backlog(text, &spelled),
            OptionId::ErrorLog => set(&mut options.error_log, Some(Some(text.into()))),
            OptionId::Group => set(&mut options.group, name(text).map(Some)),
            OptionId::Hold => set(&mut options.hold, HoldTime::parse(text).map(Some)),
            OptionId::Host => set(&mut self.host, host(text).map(Some)),
            OptionId::KeepaliveTimeout => set(
                &mut options.keepalive_timeout,
                value::seconds(text).map(Some),
            ),
            OptionId::Listen => self.take_listen(text),
            OptionId::LogFormat => set(&mut options.log_format, log_format(text).map(Some)),
            OptionId::MaxRequests => self.take_max_requests(text),
            OptionId::NarCache => set(&mut options.nar_cache, Some(Some(text.into()))),
            OptionId::NarCacheSize => {
                set(&mut options.nar_cache_size, value::count(text).map(Some))
            }
            OptionId::Path => set(&mut options.path_prefix, value::url_prefix(text)),
            OptionId::Pid => set(&mut options.pid_file, Some(Some(text.into()))),
            OptionId::Port => set(&mut self.port, port(text).map(Some)),
            OptionId::Priority => set(&mut options.priority, priority(text).map(Some)),
            OptionId::ReadTimeout => set(&mut options.read_timeout, limit(text)),
            OptionId::Scrub => set(&mut options.scrub_rate, value::count(text).map(Some)),
            OptionId::Socket => set(&mut self.socket, Some(Some(text.into()))),
            OptionId::SslCert => set(
                &mut self.tls_certificate,
                Some(Some((spelled.clone(), text.into()))),
            ),
            OptionId::SslKey => set(
                &mut self.tls_key,
                Some(Some((spelled.clone(), text.into()))),
            ),
            OptionId::StateDirectory => set(&mut options.state_directory, Some(Some(text.into()))),
            OptionId::Store => set(&mut options.store, name(text).map(Some)),
            OptionId::Timeout => set(&mut options.timeout, limit(text)),
            OptionId::User => set(&mut options.user, name(text).map(Some)),
            OptionId::Verify => set(
                &mut options.verify,
                text.to_str().and_then(Verify::parse).map(Some),
            ),
            OptionId::Workers => self.take_workers(text, &spelled),
            _ => false,
        };
        if understood {
            Ok(())
        } else {
            Err(invalid(id, spelled, text).into())
        }
    }

    fn take_backlog(&mut self, text: &OsStr, option: &str) -> bool {
        // listen(2) takes an int, and the kernel cuts it down to net.core.somaxconn without a word.
        const BACKLOG_MAX: u32 = 2_147_483_647;
        let backlog =
            value::count(text).map(|count| match self.reduce(count, BACKLOG_MAX, option) {
                0 => Options::default().backlog,
                backlog => backlog,
            });
        set(&mut self.options.backlog, backlog)
    }

    fn take_workers(&mut self, text: &OsStr, option: &str) -> bool {
        let workers = value::count(text)
            .map(|count| NonZeroU32::new(self.reduce(count, WORKERS_MAX, option)));
        set(&mut self.options.workers, workers)
    }

    fn reduce(&mut self, count: u64, max: u32, option: &str) -> u32 {
        u32::try_from(count)
            .ok()
            .filter(|count| *count <= max)
            .unwrap_or_else(|| {
                self.warnings.push(Warning::Reduced {
                    option: option.to_owned(),
                    to: max.into(),
                });
                max
            })
    }

    fn take_max_requests(&mut self, text: &OsStr) -> bool {
        let Some(count) = value::count(text) else {
            return false;
        };
        self.options.max_requests = NonZeroU64::new(count);
        true
    }

    fn take_listen(&mut self, text: &OsStr) -> bool {
        let Ok(parsed) = ListenSpec::parse(text) else {
            return false;
        };
        if parsed.tls {
            self.tls_listener = Some(format!("--listen {}", lossy(text)));
            self.tls_listeners.push(parsed.spec.clone());
        }
        if parsed.bare_name {
            self.warnings
                .push(Warning::SocketWithoutSlash { name: lossy(text) });
        }
        if let Some(suffix) = parsed.ignored_suffix {
            self.warnings.push(Warning::ListenSuffix { suffix });
        }
        if !self.listen.contains(&parsed.spec) {
            self.listen.push(parsed.spec);
        }
        true
    }

    fn take_switch(&mut self, id: OptionId, spelled: String, on: bool) {
        match id {
            OptionId::Daemonize => self.options.daemonize = on,
            OptionId::Pages => self.options.pages = on,
            OptionId::Keepalive => self.options.keepalive = on,
            OptionId::Quiet => self.take_log_format(LogFormat::Quiet, on),
            OptionId::Verbose => self.take_log_format(LogFormat::Verbose, on),
            OptionId::Ssl => self.tls = Some((spelled, on)),
            OptionId::Proctitle => {
                self.no_effect(spelled, "the process's title is never changed");
            }
            OptionId::Reload => self.no_effect(spelled, "there is no application to reload"),
            OptionId::DefaultMiddleware => self.no_effect(spelled, "there is no middleware"),
            // PreloadApp is in every command line of nix-serve; Help and Version are here switched
            // off.
            _ => {}
        }
    }

    fn take_log_format(&mut self, format: LogFormat, on: bool) {
        if on {
            self.options.log_format = Some(format);
        } else if self.options.log_format == Some(format) {
            self.options.log_format = None;
        }
    }

    fn take_without_effect(
        &mut self,
        id: OptionId,
        option: String,
        text: Option<&OsStr>,
    ) -> Result<(), CliError> {
        let is = |wanted: &str| text.is_some_and(|text| text == wanted);
        let reason = match id {
            OptionId::Eval => return Err(Refusal::PerlCode { option }.into()),
            OptionId::App if text.is_none_or(|text| !is_nix_serve_app(text)) => {
                return Err(Refusal::PerlCode { option }.into());
            }
            OptionId::App => "the server is the application",
            // These say what is so anyway.
            OptionId::Env if is("deployment") => return Ok(()),
            OptionId::Server if is("Starman") => return Ok(()),
            OptionId::Env => "there is one environment, deployment (see --access-log, --verbose)",
            OptionId::Server => "there is one server",
            OptionId::Loader | OptionId::ReloadDirectories => "there is no application to load",
            OptionId::ServerCount => "there are no worker processes (see --workers)",
            OptionId::Include | OptionId::Module => "there is no Perl here",
            _ => "there is nothing it could change",
        };
        self.no_effect(option, reason);
        Ok(())
    }

    pub(super) fn no_effect(&mut self, option: String, reason: &'static str) {
        self.warnings.push(Warning::NoEffect { option, reason });
    }
}

/// Options that must not be dropped because their value is empty, as an unset variable's is.
const PROTECTION: [OptionId; 4] = [
    OptionId::SslCert,
    OptionId::SslKey,
    OptionId::User,
    OptionId::Group,
];

/// Whether `name`, with underscores for dashes, is an option of `samovar serve` for encryption,
/// access, policies or signing. Prefixes cover misspelled names too.
fn is_protection_of_samovar_serve(name: &str) -> bool {
    const PREFIXES: [&str; 5] = ["access_", "policy_", "secret_key", "signing_", "tls_"];
    matches!(name, "config" | "set") || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn invalid(id: OptionId, option: String, text: &OsStr) -> UsageError {
    let expected = OPTIONS.iter().find_map(|known| match known.takes {
        Takes::Value(expected) if known.id == id => Some(expected),
        _ => None,
    });
    UsageError::Value {
        option,
        given: lossy(text),
        expected: expected.unwrap_or("a value"),
    }
}

fn lossy(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

fn name(text: &OsStr) -> Option<String> {
    text.to_str()
        .filter(|name| !name.contains('\0'))
        .map(str::to_owned)
}

/// Fills `slot` if there is a value; whether there was one.
fn set<T>(slot: &mut T, value: Option<T>) -> bool {
    value.map(|value| *slot = value).is_some()
}

fn host(text: &OsStr) -> Option<Host> {
    Host::parse(text.to_str()?).ok()
}

/// Port 0 is false to Perl, and so the default. `--listen HOST:0` lets the system choose.
fn port(text: &OsStr) -> Option<u16> {
    value::whole(text).map(|port| if port == 0 { PORT_DEFAULT } else { port })
}

fn priority(text: &OsStr) -> Option<u32> {
    value::whole(text).filter(|priority| *priority <= PRIORITY_MAX)
}

fn log_format(text: &OsStr) -> Option<LogFormat> {
    text.to_str().and_then(LogFormat::parse)
}

fn limit(text: &OsStr) -> Option<TimeLimit> {
    let time = value::seconds(text)?;
    Some(if time.is_zero() {
        TimeLimit::Unlimited
    } else {
        TimeLimit::After(time)
    })
}

fn log_target(text: &OsStr) -> LogTarget {
    if text == "-" {
        LogTarget::StandardOutput
    } else {
        LogTarget::File(text.into())
    }
}

/// Naming nix-serve's own application changes nothing; any other may be a wrapper that asks for
/// passwords.
fn is_nix_serve_app(path: &OsStr) -> bool {
    std::path::Path::new(path)
        .file_name()
        .is_some_and(|name| name == "nix-serve.psgi")
}
