//! The URL of a cache or of an admin listener, separated from its login.

use std::fmt;
use std::sync::Arc;

use anyhow::{anyhow, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;
use samovar_text::{may_end_in_login, without_logins};

use crate::failed::Failed;

/// Environment variable with the URL of the cache, for arguments without one.
pub const URL_VARIABLE: &str = "SAMOVAR_CACHE";

/// A URL from the command line. A login in it, as in `https://user:password@host/`, becomes an
/// `Authorization` header and is never part of the text. So code that prints the URL, or a URL
/// below it, cannot print the password.
#[derive(Clone)]
pub struct Remote {
    /// The URL without login and without a trailing slash.
    url: String,
    login: Option<RemoteLogin>,
}

/// The value of an `Authorization` header, and its source.
#[derive(Clone)]
struct RemoteLogin {
    authorization: String,
    /// Description of the source, such as `the token in SAMOVAR_TOKEN`.
    source: String,
    /// What renews a login that expires.
    renewal: Option<Arc<dyn Renew>>,
}

/// A login that expires and is renewed by the requests that need it.
pub trait Renew: fmt::Debug + Send + Sync {
    /// Returns the present value of the `Authorization` header. May block while the login is
    /// renewed.
    fn authorization(&self) -> String;
}

impl Remote {
    /// # Errors
    ///
    /// [`Failed::Usage`] if `text` is not a URL that begins with `http://` or `https://`, or may
    /// have a `/`, `?` or `#` in its login.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        Self::try_parse(text).map_err(|error| Failed::Usage.because(error))
    }

    fn try_parse(text: &str) -> anyhow::Result<Self> {
        let split = text.split_once("://");
        let known = split.filter(|(scheme, _)| matches!(*scheme, "http" | "https"));
        ensure!(
            known.is_some(),
            "{:?} does not begin with http:// or https://: give a URL",
            without_logins(text)
        );
        let (scheme, rest) = known.unwrap_or_default();
        let authority_len = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(authority_len);
        ensure!(
            !may_end_in_login(authority, path),
            "the URL after {scheme}:// has an @ in its path, query or fragment: write / ? # as %2F \
             %3F %23 in a user name or password, and @ as %40 elsewhere"
        );
        let (login, host) = match authority.rsplit_once('@') {
            Some((login, host)) => (Some(login), host),
            None => (None, authority),
        };
        Ok(Self {
            url: format!("{scheme}://{host}{}", path.trim_end_matches('/')),
            login: login.map(|login| RemoteLogin {
                authorization: basic(login),
                source: "the login in the URL".to_owned(),
                renewal: None,
            }),
        })
    }

    /// Parses a URL below which files are requested. Lines of `nix.conf` may have parameters after
    /// it, which only Nix understands.
    ///
    /// # Errors
    ///
    /// If `text` is not a URL for [`parse`](Self::parse), or has a query or a fragment.
    pub fn of_folder(text: &str) -> anyhow::Result<Self> {
        let remote = Self::parse(text)?;
        let url = remote.url();
        let problem = match url.find(['?', '#']) {
            None => return Ok(remote),
            Some(at) if url[at..].starts_with('?') => {
                "has parameters of Nix: leave out the part from the question mark on"
            }
            Some(_) => "has a fragment: leave out the part from # on",
        };
        Err(Failed::Usage.because(anyhow!("{url:?} {problem}")))
    }

    /// Parses the URL of a cache as [`of_folder`](Self::of_folder). Removes a final `/upload`, as
    /// in URLs for `nix copy`.
    ///
    /// # Errors
    ///
    /// As [`of_folder`](Self::of_folder).
    pub fn of_cache(text: &str) -> anyhow::Result<Self> {
        let remote = Self::of_folder(text)?;
        let url = remote.url();
        let url = url.strip_suffix("/upload").unwrap_or(url).to_owned();
        Ok(remote.at(url))
    }

    /// Returns the URL without login and without a trailing slash.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the value of the `Authorization` header, if there is a login.
    pub fn authorization(&self) -> Option<&str> {
        self.login.as_ref().map(|login| &*login.authorization)
    }

    /// Returns the description of the login's source, such as `the token in SAMOVAR_TOKEN`.
    pub fn login_source(&self) -> Option<&str> {
        self.login.as_ref().map(|login| &*login.source)
    }

    /// Replaces the value of the `Authorization` header. `source`: description of its source.
    pub fn authorize(&mut self, authorization: String, source: String) {
        self.login = Some(RemoteLogin {
            authorization,
            source,
            renewal: None,
        });
    }

    /// Lets requests renew the login. Does nothing without a login.
    pub fn renew_by(&mut self, renewal: Arc<dyn Renew>) {
        if let Some(login) = &mut self.login {
            login.renewal = Some(renewal);
        }
    }

    /// Returns the value of the `Authorization` header for a request that is sent now, if there is
    /// a login. May block while the login is renewed.
    pub fn present_authorization(&self) -> Option<String> {
        let login = self.login.as_ref()?;
        Some(match &login.renewal {
            Some(renewal) => renewal.authorization(),
            None => login.authorization.clone(),
        })
    }

    /// Returns the URL without a login.
    pub fn without_login(&self) -> Self {
        Self {
            url: self.url.clone(),
            login: None,
        }
    }

    /// Returns this login for another URL of the same host.
    pub fn at(&self, url: String) -> Self {
        Self {
            url,
            login: self.login.clone(),
        }
    }

    /// Returns the host of the URL without the port. An IPv6 address has no brackets.
    pub fn host(&self) -> &str {
        let (_, rest) = self.url.split_once("://").unwrap_or_default();
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        match authority.strip_prefix('[') {
            Some(address) => address.split(']').next().unwrap_or_default(),
            None => authority.split(':').next().unwrap_or_default(),
        }
    }

    /// Returns whether the URL begins with `https://`.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.url.starts_with("https://")
    }

    /// Returns the scheme, the host and the port of the URL.
    pub fn origin(&self) -> &str {
        let start = self.url.find("://").map_or(0, |at| at + 3);
        let rest = self.url.get(start..).unwrap_or_default();
        let len = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        self.url.get(..start + len).unwrap_or_default()
    }

    /// Returns the origin of the URL with another scheme.
    pub fn origin_with(&self, scheme: &str) -> String {
        let (_, authority) = self.origin().split_once("://").unwrap_or_default();
        format!("{scheme}://{authority}")
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.url, f)
    }
}

