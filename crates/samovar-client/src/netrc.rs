//! Reads logins from netrc files, and finds the netrc file that Nix uses.

use std::fmt;
use std::path::PathBuf;

use samovar_store::Conf;

use crate::remote::basic_of;
use crate::user_dirs;

/// Returns the value of Nix's setting `netrc-file`, from the environment and the files that Nix
/// reads.
pub fn netrc_of_nix() -> PathBuf {
    let conf_dir = user_dirs::variable("NIX_CONF_DIR").unwrap_or_else(|| PathBuf::from("/etc/nix"));
    let mut of_environment = Conf::default();
    let text = std::env::var("NIX_CONFIG").unwrap_or_default();
    of_environment.add(&text, &conf_dir);
    let of_user = user_dirs::config().map(|dir| Conf::read(&dir.join("nix/nix.conf")));
    let of_machine = Conf::read(&conf_dir.join("nix.conf"));
    let all = [Some(of_environment), of_user, Some(of_machine)];
    let mut named = all.iter().flatten().map(|conf| conf.text("netrc-file"));
    match named.find_map(|file| file) {
        Some(file) => PathBuf::from(file),
        None => conf_dir.join("netrc"),
    }
}

/// A user name and a password.
pub struct Login {
    user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

impl Login {
    /// Returns the value of the `Authorization` header for this login.
    pub fn authorization(&self) -> String {
        basic_of(self.user.as_bytes(), self.password.as_bytes())
    }
}

/// Finds the login for `host` in the text of a netrc file. Returns `None` if no entry matches.
///
/// # Source
///
/// The format of GNU inetutils, as libcurl reads it: words separated by white space, in double
/// quotes if necessary; the first matching entry counts.
pub fn login(text: &str, host: &str) -> Option<Login> {
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
    let password = password?;
    Some(Login { user, password })
}

struct Words<'a>(&'a str);

impl Words<'_> {
    /// Skips a macro definition (`macdef`), which ends with an empty line.
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
        let found = login(text, "cache.example.org").map(|login| login.authorization());
        assert_eq!(found, expected, "{text}");
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
}
