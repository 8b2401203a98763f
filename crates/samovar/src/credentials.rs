//! Finds the token or the login that authorizes an upload.
//!
//! A token is never an argument: other users of the machine can read the command line of a process.
//!
//! | source; the first one that exists is used | sent as |
//! | --- | --- |
//! | `--token-file` | bearer token |
//! | `--netrc-file` | HTTP Basic |
//! | a login in the URL | HTTP Basic |
//! | `$SAMOVAR_TOKEN` | bearer token |
//! | the file that Nix's setting `netrc-file` names | HTTP Basic |

use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Arg, ArgMatches, value_parser};

use crate::arguments::option;
use crate::credential::{TOKEN_VARIABLE, token_in};
use crate::netrc::{login, netrc_of_nix};
use crate::remote::Remote;

/// The command-line options that name files with credentials.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources {
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) netrc_file: Option<PathBuf>,
}

/// Defines the options that name files with credentials.
pub(crate) fn options() -> [Arg; 2] {
    let file = |id, what| {
        option(id, "FILE")
            .value_parser(value_parser!(PathBuf))
            .help(what)
    };
    [
        file("token-file", "File with a token in its first line"),
        file(
            "netrc-file",
            "File with the token as the password for the host of the URL",
        ),
    ]
}

impl Sources {
    /// Reads the [`options`].
    pub(crate) fn of(matches: &ArgMatches) -> Self {
        let file = |id: &str| matches.get_one::<PathBuf>(id).cloned();
        Self {
            token_file: file("token-file"),
            netrc_file: file("netrc-file"),
        }
    }

    /// Adds the credentials to `remote`. Warns if they will be sent in clear text.
    ///
    /// # Errors
    ///
    /// A file that the command line names cannot be read, or has no credentials for the host.
    pub(crate) fn authorize(&self, remote: &mut Remote) -> anyhow::Result<()> {
        if let Some((authorization, source)) = self.find(remote)? {
            remote.authorize(authorization, source);
        }
        if remote.authorization().is_some() && !remote.is_secure() && !is_loopback(remote.host()) {
            let warning = "samovar: warning: the token is sent unencrypted over HTTP, and can be \
                           read on the network: use HTTPS";
            // Ignore errors: standard error may be closed.
            writeln!(io::stderr(), "{warning}").ok();
        }
        Ok(())
    }

    /// Returns the value of the `Authorization` header, and the description of its source. Returns
    /// `None` if the login of `remote` is to be used, or if there are no credentials.
    fn find(&self, remote: &Remote) -> anyhow::Result<Option<(String, String)>> {
        let host = remote.host();
        if let Some(file) = &self.token_file {
            let text = read(file)?;
            let token = token_in(&text, &format!("{file:?}"))?;
            return Ok(Some((bearer(token), format!("the token in {file:?}"))));
        }
        if let Some(file) = &self.netrc_file {
            let login = login(&read(file)?, host)
                .with_context(|| format!("{file:?} has no entry for the machine {host:?}"))?;
            return Ok(Some((login.authorization(), of_netrc(host, file))));
        }
        if remote.authorization().is_some() {
            return Ok(None);
        }
        if let Some(token) = std::env::var_os(TOKEN_VARIABLE).filter(|token| !token.is_empty()) {
            let text = token.to_string_lossy();
            let token = token_in(&text, TOKEN_VARIABLE)?;
            return Ok(Some((
                bearer(token),
                format!("the token in {TOKEN_VARIABLE}"),
            )));
        }
        let file = netrc_of_nix();
        // Ignore a netrc file that cannot be read, as Nix does.
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        Ok(login(&text, host).map(|login| (login.authorization(), of_netrc(host, &file))))
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {file:?}"))
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

fn of_netrc(host: &str, file: &Path) -> String {
    format!("the password for {host:?} in {file:?}")
}

fn is_loopback(host: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_hosts() {
        for (host, expected) in [
            ("localhost", true),
            ("127.0.0.2", true),
            ("::1", true),
            ("10.0.0.1", false),
            ("localhost.example.org", false),
        ] {
            assert_eq!(is_loopback(host), expected, "{host}");
        }
    }
}
