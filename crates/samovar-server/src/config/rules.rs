//! Parses the rules of a policy from the configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use samovar_cache::{PublicKey, Rule};

use super::{Value, nearest, unit};

/// Names of the conditions that a rule can have.
const FIELDS: [&str; 6] = [
    "roots",
    "signed-by",
    "ultimate",
    "names",
    "min-age",
    "max-age",
];

/// Parses a list of tables, one rule each. The error describes the expected value.
pub(super) fn rules(value: &Value) -> Result<Vec<Rule>, String> {
    match value {
        Value::List(tables) if !tables.is_empty() => tables
            .iter()
            .map(|table| match table {
                Value::Table(fields) => rule(fields),
                _ => Err("a list of tables, such as [{ names = [\"hello-*\"] }]".to_owned()),
            })
            .collect(),
        // Refuse an empty list: without a rule, every path may be read.
        _ => Err("a list of at least one table, such as [{ names = [\"hello-*\"] }]".to_owned()),
    }
}

fn rule(fields: &BTreeMap<String, Value>) -> Result<Rule, String> {
    let mut rule = Rule::default();
    if fields.is_empty() {
        return Err("a list of tables with a condition".to_owned());
    }
    for (name, value) in fields {
        match &**name {
            "roots" => rule.roots = texts(name, value, root)?,
            "signed-by" => rule.signed_by = texts(name, value, public_key)?,
            "names" => rule.names = texts(name, value, |text| Ok(text.to_owned()))?,
            "ultimate" if *value == Value::Switch(true) => rule.ultimate = true,
            "ultimate" => return Err("true in ultimate, or without it".to_owned()),
            "min-age" => rule.min_age = Some(age(name, value)?),
            "max-age" => rule.max_age = Some(age(name, value)?),
            _ => {
                let meant = match nearest(name, FIELDS) {
                    Some(near) => format!("made with {near} instead of {name:?}"),
                    None => format!("made with {} instead of {name:?}", FIELDS.join(", ")),
                };
                return Err(meant);
            }
        }
    }
    Ok(rule)
}

/// Converts a list of texts, or one text, to a list.
fn texts<T>(
    name: &str,
    value: &Value,
    make: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let one = |value: &Value| match value {
        Value::Text(text) if !text.is_empty() => make(text),
        _ => Err(format!("texts in {name}")),
    };
    match value {
        // Refuse an empty condition: such a rule would match every path.
        Value::List(values) if values.is_empty() => Err(format!(
            "a table whose {name} is a list of at least one text"
        )),
        Value::List(values) => values.iter().map(one).collect(),
        value => Ok(vec![one(value)?]),
    }
}

fn root(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    match path.is_absolute() {
        true => Ok(path.to_owned()),
        false => Err("a list of tables in which the roots are absolute paths".to_owned()),
    }
}

fn public_key(text: &str) -> Result<PublicKey, String> {
    PublicKey::parse(text).map_err(|_error| {
        "a list of tables in which signed-by has public keys, NAME:BASE64, whose NAME has no \
         blanks"
            .to_owned()
    })
}

fn age(name: &str, value: &Value) -> Result<std::time::Duration, String> {
    unit::time_of(value).ok_or_else(|| format!("seconds, or a time such as \"30 d\", in {name}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const KEY: &str = "test-1:A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=";

    fn read(text: &str) -> Result<Vec<Rule>, String> {
        rules(&super::super::toml::value(text).unwrap())
    }

    #[test]
    fn rules_are_parsed() {
        let text = format!(
            "[{{ roots = \"/nix/var/nix/profiles/team\", signed-by = [\"{KEY}\"], \
             names = [\"a-*\"] }}, \
             {{ ultimate = true, min-age = 60, max-age = \"2 h\" }}]"
        );
        let first = Rule {
            roots: vec![PathBuf::from("/nix/var/nix/profiles/team")],
            signed_by: vec![PublicKey::parse(KEY).unwrap()],
            names: vec!["a-*".to_owned()],
            ..Rule::default()
        };
        let second = Rule {
            ultimate: true,
            min_age: Some(Duration::from_secs(60)),
            max_age: Some(Duration::from_secs(7200)),
            ..Rule::default()
        };
        assert_eq!(read(&text), Ok(vec![first, second]));
    }

    #[test]
    fn rules_that_would_match_too_much_are_refused() {
        for (text, part) in [
            ("[]", "at least one table"),
            ("\"*\"", "at least one table"),
            ("[\"*\"]", "list of tables"),
            ("[{}]", "with a condition"),
            ("[{ names = [] }]", "names is a list of at least one text"),
            ("[{ names = [1] }]", "texts in names"),
            ("[{ names = \"\" }]", "texts in names"),
            ("[{ ultimate = false }]", "or without it"),
            ("[{ root = \"/x\" }]", "roots instead of \"root\""),
            ("[{ roots = \"x\" }]", "are absolute paths"),
            ("[{ signed-by = \"x\" }]", "has public keys"),
            ("[{ max-age = true }]", "seconds"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
