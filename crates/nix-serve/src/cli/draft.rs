//! The configuration while the options of a command line are read, in their order.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use samovar_server::config::{
    CertificateFiles, ClientAddress, Configuration, LogForm, LogTarget, OptionSpec, Tls,
    VARIABLE_PREFIX, value,
};
use samovar_server::listener::{Host, ListenSpec, PORT_DEFAULT};

use super::error::CliError;
use super::nearest::nearest;
use super::option::{Given, KnownOption, PROTECTION, Takes, find};
use super::scanner::{Item, Value, lossy};

/// A configuration being read, with the options whose meaning depends on other options.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) config: Configuration,
    /// Whether `--daemonize` was given.
    pub(super) daemonize: bool,
    pub(super) listen: Vec<ListenSpec>,
    pub(super) socket: Option<PathBuf>,
    pub(super) host: Option<Host>,
    pub(super) port: Option<u16>,
    /// The last option that switched TLS on or off, as spelled, and whether it was switched on;
    /// `None` if there was no such option.
    pub(super) tls: Option<(String, bool)>,
    /// Listeners with `:ssl`, to which `--disable-ssl` does not apply. The next field is the
    /// spelling of the first one.
    pub(super) tls_listeners: Vec<ListenSpec>,
    pub(super) tls_listener: Option<String>,
    /// The last option that set the certificate, as spelled, and its value. The next field is the
    /// same for the key.
    pub(super) tls_certificate: Option<(String, PathBuf)>,
    pub(super) tls_key: Option<(String, PathBuf)>,
    pub(super) keepalive: Option<bool>,
    pub(super) keepalive_timeout: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) stall_time: Option<Duration>,
    pub(super) secret_key_files: Vec<PathBuf>,
    pub(super) access_log: Option<LogTarget>,
    pub(super) log_format: Option<LogFormat>,
    words: Vec<String>,
    /// Warnings about the command line, one line each.
    warnings: Vec<String>,
}

/// nix-serve-ng's log formats. Here, all of them log requests in one line format, except `json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogFormat {
    /// No requests are logged.
    Quiet,
    /// Requests are logged. Spelled `default`, or `normal` in the help of nix-serve-ng.
    Normal,
    /// Requests are logged with the client address that a proxy reports.
    RealIp,
    /// Requests are logged as one JSON object each; not in nix-serve-ng.
    Json,
    /// Requests are logged, and the error log includes debug messages. Also spelled `debug`.
    Verbose,
}

impl LogFormat {
    /// Parses the value of `--log-format`; `None` if there is no such format.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "quiet" => Self::Quiet,
            "default" | "normal" => Self::Normal,
            "real-ip" => Self::RealIp,
            "json" => Self::Json,
            "verbose" | "debug" => Self::Verbose,
            _ => return None,
        })
    }
}

impl Draft {
    /// Creates a draft of `config`, which the options then change.
    pub(super) fn new(config: Configuration) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    pub(super) fn take(&mut self, item: Item) -> Result<(), CliError> {
        match item {
            Item::Word(word) => self.words.push(lossy(&word)),
            Item::Unknown { spelled, value } => self.take_unknown(spelled, value)?,
            Item::Invalid(error) => return Err(error),
            Item::Known {
                option,
                spelled,
                value,
            } => match (option.takes, value) {
                (Takes::Nothing(set) | Takes::Toggle(set), Value::Switch(on)) => {
                    set(self, &spelled, on);
                }
                (Takes::Value(..) | Takes::File(..), Value::Text(text)) if text.is_empty() => {
                    self.take_empty(option, spelled)?;
                }
                (Takes::Value(expected, set), Value::Text(text)) => {
                    let given = Given {
                        option: &spelled,
                        text: &text,
                    };
                    set(self, &given).ok_or_else(|| CliError::Value {
                        option: spelled.clone(),
                        given: lossy(&text),
                        expected,
                    })?;
                }
                (Takes::File(_, set), Value::Text(path)) => set(self, path.into()),
                (Takes::Perl(is_harmless), value) => match is_harmless(value.text()) {
                    true => self.no_effect(&spelled, "the server is the application"),
                    false => return Err(CliError::PerlCode(spelled)),
                },
                (Takes::Ignored { usual, reason }, value)
                    if usual.is_none() || value.text() != usual.map(OsStr::new) =>
                {
                    self.no_effect(&spelled, reason);
                }
                _ => {}
            },
        }
        Ok(())
    }

