//! Finds the token or the login that authorizes an upload.
//!
//! A token is never an argument: other users of the machine can read the command line of a process.
//!
//! | source; the first one that exists is used | sent as |
//! | --- | --- |
//! | `--oidc`: the ID token of a CI job, which is exchanged for a token | bearer token |
//! | `--token-file` | bearer token |
//! | `--netrc-file` | HTTP Basic |
//! | a login in the URL | HTTP Basic |
//! | `$SAMOVAR_TOKEN` | bearer token |
//! | the file that Nix's setting `netrc-file` names | HTTP Basic |
//!
//! `$SAMOVAR_TOKEN` is for the cache that the command line or `$SAMOVAR_CACHE` names. A workspace,
//! or kept changes, may have recorded the cache earlier. If `$SAMOVAR_CACHE` names another host
//! than the recorded cache has, the token is not for the recorded cache.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use anyhow::Context as _;

use crate::credential::{TOKEN_VARIABLE, token_in, token_variable};
use crate::exchanged::ExchangedToken;
use crate::id_token::IdTokenSource;
use crate::netrc::{login, netrc_of_nix};
use crate::notice::notice;
pub use crate::plain_http::{PLAIN_VARIABLE, check_encrypted};
use crate::remote::{Remote, Renew as _, URL_VARIABLE};

/// What the command line says about the exchange of an ID token.
#[derive(Debug, Clone, Default)]
pub struct OidcOptions {
    /// File with the ID token; `None`: the variables of the CI service.
    pub id_token_file: Option<PathBuf>,
    /// Audience of the ID token; `None`: the URL of the server, without a path.
    pub audience: Option<String>,
}

/// The files that the command line names, and whether it also names the server.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// How to get a token for the ID token of a CI job; `None`: the other sources are used.
    pub oidc: Option<OidcOptions>,
    /// File with a token in its first line; `-` for standard input.
    pub token_file: Option<PathBuf>,
    /// File with the token as the password for the host of the URL.
    pub netrc_file: Option<PathBuf>,
    /// Whether the URL is one that a workspace or kept changes have recorded.
    pub is_recorded: bool,
}

impl OidcOptions {
    /// Exchanges the ID token of this job for a token of the cache at `remote`.
    ///
    /// # Errors
    ///
    /// As [`ExchangedToken::new`].
    pub fn exchange(&self, remote: &Remote) -> anyhow::Result<Arc<ExchangedToken>> {
        let source = IdTokenSource::find(self.id_token_file.as_deref())?;
        ExchangedToken::new(remote, source, self.audience.as_deref())
    }
}

impl Sources {
    /// Returns the same sources for a URL that a workspace or kept changes have recorded.
    #[must_use]
    pub fn recorded(self) -> Self {
        Self {
            is_recorded: true,
            ..self
        }
    }

    /// Returns whether the token in [`TOKEN_VARIABLE`] is for this server.
    pub fn may_send_variable(&self, remote: &Remote) -> bool {
        let named = std::env::var(URL_VARIABLE).unwrap_or_default();
        if !self.is_recorded || named.is_empty() {
            return true;
        }
        let named = Remote::of_cache(&named);
        named.is_ok_and(|named| named.host().eq_ignore_ascii_case(remote.host()))
    }

    /// Adds the credentials to `remote`.
    ///
    /// # Errors
    ///
    /// A file that the command line names cannot be read, or has no credentials for the host; or
    /// they would be sent unencrypted, see [`check_encrypted`].
    pub fn authorize(&self, remote: &mut Remote) -> anyhow::Result<()> {
        if let Some(options) = &self.oidc {
            let token = options.exchange(remote)?;
            let authorization = token.authorization();
            remote.authorize(
                authorization,
                "the token for the ID token of this job".to_owned(),
            );
            remote.renew_by(token);
            return Ok(());
        }
        if let Some((authorization, source)) = self.find(remote)? {
            remote.authorize(authorization, source);
        }
        check_encrypted(remote)
    }

    /// Returns the value of the `Authorization` header, and the description of its source. Returns
    /// `None` if the login of `remote` is to be used, or if there are no credentials.
    fn find(&self, remote: &Remote) -> anyhow::Result<Option<(String, String)>> {
        let host = remote.host();
        if let Some(file) = &self.token_file {
            let (text, source) = match file == Path::new("-") {
                true => (
                    io::read_to_string(io::stdin())?,
                    "standard input".to_owned(),
                ),
                false => {
                    warn_if_open(file);
                    (read(file)?, format!("{file:?}"))
                }
            };
            let token = token_in(&text, &source)?;
            return Ok(Some((bearer(token), format!("the token in {source}"))));
        }
        if let Some(file) = &self.netrc_file {
            let login = login(&read(file)?, host)
                .with_context(|| format!("{file:?} has no entry for the machine {host:?}"))?;
            return Ok(Some((login.authorization(), of_netrc(host, file))));
        }
        if remote.authorization().is_some() {
            return Ok(None);
        }
        let variable = token_variable();
        if variable.is_some() && !self.may_send_variable(remote) {
            report_other_server(remote);
        } else if let Some(text) = variable {
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

/// Warns of a token file that every user of this machine can read.
pub fn warn_if_open(file: &Path) {
    let is_open = std::fs::metadata(file).is_ok_and(|found| {
        // Others can read a pipe, such as a shell makes for `<(command)`, only by its name.
        found.is_file() && found.mode() & 0o004 != 0
    });
    if is_open {
        notice(&format!(
            "warning: the token file {file:?} is readable by all users: run `chmod o-rwx` on it"
        ));
    }
}

/// Reports once that the token is not sent.
fn report_other_server(remote: &Remote) {
    static REPORTED: Once = Once::new();
    REPORTED.call_once(|| {
        notice(&format!(
            "the token in {TOKEN_VARIABLE} is not sent to {}, the server of these files, because \
             {URL_VARIABLE} names another server: set {URL_VARIABLE} to the token's cache",
            remote.host()
        ));
    });
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

fn of_netrc(host: &str, file: &Path) -> String {
    format!("the password for {host:?} in {file:?}")
}
