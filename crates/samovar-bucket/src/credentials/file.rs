//! Files of credentials: the shared file of Amazon's tools, or two lines.

use std::path::Path;
use std::sync::Arc;

use crate::credentials::login::Found;
use crate::source::CredentialError;

/// Reads the credentials in the section of a file.
///
/// A file without any section whose first two lines are words has a key id and a secret.
pub(crate) fn read(file: &Path, section: &str) -> Result<Found, CredentialError> {
    let text = std::fs::read_to_string(file).map_err(|source| CredentialError::Unreadable {
        file: file.to_owned(),
        source: Arc::new(source),
    })?;
    parse(&text, section).ok_or_else(|| CredentialError::Form {
        file: file.to_owned(),
        section: section.to_owned(),
    })
}

fn parse(text: &str, section: &str) -> Option<Found> {
    let lines = text.lines().map(str::trim);
    let lines: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with(['#', ';']))
        .collect();
    match *lines {
        [key_id, secret] if is_bare(key_id) && !secret.starts_with('[') => {
            Some(Found::keys(key_id, secret, None))
        }
        _ => in_section(&lines, section),
    }
}

/// Whether a line is a key id alone.
fn is_bare(line: &str) -> bool {
    !line.starts_with('[') && !line.contains(['=', ' '])
}

fn in_section(lines: &[&str], section: &str) -> Option<Found> {
    // Lines before the first section are of the default one.
    let mut current = "default";
    let (mut key_id, mut secret, mut token) = (None, None, None);
    for line in lines {
        if let Some(name) = line.strip_prefix('[') {
            current = name.trim_end_matches(']').trim();
            continue;
        }
        let Some((name, value)) = line.split_once('=') else {
            continue;
        };
        let field = match name.trim() {
            "aws_access_key_id" => &mut key_id,
            "aws_secret_access_key" => &mut secret,
            "aws_session_token" => &mut token,
            _ => continue,
        };
        if current == section && !value.trim().is_empty() {
            *field = Some(value.trim());
        }
    }
    Some(Found::keys(key_id?, secret?, token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::login::Login;

    #[track_caller]
    fn check(text: &str, section: &str, expected: Option<(&str, &str, Option<&str>)>) {
        let found = parse(text, section);
        let keys = found.as_ref().map(|found| match &found.login {
            Login::Keys(keys) => (keys.key(), keys.secret(), keys.token()),
            Login::Anonymous => panic!("no keys"),
        });
        assert_eq!(keys, expected);
    }

    #[test]
    fn the_form_of_the_shared_file_is_read() {
        let text = "# mine\n[default]\naws_access_key_id = A\naws_secret_access_key=B=\n\n[ci]\n\
                    region = eu\naws_access_key_id=C\naws_secret_access_key = D/+\n\
                    aws_session_token = E==\n";
        check(text, "default", Some(("A", "B=", None)));
        check(text, "ci", Some(("C", "D/+", Some("E=="))));
        check(text, "none", None);
    }

    #[test]
    fn two_lines_are_a_key_id_and_a_secret() {
        check("GK01\nab/c=\n", "default", Some(("GK01", "ab/c=", None)));
        check(
            "\n# garage\nGK01\n\nabc",
            "any",
            Some(("GK01", "abc", None)),
        );
        check("GK01\n", "default", None);
        check("GK01\nabc\ndef\n", "default", None);
        check("[default]\nabc\n", "default", None);
        check("", "default", None);
    }

    #[test]
    fn lines_without_a_section_are_of_the_default_one() {
        let text = "aws_access_key_id=A\naws_secret_access_key=B\n";
        check(text, "default", Some(("A", "B", None)));
        check(text, "ci", None);
    }

    #[test]
    fn an_error_names_the_file_and_no_secret() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("credentials");
        let error = read(&file, "default").unwrap_err();
        assert!(error.to_string().contains("credentials cannot be read"));
        std::fs::write(&file, "aws_access_key_id=A\naws_secret=verysecret\nx\n").unwrap();
        let error = read(&file, "ci").unwrap_err().to_string();
        assert!(
            error.contains("[ci]") && !error.contains("verysecret"),
            "{error}"
        );
    }
}