    fn take_empty(&mut self, option: &KnownOption, spelled: String) -> Result<(), CliError> {
        if option.is_protection() {
            return Err(CliError::Empty(spelled));
        }
        self.warn(format!("{spelled} is ignored: its value is empty"));
        Ok(())
    }

    fn take_unknown(&mut self, option: String, value: Option<OsString>) -> Result<(), CliError> {
        let name = option.trim_start_matches('-').replace('-', "_");
        if let Some(name) = name.strip_prefix("net_server_") {
            return self.take_net_server(name, option, value.as_deref());
        }
        let is_declared = matches!(&*name, "config" | "set" | "tls")
            || OptionSpec::by_option(&name.replace('_', "-")).is_some();
        let is_protection = is_protection_of_samovar_serve(&name);
        if is_declared && is_protection {
            return Err(CliError::SamovarServe(option));
        }
        if is_declared {
            self.no_effect(&option, "it is an option of `samovar serve`");
            return Ok(());
        }
        if let Some(error) = misspelled_protection(&option) {
            return Err(error);
        }
        if name.to_ascii_lowercase().starts_with("ssl_") {
            return Err(CliError::AccessRule(option));
        }
        if is_protection && !is_misspelled_beside_protection(&name) {
            return Err(CliError::Unknown(option));
        }
        let mut warning = format!("unknown option {} is ignored", option.escape_debug());
        if let Some(value) = value {
            warning.push_str(&format!(", with its value {:?}", lossy(&value)));
        }
        if let Some(nearest) = nearest(&option, &super::option::names()) {
            warning.push_str(&format!("; did you mean {nearest}?"));
        }
        self.warn(warning);
        Ok(())
    }

    /// Takes options of `Net::Server`. Refuses those that restrict access.
    fn take_net_server(
        &mut self,
        name: &str,
        option: String,
        value: Option<&OsStr>,
    ) -> Result<(), CliError> {
        const RULES: [&str; 9] = [
            "allow",
            "deny",
            "cidr_allow",
            "cidr_deny",
            "user",
            "group",
            "chroot",
            "conf_file",
            "double_reverse_lookups",
        ];
        let value = value.map(lossy).unwrap_or_default().to_lowercase();
        if name == "proto" && value.contains("ssl") {
            self.tls = Some((option, true));
            return Ok(());
        }
        if RULES.contains(&name) || name == "reverse_lookups" && value.starts_with("double") {
            return Err(CliError::AccessRule(option));
        }
        self.no_effect(&option, "Samovar does not use Perl's Net::Server");
        Ok(())
    }

    pub(super) fn take_listen(&mut self, given: &Given<'_>) -> Option<()> {
        let parsed = ListenSpec::parse(given.text)?;
        let text = lossy(given.text);
        if parsed.tls {
            self.tls_listener
                .get_or_insert_with(|| format!("--listen {text}"));
            self.tls_listeners.push(parsed.spec.clone());
        }
        if parsed.bare_name {
            self.warn(format!(
                "--listen {text:?} is a Unix socket of that name in the working directory; write \
                 :PORT for a port, HOST:PORT for an address"
            ));
        }
        if let Some(suffix) = parsed.ignored_suffix {
            self.warn(format!("--listen: {suffix:?} after the port is ignored"));
        }
        if !self.listen.contains(&parsed.spec) {
            self.listen.push(parsed.spec);
        }
        Some(())
    }

    /// Parses a count and reduces it to `max` with a warning. Returns `None` if it is not a count.
    pub(super) fn bounded(&mut self, given: &Given<'_>, max: u64) -> Option<u32> {
        let count = value::count(given.text)?;
        if count > max {
            self.warn(format!("{} is too large: {max} is used", given.option));
        }
        u32::try_from(count.min(max)).ok()
    }

    pub(super) fn switch_log_format(&mut self, format: LogFormat, on: bool) {
        if on {
            self.log_format = Some(format);
        } else if self.log_format == Some(format) {
            self.log_format = None;
        }
    }

    pub(super) fn no_effect(&mut self, option: &str, reason: &str) {
        self.warn(format!("{option} has no effect: {reason}"));
    }

    fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Completes the configuration after all options are read.
    pub(super) fn finish(mut self) -> Result<Configuration, CliError> {
        self.choose_tls()?;
        self.choose_listeners();
        self.choose_times();
        self.choose_log();
        if !self.secret_key_files.is_empty() {
            self.config.caches[0].secret_key_files = std::mem::take(&mut self.secret_key_files);
        }
        if !self.words.is_empty() {
            let words: Vec<String> = self.words.iter().map(|word| format!("{word:?}")).collect();
            self.warn(format!(
                "words that are no options are ignored: {}",
                words.join(" ")
            ));
        }
        // Warnings about environment variables come last.
        self.warnings.append(&mut self.config.remarks);
        self.config.remarks = self.warnings;
        Ok(self.config)
    }

    /// Decides about TLS: starman turns it on by `--enable-ssl` or `:ssl`, nix-serve-ng by
    /// certificate and key.
    fn choose_tls(&mut self) -> Result<(), CliError> {
        let listeners = std::mem::take(&mut self.tls_listeners);
        let switch = self.tls.take();
        let is_off = matches!(switch, Some((_, false)));
        let switch = switch.filter(|(_, on)| *on).map(|(spelled, _)| spelled);
        let (is_everywhere, asked_by) = match (switch, self.tls_listener.take()) {
            (Some(spelled), _) => (true, Some(spelled)),
            (None, Some(spelled)) => (false, Some(spelled)),
            (None, None) => (true, None),
        };
        match (self.tls_certificate.take(), self.tls_key.take(), asked_by) {
            (Some((_, certificate)), Some((_, key)), asked_by) if asked_by.is_some() || !is_off => {
                self.config.tls = Some(Tls {
                    clients: None,
                    certificates: vec![CertificateFiles {
                        certificate,
                        key,
                        entry: None,
                    }],
                    only: (!is_everywhere).then_some(listeners),
                });
            }
            (_, _, Some(asked_by)) => return Err(CliError::Tls(asked_by)),
            (certificate, key, None) => {
                for (asked_by, _) in certificate.into_iter().chain(key) {
                    if !is_off {
                        return Err(CliError::Tls(asked_by));
                    }
                    self.no_effect(&asked_by, "TLS is switched off");
                }
            }
        }
        Ok(())
    }

    /// Chooses the listeners: `--listen` overrides `--socket`, which overrides `--host` and
    /// `--port`.
    fn choose_listeners(&mut self) {
        let (listen, socket) = (std::mem::take(&mut self.listen), self.socket.take());
        let (host, port) = (self.host.take(), self.port.take());
        let given = [
            ("--listen", !listen.is_empty()),
            ("--socket", socket.is_some()),
            ("--host", host.is_some()),
            ("--port", port.is_some()),
        ];
        self.config.listen_given = given.iter().any(|(_, is_given)| *is_given);
        self.config.listeners = match (listen.is_empty(), socket) {
            (false, _) => listen,
            (true, Some(path)) => vec![ListenSpec::Unix(path)],
            (true, None) => {
                let host = host.unwrap_or(Host::Any);
                let port = port.unwrap_or(PORT_DEFAULT);
                self.config.listeners = vec![ListenSpec::Tcp { host, port }];
                return;
            }
        };
        let mut given = given.iter().filter(|(_, is_given)| *is_given);
        if let Some((by, _)) = given.next() {
            for (option, _) in given {
                self.no_effect(option, &format!("{by} overrides it"));
            }
        }
    }

    /// Sets the time limits. As in nix-serve-ng, `--timeout` also closes idle connections. The
    /// options for one of both times override it.
    fn choose_times(&mut self) {
        let limits = &mut self.config.limits;
        if let Some(time) = self.timeout {
            limits.stall_time = time;
            limits.idle_time = time;
        }
        if let Some(time) = self.keepalive_timeout {
            limits.idle_time = time;
        }
        if let Some(time) = self.stall_time {
            limits.stall_time = time;
        }
        if self.keepalive == Some(false) {
            limits.idle_time = Duration::ZERO;
        }
    }

    /// Sets the access log. As in nix-serve, there is none without `--access-log`. nix-serve-ng
    /// logs to standard output by default; here a log format of nix-serve-ng turns that on.
    fn choose_log(&mut self) {
        let by_format = match self.log_format {
            None | Some(LogFormat::Quiet) => None,
            Some(_) => Some(LogTarget::StandardOutput),
        };
        let target = self.access_log.take().or(by_format);
        if self.daemonize && target == Some(LogTarget::StandardOutput) {
            let reason = "a daemon has no standard output (see --log-access FILE)";
            self.no_effect("the access log on standard output", reason);
        }
        let config = &mut self.config;
        config.access_log = target;
        match self.log_format {
            Some(LogFormat::RealIp) => config.client_address = ClientAddress::Unproven,
            Some(LogFormat::Json) => config.access_log_format = LogForm::Json,
            Some(LogFormat::Verbose) => config.is_verbose = true,
            _ => {}
        }
    }
}

