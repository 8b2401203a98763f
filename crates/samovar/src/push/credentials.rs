//! Finds the token or the login that uploads need.
//!
//! A token is never an argument: other users of the machine can read the command line of a process.
//!
//! | source, the first that is there | sent as |
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
use samovar_store::Conf;

use crate::remote::{Remote, basic_of};

/// Variable with a token.
const TOKEN_VARIABLE: &str = "SAMOVAR_TOKEN";

/// Options of the command line about credentials.
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
            // Standard error may be closed.
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
        // Nix ignores a netrc file that it cannot read, too.
        let text = std::fs::read_to_string(netrc_of_nix()).unwrap_or_default();
        Ok(login(&text, remote.host()))
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

/// Returns the value of `netrc-file`, from the sources that Nix reads.
fn netrc_of_nix() -> PathBuf {
    let conf_dir = directory("NIX_CONF_DIR").unwrap_or_else(|| PathBuf::from("/etc/nix"));
    let mut of_environment = Conf::default();
    let text = std::env::var("NIX_CONFIG").unwrap_or_default();
    of_environment.add(&text, &conf_dir);
    let config_home = directory("XDG_CONFIG_HOME");
    let config_home = config_home.or_else(|| Some(directory("HOME")?.join(".config")));
    let of_user = config_home.map(|dir| Conf::read(&dir.join("nix/nix.conf")));
    let of_machine = Conf::read(&conf_dir.join("nix.conf"));
    let all = [Some(of_environment), of_user, Some(of_machine)];
    let mut named = all.iter().flatten().map(|conf| conf.text("netrc-file"));
    match named.find_map(|file| file) {
        Some(file) => PathBuf::from(file),
        None => conf_dir.join("netrc"),
    }
}

/// Returns the directory that a variable names, unless it is empty.
fn directory(variable: &str) -> Option<PathBuf> {
    let value = std::env::var_os(variable).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// Finds the login for a host in a netrc file; returns the value of the `Authorization` header.
///
/// # Source
///
/// The format of GNU inetutils, as libcurl reads it: words separated by white space, in double
/// quotes if necessary; the first matching entry counts.
fn login(text: &str, host: &str) -> Option<String> {
    let mut words = Words(text);
    let mut is_match = false;
    let (mut user, mut password) = (String::new(), None);
    while let Some(word) = words.next() {
        match &*word {
            "machine" | "default" if is_match && password.is_some() => break,
            "machine" => is_match = words.next()?.eq_ignore_ascii_case(host),
            "default" => is_match = true,
            "login" if is_match => user = words.next()?,
            "password" if is_match => password = Some(words.next()?),
            "login" | "password" | "account" => drop(words.next()),
            "macdef" => words.skip_macro(),
            _ => {}
        }
    }
    Some(basic_of(user.as_bytes(), password?.as_bytes()))
}

struct Words<'a>(&'a str);

impl Words<'_> {
    /// Skips a macro, which ends with an empty line.
    fn skip_macro(&mut self) {
        self.0 = self.0.split_once("\n\n").map_or("", |(_, rest)| rest);
    }
}

impl Iterator for Words<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        self.0 = self.0.trim_start();
        while self.0.starts_with('#') {
            let (_, rest) = self.0.split_once('\n').unwrap_or_default();
            self.0 = rest.trim_start();
        }
        let Some(quoted) = self.0.strip_prefix('"') else {
            let end = self.0.find(char::is_whitespace).unwrap_or(self.0.len());
            let (word, rest) = self.0.split_at(end);
            self.0 = rest;
            return (!word.is_empty()).then(|| word.to_owned());
        };
        let mut word = String::new();
        let mut chars = quoted.chars();
        while let Some(char) = chars.next() {
            match char {
                '"' => break,
                '\\' => word.extend(chars.next()),
                other => word.push(other),
            }
        }
        self.0 = chars.as_str();
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<(&str, &str)>) {
        let expected = expected.map(|(user, word)| basic_of(user.as_bytes(), word.as_bytes()));
        assert_eq!(login(text, "cache.example.org"), expected, "{text}");
    }

    #[test]
    fn entries_of_netrc() {
        let line = "machine cache.example.org login ci password t0k3n\n";
        check(line, Some(("ci", "t0k3n")));
        check(&line.replace(' ', "\n\t"), Some(("ci", "t0k3n")));
        check("machine CACHE.example.ORG password x", Some(("", "x")));
        check("machine other login a password b", None);
        check(
            "machine other login a password b default login c password d",
            Some(("c", "d")),
        );
        let two = format!("{line}default login c password d");
        check(&two, Some(("ci", "t0k3n")));
        check(&format!("# a comment\n{line}"), Some(("ci", "t0k3n")));
        check(
            &format!("macdef init\ncd /\nmachine x\n\n{line}"),
            Some(("ci", "t0k3n")),
        );
        check(
            "machine cache.example.org login \"a b\" password \"c\\\"d\"",
            Some(("a b", "c\"d")),
        );
        check("machine cache.example.org login ci", None);
        check("", None);
    }

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
