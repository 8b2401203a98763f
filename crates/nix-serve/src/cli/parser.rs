//! From scanned items to [`Options`].

use std::ffi::OsString;

use super::draft::Draft;
use super::error::{CliError, Refusal};
use super::option::OptionId;
use super::options::Options;
use super::scanner::{Item, Value, scan};
use super::warning::Warning;
use samovar_server::config::{LogTarget, Tls};
use samovar_server::listener::{Host, ListenSpec, PORT_DEFAULT};

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one in the life of the process"
)]
pub enum Invocation {
    /// Print [`help`](super::help()) and end.
    Help,
    /// Print [`version`](super::version()) and end.
    Version,
    /// Start.
    Serve {
        /// How.
        options: Options,
        /// To be printed once, in this order.
        warnings: Vec<Warning>,
    },
}

/// Reads a command line, without the program's name.
///
/// `--help` and `--version` win over everything, errors included.
///
/// # Errors
///
/// The first [`CliError`]; end with [`CliError::EXIT_CODE`].
///
/// # Examples
///
/// ```
/// # use nix_serve::cli::{Invocation, parse};
/// let words = ["--listen", "127.0.0.1:5000", "-workers", "8", "--frobnicate"];
/// let Invocation::Serve { options, warnings } = parse(words.map(Into::into))? else { panic!() };
/// assert_eq!(options.workers.map(|count| count.get()), Some(8));
/// assert_eq!(warnings[0].to_string(), "unknown option --frobnicate ignored");
/// # Ok::<(), nix_serve::cli::CliError>(())
/// ```
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, CliError> {
    let items = scan(arguments);
    if is_asked(&items, OptionId::Help) {
        return Ok(Invocation::Help);
    }
    if is_asked(&items, OptionId::Version) {
        return Ok(Invocation::Version);
    }
    let mut draft = Draft::default();
    items.into_iter().try_for_each(|item| draft.take(item))?;
    draft.finish()
}

fn is_asked(items: &[Item], wanted: OptionId) -> bool {
    items.iter().any(
        |item| matches!(item, Item::Known { id, value: Value::Switch(true), .. } if *id == wanted),
    )
}

impl Draft {
    fn finish(mut self) -> Result<Invocation, CliError> {
        self.choose_tls()?;
        self.choose_listeners();
        if self.options.daemonize
            && self.options.access_log_target() == Some(LogTarget::StandardOutput)
        {
            let reason = "a daemon has no standard output (see --access-log FILE)";
            self.no_effect("the access log on standard output".to_owned(), reason);
        }
        if !self.words.is_empty() {
            self.warnings.push(Warning::Words(self.words));
        }
        Ok(Invocation::Serve {
            options: self.options,
            warnings: self.warnings,
        })
    }

    /// TLS is on in starman by `--enable-ssl` or `:ssl`, in nix-serve-ng by certificate and key.
    fn choose_tls(&mut self) -> Result<(), Refusal> {
        let listeners = std::mem::take(&mut self.tls_listeners);
        let listener = self.tls_listener.take();
        let (certificate, key) = (self.tls_certificate.take(), self.tls_key.take());
        let switch = self.tls.take();
        let is_off = matches!(switch, Some((_, false)));
        let switch = switch.filter(|(_, on)| *on).map(|(spelled, _)| spelled);
        let (is_everywhere, asked_by) = match (switch, listener) {
            (Some(spelled), _) => (true, Some(spelled)),
            (None, Some(spelled)) => (false, Some(spelled)),
            (None, None) => (true, None),
        };
        match (certificate, key, asked_by) {
            (Some((_, certificate)), Some((_, key)), asked_by) if asked_by.is_some() || !is_off => {
                self.options.tls = Some(Tls {
                    clients: None,
                    certificate,
                    key,
                    only: (!is_everywhere).then_some(listeners),
                });
            }
            (_, _, Some(asked_by)) => return Err(Refusal::Tls { asked_by }),
            (certificate, key, None) => {
                for (asked_by, _) in certificate.into_iter().chain(key) {
                    if !is_off {
                        return Err(Refusal::Tls { asked_by });
                    }
                    self.no_effect(asked_by, "TLS is switched off");
                }
            }
        }
        Ok(())
    }

    fn choose_listeners(&mut self) {
        let is_tcp_given = self.host.is_some() || self.port.is_some();
        self.options.listen_given =
            !self.listen.is_empty() || self.socket.is_some() || is_tcp_given;
        let by = match (self.listen.is_empty(), self.socket.take()) {
            (false, socket) => {
                self.options.listeners = std::mem::take(&mut self.listen);
                if socket.is_some() {
                    self.overridden("--socket", "--listen");
                }
                "--listen"
            }
            (true, Some(path)) => {
                self.options.listeners = vec![ListenSpec::Unix(path)];
                "--socket"
            }
            (true, None) => {
                let host = self.host.take().unwrap_or(Host::Any);
                let port = self.port.unwrap_or(PORT_DEFAULT);
                self.options.listeners = vec![ListenSpec::Tcp { host, port }];
                return;
            }
        };
        if self.host.is_some() {
            self.overridden("--host", by);
        }
        if self.port.is_some() {
            self.overridden("--port", by);
        }
    }

    fn overridden(&mut self, option: &'static str, by: &'static str) {
        self.warnings.push(Warning::Overridden { option, by });
    }
}
