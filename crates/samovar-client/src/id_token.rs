//! Finds the ID token of a CI job.
//!
//! | source; the first one that exists is used | CI service |
//! | --- | --- |
//! | `--id-token-file` | any that writes the token to a file, such as Kubernetes |
//! | [`ID_TOKEN_VARIABLE`] | GitLab, with `id_tokens` of the job |
//! | `ACTIONS_ID_TOKEN_REQUEST_URL` and `_TOKEN` | GitHub, with `permissions: id-token: write` |
//!
//! A file is read, and GitHub is asked, for each exchange, so that the token is a new one.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail, ensure};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::credential::ID_TOKEN_VARIABLE;
use crate::failed::Failed;
use crate::http::{Http, Patience, read_body};
use crate::remote::Remote;

/// Environment variables with the URL at which a job of GitHub requests its ID token, and the token
/// for that request.
const GITHUB_URL_VARIABLE: &str = "ACTIONS_ID_TOKEN_REQUEST_URL";
const GITHUB_TOKEN_VARIABLE: &str = "ACTIONS_ID_TOKEN_REQUEST_TOKEN";

/// Maximum length of the answer of GitHub, in bytes.
const ANSWER_LEN_MAX: u64 = 64 << 10;

/// Where the ID token of this job is.
#[derive(Clone)]
pub enum IdTokenSource {
    /// In the first line of this file.
    File(PathBuf),
    /// This text.
    Text(String),
    /// At this URL of GitHub, to be requested with this token.
    GitHub {
        /// The URL, which has a query.
        url: String,
        /// The token for the request.
        token: String,
    },
}

/// Shows no secret.
impl fmt::Debug for IdTokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "File({file:?})"),
            Self::Text(_) => f.write_str("Text(…)"),
            Self::GitHub { .. } => f.write_str("GitHub(…)"),
        }
    }
}

#[derive(Deserialize)]
struct Answer {
    value: String,
}

impl IdTokenSource {
    /// Finds the ID token of this job. `file`: the file that the command line names.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn find(file: Option<&Path>) -> anyhow::Result<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(file) = file {
            return Ok(Self::File(file.to_owned()));
        }
        if let Some(text) = variable(ID_TOKEN_VARIABLE) {
            return Ok(Self::Text(text));
        }
        match (
            variable(GITHUB_URL_VARIABLE),
            variable(GITHUB_TOKEN_VARIABLE),
        ) {
            (Some(url), Some(token)) => Ok(Self::GitHub { url, token }),
            _ if variable("GITHUB_ACTIONS").is_some() => bail!(
                "the job may not request an ID token: add `permissions: id-token: write` to it; \
                 jobs for pull requests from forks get none"
            ),
            _ => bail!(
                "there is no ID token: in GitLab, define {ID_TOKEN_VARIABLE} under id_tokens of \
                 the job; elsewhere, set {ID_TOKEN_VARIABLE} or give --id-token-file FILE"
            ),
        }
    }

    /// Returns the ID token. `audience`: the service that it is for, which GitHub writes into it.
    ///
    /// # Errors
    ///
    /// The file cannot be read, GitHub refuses the request, or the text is no ID token.
    pub fn get(&self, audience: &str) -> anyhow::Result<String> {
        match self {
            Self::File(file) => {
                let text = std::fs::read_to_string(file);
                let text = text.with_context(|| format!("cannot read the ID token in {file:?}"))?;
                checked(&text, &format!("{file:?}"))
            }
            Self::Text(text) => checked(text, ID_TOKEN_VARIABLE),
            Self::GitHub { url, token } => of_github(url, token, audience),
        }
    }
}

fn of_github(url: &str, token: &str, audience: &str) -> anyhow::Result<String> {
    let audience = utf8_percent_encode(audience, NON_ALPHANUMERIC);
    let join = if url.contains('?') { '&' } else { '?' };
    let mut remote = Remote::parse(&format!("{url}{join}audience={audience}"))
        .with_context(|| format!("{GITHUB_URL_VARIABLE} is not usable"))?;
    remote.authorize(
        format!("bearer {token}"),
        format!("the token in {GITHUB_TOKEN_VARIABLE}"),
    );
    let http = Http::new(remote, Patience::SETUP)?;
    let response = http.get("")?;
    if response.status() != 200 {
        let status = response.status();
        return Err(Failed::Refused.because(anyhow!("GitHub refused the ID token: {status}")));
    }
    let answer = read_body(response, ANSWER_LEN_MAX)?;
    let Ok(Answer { value }) = serde_json::from_slice(&answer) else {
        bail!("the answer of GitHub has no ID token");
    };
    checked(&value, "the answer of GitHub")
}

/// Returns the ID token in the first line of a text. `source`: description of the text's origin.
fn checked(text: &str, source: &str) -> anyhow::Result<String> {
    let token = text.lines().next().unwrap_or_default().trim();
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    ensure!(
        token.bytes().all(is_allowed) && token.split('.').count() == 3,
        "{source} has no ID token in its first line: an ID token is a signed JSON Web Token"
    );
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_tokens_have_three_parts() {
        assert_eq!(checked(" a.b-_.c \nmore", "x").unwrap(), "a.b-_.c");
        for wrong in [
            "", "a", "a.b", "a.b.c.d", "smv1_abc", "a.b c.d", "\na.b.c", "a.b.c=",
        ] {
            let error = checked(wrong, "\"file\"").unwrap_err().to_string();
            assert!(error.starts_with("\"file\" has no ID token"), "{error}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let text = IdTokenSource::Text("a.b.c".to_owned());
        let (url, token) = ("https://a".to_owned(), "secret".to_owned());
        let shown = format!("{text:?} {:?}", IdTokenSource::GitHub { url, token });
        assert!(
            !shown.contains("a.b.c") && !shown.contains("secret"),
            "{shown}"
        );
    }
}
