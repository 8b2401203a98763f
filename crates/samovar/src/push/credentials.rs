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

use anyhow::{Context as _, ensure};

use crate::netrc::{login, netrc_of_nix};
use crate::remote::Remote;

/// Environment variable that may contain the token.
const TOKEN_VARIABLE: &str = "SAMOVAR_TOKEN";

/// The command-line options that name files with credentials.
#[derive(Debug, Clone, Default)]
pub(super) struct Sources {
    pub(super) token_file: Option<PathBuf>,
    pub(super) netrc_file: Option<PathBuf>,
}

impl Sources {
    /// Adds the credentials to `remote`. Warns if they will be sent in clear text.
    ///
    /// # Errors
    ///
    /// A file that the command line names cannot be read, or has no credentials for the host.
    pub(super) fn authorize(&self, remote: &mut Remote) -> anyhow::Result<()> {
        if let Some(authorization) = self.find(remote)? {
            remote.authorize(authorization);
        }
        if remote.authorization().is_some() && !remote.is_secure() && !is_loopback(remote.host()) {
            let warning = "samovar: warning: the token is sent unencrypted over HTTP, and can be \
                           read on the network: use HTTPS";
            // Ignore errors: standard error may be closed.
            writeln!(io::stderr(), "{warning}").ok();
        }
        Ok(())
    }

    fn find(&self, remote: &Remote) -> anyhow::Result<Option<String>> {
        if let Some(file) = &self.token_file {
            let text = read(file)?;
            let token = text.lines().next().unwrap_or_default().trim();
            return bearer(token)
                .with_context(|| format!("{file:?} has no token in its first line"))
                .map(Some);
        }
        if let Some(file) = &self.netrc_file {
            let found = login(&read(file)?, remote.host());
            let host = remote.host();
            return found
                .map(|login| login.authorization())
                .with_context(|| format!("{file:?} has no entry for the machine {host:?}"))
                .map(Some);
        }
        if remote.authorization().is_some() {
            return Ok(None);
        }
        if let Some(token) = std::env::var_os(TOKEN_VARIABLE).filter(|token| !token.is_empty()) {
            let token = token.to_string_lossy();
            return bearer(token.trim())
                .with_context(|| format!("{TOKEN_VARIABLE} is not a token"))
                .map(Some);
        }
        // Ignore a netrc file that cannot be read, as Nix does.
        let text = std::fs::read_to_string(netrc_of_nix()).unwrap_or_default();
        Ok(login(&text, remote.host()).map(|login| login.authorization()))
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {file:?}"))
}

fn bearer(token: &str) -> anyhow::Result<String> {
    let is_plain = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(is_plain, "expected printable ASCII without spaces");
    Ok(format!("Bearer {token}"))
}

fn is_loopback(host: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    host == "localhost" || address.is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_one_word() {
        assert_eq!(bearer("smv1_a-b").unwrap(), "Bearer smv1_a-b");
        assert!(bearer("").is_err());
        assert!(bearer("a b").is_err());
        assert!(bearer("a\nb").is_err());
    }

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
