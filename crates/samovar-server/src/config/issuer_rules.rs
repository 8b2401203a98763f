//! Parses the URLs of issuers of ID tokens, and their rules.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use samovar_cache::{LIFETIME_MAX, LIFETIME_MIN};
use samovar_nix::Glob;
use samovar_oidc::pattern::Pattern;
use samovar_storage::token::Rights;

use super::{Value, nearest, unit};

/// Names of what a rule can have.
const FIELDS: [&str; 5] = ["claims", "cache", "names", "rights", "expires"];

/// A rule whose claims are not compared with the issuer yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RuleDraft {
    pub(super) claims: Vec<(String, Vec<Pattern>)>,
    pub(super) cache: Option<Glob>,
    pub(super) names: Option<Glob>,
    pub(super) rights: Rights,
    pub(super) lifetime: Duration,
}

/// Parses the URL of an issuer. Returns `None` if it is not one, or if ID tokens could be forged on
/// the way: HTTP is for issuers on this machine alone. The URL is not changed, because tokens must
/// state the same text.
pub(super) fn issuer_url(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let is_loopback = || {
        let address: Option<IpAddr> = host.parse().ok();
        host == "localhost" || address.is_some_and(|address| address.is_loopback())
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/[]%".contains(&byte);
    let is_url = !host.is_empty() && rest.bytes().all(is_plain);
    let is_safe = scheme == "https" || scheme == "http" && is_loopback();
    (is_url && is_safe).then(|| text.to_owned())
}

/// Parses a list of tables, one rule each. The error describes the expected value.
pub(super) fn rules(value: &Value) -> Result<Vec<RuleDraft>, String> {
    const EXAMPLE: &str = "such as [{ claims = { repository = \"example/app\" } }]";
    match value {
        Value::List(tables) if !tables.is_empty() => tables
            .iter()
            .map(|table| match table {
                Value::Table(fields) => rule(fields),
                _ => Err(format!("a list of tables, {EXAMPLE}")),
            })
            .collect(),
        _ => Err(format!("a list of at least one table, {EXAMPLE}")),
    }
}

fn rule(fields: &BTreeMap<String, Value>) -> Result<RuleDraft, String> {
    let mut rule = RuleDraft {
        claims: Vec::new(),
        cache: None,
        names: None,
        rights: Rights {
            read: true,
            push: true,
            pin: false,
        },
        lifetime: LIFETIME_MAX,
    };
    for (name, value) in fields {
        match &**name {
            "claims" => rule.claims = claims(value)?,
            "cache" => {
                let is_of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
                rule.cache = Some(glob(name, value, is_of_name)?);
            }
            "names" => {
                let is_of_name = |c: char| c.is_ascii_alphanumeric() || "+-._=".contains(c);
                rule.names = Some(glob(name, value, is_of_name)?);
            }
            "rights" => rule.rights = rights(value)?,
            "expires" => rule.lifetime = lifetime(value)?,
            _ => {
                return Err(match nearest(name, FIELDS) {
                    Some(near) => format!("made with {near} instead of {name:?}"),
                    None => format!("made with {} instead of {name:?}", FIELDS.join(", ")),
                });
            }
        }
    }
    match rule.claims.is_empty() {
        true => Err(
            "a list of tables with claims: without them, a rule would admit every token \
                     of the issuer"
                .to_owned(),
        ),
        false => Ok(rule),
    }
}

/// Parses the conditions on claims: for each claim a pattern, or a list of patterns.
fn claims(value: &Value) -> Result<Vec<(String, Vec<Pattern>)>, String> {
    let Value::Table(claims) = value else {
        return Err("a table in claims, such as { repository = \"example/app\" }".to_owned());
    };
    let pattern = |name: &str, value: &Value| match value {
        Value::Text(text) if !text.is_empty() => Ok(Pattern::new(text)),
        _ => Err(format!(
            "a text, or a list of texts, for the claim {name:?}"
        )),
    };
    let one = |(name, value): (&String, &Value)| {
        let patterns: Result<Vec<_>, _> = match value {
            Value::List(values) => values.iter().map(|value| pattern(name, value)).collect(),
            value => pattern(name, value).map(|pattern| vec![pattern]),
        };
        Ok((name.clone(), patterns?))
    };
    claims.iter().map(one).collect()
}

/// Parses a pattern. Refuses a pattern that can match no name, because of a character.
fn glob(field: &str, value: &Value, is_of_name: impl Fn(char) -> bool) -> Result<Glob, String> {
    let text = value.as_text().filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| format!("a text in {field}; left out, it is for all"))?;
    match text.chars().find(|c| !"*?".contains(*c) && !is_of_name(*c)) {
        Some(c) => Err(format!(
            "a pattern in {field} without {c:?}, which no name has"
        )),
        None => Ok(Glob::new(text)),
    }
}