/// Returns the `Authorization` value for the percent-encoded login of a URL (RFC 7617, Basic).
fn basic(login: &str) -> String {
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let decoded = |text| percent_decode_str(text).collect::<Vec<u8>>();
    basic_of(&decoded(user), &decoded(password))
}

/// Returns the `Authorization` value for a user name and a password (RFC 7617, Basic).
pub fn basic_of(user: &[u8], password: &[u8]) -> String {
    format!("Basic {}", STANDARD.encode([user, b":", password].concat()))
}

#[cfg(test)]
mod tests {
    use samovar_text::without_logins;

    use super::Remote;

    #[track_caller]
    fn check(text: &str, url: &str, authorization: Option<&str>) {
        let remote = Remote::parse(text).unwrap();
        assert_eq!(remote.url(), url);
        assert_eq!(remote.authorization(), authorization);
        assert_eq!(remote.to_string(), url);
    }

    #[test]
    fn the_login_is_split_off() {
        check("http://host:5000/a/", "http://host:5000/a", None);
        // bob:secret
        let bob = Some("Basic Ym9iOnNlY3JldA==");
        check("http://bob:secret@host", "http://host", bob);
        check("https://bob:s%65cret@[::1]:1/a", "https://[::1]:1/a", bob);
        // The password contains an @ that was not percent-encoded: bob:se@cret
        let at = Some("Basic Ym9iOnNlQGNyZXQ=");
        check("http://bob:se@cret@host/", "http://host", at);
        check("http://host/a@b", "http://host/a@b", None);
        check("http://bob@host", "http://host", Some("Basic Ym9iOg=="));
    }

    #[test]
    fn hosts() {
        for (url, host) in [
            ("http://a.b", "a.b"),
            ("https://u:p@a.b:5000/c:d", "a.b"),
            ("http://[::1]:1/a", "::1"),
            ("http://127.0.0.1:80", "127.0.0.1"),
        ] {
            assert_eq!(Remote::parse(url).unwrap().host(), host);
        }
    }

    #[test]
    fn origins() {
        for (url, origin) in [
            ("http://a.b", "http://a.b"),
            ("https://u:p@a.b:5000/c:d?e", "https://a.b:5000"),
            ("http://[::1]:1?a", "http://[::1]:1"),
        ] {
            let remote = Remote::parse(url).unwrap();
            assert_eq!(remote.origin(), origin);
            let other = format!("x{}", &origin[origin.find(':').unwrap()..]);
            assert_eq!(remote.origin_with("x"), other);
        }
    }

    #[test]
    fn a_refused_url_is_quoted_without_its_login() {
        for text in [
            "ftp://bob:secret@host",
            "bob:secret@host",
            "//bob:secret@host",
        ] {
            let error = Remote::parse(text).unwrap_err().to_string();
            assert!(!error.contains("secret") || !text.contains("//"), "{error}");
        }
    }

    #[test]
    fn a_login_that_is_not_encoded_is_refused_and_not_quoted() {
        for text in [
            "http://bob:sec/ret@host/",
            "https://bob:sec?ret@host",
            "http://bob:sec#ret@host/x",
            "http://bob:5/ret@host",
            "http://bob:s@sec/ret@host",
        ] {
            let error = Remote::parse(text).unwrap_err().to_string();
            let (scheme, _) = text.split_once("://").unwrap();
            assert!(error.starts_with(&format!("the URL after {scheme}:// has an @")));
            for part in ["bob", "sec", "ret", "host"] {
                assert!(!error.contains(part), "{error}");
            }
            assert_eq!(
                without_logins(&format!("see {text:?}, a/b@c")),
                format!(
                    "see \"{scheme}://***@{}\", a/b@c",
                    text.rsplit_once('@').unwrap().1
                )
            );
        }
    }
}