/// Sets an option as its environment variable does: a switch by `1` or `0`.
///
/// # Errors
///
/// A description of valid values.
pub(crate) fn set(
    config: &mut Configuration,
    option: &str,
    text: &OsStr,
) -> Result<(), &'static str> {
    let mut draft = Draft::new(std::mem::take(config));
    let mut result = Ok(());
    match (find(option).map(|(option, _)| option.takes), text.to_str()) {
        (Some(Takes::Value(expected, set)), _) => {
            result = set(&mut draft, &Given { option, text }).ok_or(expected);
        }
        (Some(Takes::File(_, set)), _) => set(&mut draft, text.into()),
        (Some(Takes::Nothing(set)), Some(digit @ ("0" | "1"))) => {
            set(&mut draft, option, digit == "1");
        }
        _ => result = Err("1 or 0"),
    }
    *config = draft.config;
    result
}

/// Returns an error if the unknown option is most similar to one that asks for protection.
fn misspelled_protection(option: &str) -> Option<CliError> {
    let mut names = super::option::names();
    names.extend(
        OptionSpec::all()
            .map(OptionSpec::option)
            .filter(|name| is_protection_of_samovar_serve(&name.replace('-', "_"))),
    );
    let meant = nearest(option, &names)?;
    let name = meant.trim_start_matches('-');
    let program = match (find(name), OptionSpec::by_option(name)) {
        (Some((own, _)), _) if own.is_protection() => "nix-serve",
        (None, Some(_)) => "samovar serve",
        _ => return None,
    };
    Some(CliError::Misspelled {
        option: option.to_owned(),
        program,
        meant,
    })
}

/// Returns whether `name`, with underscores for dashes and the first word of a protective option,
/// is a misspelled option of nix-serve that asks for no protection. The words after the first one
/// must be similar.
fn is_misspelled_beside_protection(name: &str) -> bool {
    let name = name.replace('_', "-");
    let Some((first, rest)) = name.split_once('-') else {
        return false;
    };
    let names = super::option::names();
    let beside = names
        .iter()
        .filter_map(|name| name.strip_prefix(first)?.strip_prefix('-'));
    samovar_server::config::nearest(rest, beside).is_some()
}

/// Refuses environment variables that ask for protection: those of options of `samovar serve`, and
/// misspelled ones.
///
/// # Errors
///
/// [`CliError::Variable`].
pub fn refuse_variables(names: impl IntoIterator<Item = OsString>) -> Result<(), CliError> {
    for variable in names {
        let Some(variable) = variable.to_str() else {
            continue;
        };
        let instead = if variable == "NIX_SECRET_KEY_FILES" {
            "set NIX_SECRET_KEY_FILE".to_owned()
        } else if let Some(option) = variable.strip_prefix(VARIABLE_PREFIX) {
            let option = option.to_ascii_lowercase();
            // The variable of one cache: CACHES__NAME__OPTION.
            let of_cache = option.strip_prefix("caches__");
            let of_cache = of_cache.and_then(|rest| Some(rest.split_once("__")?.1));
            if !is_protection_of_samovar_serve(of_cache.unwrap_or(&option)) {
                continue;
            }
            "run `samovar serve`".to_owned()
        } else if let Some(option) = variable.strip_prefix("NIX_SERVE_") {
            let option = option.to_ascii_lowercase();
            let own = option.replace('_', "-");
            let is_own = |spec: &OptionSpec| PROTECTION.contains(&spec.name);
            if OptionSpec::by_option(&own).is_some_and(is_own) {
                format!("use --{own}")
            } else if is_protection_of_samovar_serve(&option) {
                "run `samovar serve`".to_owned()
            } else {
                continue;
            }
        } else {
            continue;
        };
        return Err(CliError::Variable {
            variable: variable.to_owned(),
            instead,
        });
    }
    Ok(())
}

/// Returns whether `name`, with underscores for dashes, is an option of `samovar serve` for
/// encryption, access, policies or signing. Compares prefixes, to include misspelled names.
fn is_protection_of_samovar_serve(name: &str) -> bool {
    const PREFIXES: [&str; 5] = ["access_", "policy_", "secret_key", "signing_", "tls_"];
    matches!(name, "config" | "set" | "tls")
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}