fn rights(value: &Value) -> Result<Rights, String> {
    let texts = match value {
        Value::List(values) => values.iter().map(Value::as_text).collect(),
        value => value.as_text().map(|text| vec![text]),
    };
    let rights = texts.and_then(|texts: Vec<&str>| texts.join(",").parse().ok());
    rights.ok_or_else(|| "a list of read, push and pin in rights".to_owned())
}

fn lifetime(value: &Value) -> Result<Duration, String> {
    let time = unit::time_of(value);
    let time = time.filter(|time| (LIFETIME_MIN..=LIFETIME_MAX).contains(time));
    time.ok_or_else(|| "a time from 1 min to 1 h in expires".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<RuleDraft>, String> {
        rules(&super::super::toml::value(text).unwrap())
    }

    #[test]
    fn urls_of_issuers() {
        for good in [
            "https://token.actions.githubusercontent.com",
            "https://gitlab.example.org:8443/sub/",
            "https://Example.org",
            "http://127.0.0.1:8000",
            "http://localhost:8000/realms/ci",
            "http://[::1]:8000",
        ] {
            assert_eq!(issuer_url(good).as_deref(), Some(good));
        }
        for bad in [
            "",
            "gitlab.com",
            "http://gitlab.com",
            "http://127.0.0.1.example.org",
            "http://localhost@example.org",
            "https://user@example.org",
            "https://a?b",
            "https://a#b",
            "https://",
            "https:///x",
            "ftp://a",
            "https://a b",
        ] {
            assert_eq!(issuer_url(bad), None, "{bad}");
        }
    }

    #[test]
    fn rules_are_parsed() {
        let rules = read(
            "[{ claims = { repository = \"example/*\", ref = [\"a\", \"b\"] }, cache = \"team-*\", \
             names = \"app-*\", rights = [\"push\", \"pin\"], expires = \"10 min\" }, \
             { claims = { sub = \"x\" }, rights = \"read\" }]",
        );
        let rules = rules.unwrap();
        let claims = &rules[0].claims;
        assert_eq!(
            claims[0],
            ("ref".to_owned(), vec![Pattern::new("a"), Pattern::new("b")])
        );
        assert_eq!(
            claims[1],
            ("repository".to_owned(), vec![Pattern::new("example/*")])
        );
        assert_eq!(rules[0].cache, Some(Glob::new("team-*")));
        assert_eq!(rules[0].names, Some(Glob::new("app-*")));
        assert_eq!(rules[0].rights.to_string(), "push,pin");
        assert_eq!(rules[0].lifetime, Duration::from_secs(600));
        assert_eq!((&rules[1].cache, &rules[1].names), (&None, &None));
        assert_eq!(rules[1].rights.to_string(), "read");
        assert_eq!(rules[1].lifetime, LIFETIME_MAX);
        let default = read("[{ claims = { sub = \"x\" } }]").unwrap();
        assert_eq!(default[0].rights.to_string(), "read,push");
    }

    #[test]
    fn wrong_rules_are_refused() {
        for (text, part) in [
            ("[]", "at least one table"),
            ("{ claims = { sub = \"x\" } }", "at least one table"),
            ("[\"x\"]", "a list of tables"),
            ("[{}]", "tables with claims"),
            ("[{ claims = {} }]", "tables with claims"),
            ("[{ claims = \"x\" }]", "a table in claims"),
            ("[{ claims = { sub = 1 } }]", "for the claim \"sub\""),
            ("[{ claims = { sub = \"\" } }]", "for the claim \"sub\""),
            (
                "[{ claims = { sub = { x = \"y\" } } }]",
                "for the claim \"sub\"",
            ),
            (
                "[{ claim = { sub = \"x\" } }]",
                "claims instead of \"claim\"",
            ),
            (
                "[{ claims = { sub = \"x\" }, caches = \"a\" }]",
                "cache instead of \"caches\"",
            ),
            (
                "[{ claims = { sub = \"x\" }, cache = \"Main\" }]",
                "without 'M'",
            ),
            (
                "[{ claims = { sub = \"x\" }, names = \"a/b\" }]",
                "without '/'",
            ),
            (
                "[{ claims = { sub = \"x\" }, names = \"\" }]",
                "a text in names",
            ),
            (
                "[{ claims = { sub = \"x\" }, rights = [] }]",
                "a list of read",
            ),
            (
                "[{ claims = { sub = \"x\" }, rights = [\"delete\"] }]",
                "a list of read",
            ),
            (
                "[{ claims = { sub = \"x\" }, expires = \"61 min\" }]",
                "from 1 min to 1 h",
            ),
            (
                "[{ claims = { sub = \"x\" }, expires = 59 }]",
                "from 1 min to 1 h",
            ),
            (
                "[{ claims = { sub = \"x\" }, expires = \"never\" }]",
                "from 1 min to 1 h",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
