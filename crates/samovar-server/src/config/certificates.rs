//! Parses the entries of `tls.certificates`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::options::FindCredential;
use super::{CertificateFiles, Value, nearest};

/// Names of the fields of an entry, both required.
const FIELDS: [&str; 2] = ["certificate", "key"];

/// Parses a list of tables, one certificate each. The error describes the expected value.
pub(super) fn certificates(
    value: &Value,
    credential: FindCredential<'_>,
) -> Result<Vec<CertificateFiles>, String> {
    let Value::List(tables) = value else {
        return Err(described(""));
    };
    // Refuse an empty list: it would turn TLS off.
    if tables.is_empty() {
        return Err(described("at least one table"));
    }
    let numbered = tables.iter().zip(1..);
    numbered
        .map(|(table, entry)| match table {
            Value::Table(fields) => files(fields, entry, credential),
            _ => Err(described("")),
        })
        .collect()
}

/// Describes the expected value. `what`: what the list must have; empty for tables.
fn described(what: &str) -> String {
    let what = if what.is_empty() { "tables" } else { what };
    format!("a list of {what}, such as [{{ certificate = \"a.pem\", key = \"a.key\" }}]")
}

fn files(
    fields: &BTreeMap<String, Value>,
    entry: usize,
    credential: FindCredential<'_>,
) -> Result<CertificateFiles, String> {
    if let Some(name) = fields.keys().find(|name| !FIELDS.contains(&&***name)) {
        let meant = match nearest(name, FIELDS) {
            Some(near) => near.to_owned(),
            None => FIELDS.join(" and "),
        };
        return Err(format!("made with {meant} instead of {name:?}"));
    }
    let path = |field: &str| -> Result<PathBuf, String> {
        match fields.get(field) {
            Some(Value::Text(text)) if !text.is_empty() => credential(text),
            _ => Err(format!("a list of tables with a path in {field} each")),
        }
    };
    let [certificate, key] = FIELDS.map(path);
    Ok(CertificateFiles {
        certificate: certificate?,
        key: key?,
        entry: Some(entry),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<CertificateFiles>, String> {
        let value = super::super::toml::value(text).unwrap();
        certificates(&value, &|text| Ok(PathBuf::from("/etc").join(text)))
    }

    #[test]
    fn entries_are_numbered() {
        let text = "[{ certificate = \"a\", key = \"b\" }, { key = \"/d\", certificate = \"/c\" }]";
        let files = |certificate: &str, key: &str, entry| CertificateFiles {
            certificate: certificate.into(),
            key: key.into(),
            entry: Some(entry),
        };
        let expected = vec![files("/etc/a", "/etc/b", 1), files("/c", "/d", 2)];
        assert_eq!(read(text), Ok(expected));
    }

    #[test]
    fn incomplete_entries_are_refused() {
        for (text, part) in [
            ("[]", "at least one table"),
            ("\"a\"", "a list of tables, such as"),
            ("[\"a\"]", "a list of tables, such as"),
            ("[{}]", "a path in certificate each"),
            ("[{ certificate = \"a\" }]", "a path in key each"),
            (
                "[{ certificate = \"a\", key = \"\" }]",
                "a path in key each",
            ),
            ("[{ certificate = \"a\", key = 1 }]", "a path in key each"),
            ("[{ certificat = \"a\" }]", "made with certificate instead"),
            (
                "[{ names = \"a\" }]",
                "made with certificate and key instead",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
