//! Splits a command line into options, values and other words.
//!
//! The rules come from `Plack::Runner`, which never refuses an option: `Getopt::Long` takes the
//! options that it knows, and a second pass makes `key => value` pairs of the others. This module
//! needs only one pass, because it deviates in two points. An unknown option takes the next word
//! only if that does not begin with a dash; in starman `--typo --workers 8` gives `typo` the value
//! `--workers`. And a known option is never taken for the value of the option before it, because
//! `--pid --daemonize` would write a file named `--daemonize`.
//!
//! # Source
//!
//! Plack 1.0050, `Plack::Runner::parse_options`; `Getopt::Long` 2.52 with `no_auto_abbrev`,
//! `no_ignore_case`, `pass_through`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::error::CliError;
use super::option::{KnownOption, OPTIONS, Spelling, Takes, split_switch};

/// One element of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    /// A known option.
    Known {
        option: &'static KnownOption,
        /// The option as spelled, without the value; for messages.
        spelled: String,
        value: Value,
    },
    /// A known option that requires a value and has none.
    Invalid(CliError),
    /// An unknown option.
    Unknown {
        spelled: String,
        value: Option<OsString>,
    },
    /// A word that is neither an option nor a value.
    Word(OsString),
}

/// The value of a known option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    None,
    Switch(bool),
    Text(OsString),
}

impl Value {
    pub(super) fn text(&self) -> Option<&OsStr> {
        match self {
            Self::Text(text) => Some(text),
            Self::None | Self::Switch(_) => None,
        }
    }
}

/// Splits a command line, without the program's name, into items.
pub(super) fn scan(arguments: impl IntoIterator<Item = OsString>) -> Vec<Item> {
    let mut rest = arguments.into_iter().peekable();
    let mut items = Vec::new();
    while let Some(argument) = rest.next() {
        if argument == "--" {
            items.extend(rest.by_ref().map(Item::Word));
            break;
        }
        let item = match Spelling::of(&argument) {
            None => Item::Word(argument),
            Some(spelling) => scan_option(&argument, spelling, &mut rest),
        };
        items.push(item);
    }
    items
}

type Rest<I> = std::iter::Peekable<I>;

fn scan_option<I: Iterator<Item = OsString>>(
    argument: &OsStr,
    spelling: Spelling<'_>,
    rest: &mut Rest<I>,
) -> Item {
    let Some((option, switch)) = spelling.find() else {
        return match cuddled(argument, spelling) {
            Some((option, value)) => Item::Known {
                option,
                spelled: format!("-{}", option.names[0]),
                value: Value::Text(value.to_owned()),
            },
            None => scan_unknown(spelling, rest),
        };
    };
    let spelled = spelled(spelling);
    let value = match (option.takes, switch) {
        // starman receives `--disable-keepalive=1` as a key of that name, which has no effect
        // there. The only sensible meaning is the switch.
        (_, Some(on)) => Value::Switch(on),
        (Takes::Nothing(_), None) => Value::Switch(match spelling.value {
            // For Perl, these are true. An option of both programs means the same in both.
            Some(text) if option.spec.is_some() && is_off(text) => false,
            text => text.is_none_or(is_true),
        }),
        (Takes::Toggle(_), None) => match spelling.value.map(ToOwned::to_owned) {
            Some(text) => Value::Switch(is_true(&text)),
            None => Value::Switch(next_plain_word(rest).is_none_or(|text| is_true(&text))),
        },
        (Takes::Perl(_) | Takes::Ignored { .. }, None) => spelling
            .value
            .map(ToOwned::to_owned)
            .or_else(|| next_plain_word(rest))
            .map_or(Value::None, Value::Text),
        (Takes::Value(expected, _) | Takes::File(expected, _), None) => match spelling.value {
            Some(text) => Value::Text(text.to_owned()),
            None if rest.peek().is_none_or(|next| is_known_option(next)) => {
                return Item::Invalid(CliError::ValueMissing {
                    option: spelled,
                    expected,
                    next: rest.peek().map(|next| lossy(next)),
                });
            }
            None => rest.next().map_or(Value::None, Value::Text),
        },
    };
    Item::Known {
        option,
        spelled,
        value,
    }
}

fn scan_unknown<I: Iterator<Item = OsString>>(spelling: Spelling<'_>, rest: &mut Rest<I>) -> Item {
    let name = String::from_utf8_lossy(spelling.name).replace('_', "-");
    let value = match spelling.value {
        Some(value) => Some(value.to_owned()),
        None if split_switch(&name).is_some() => None,
        None => next_plain_word(rest),
    };
    Item::Unknown {
        spelled: spelled(spelling),
        value,
    }
}

/// Splits `-Idir`, `-Mmodule` and `-eCODE`: only these short options have the value in the same
/// word.
///
/// Plack splits them first, so that it evaluates `-error-log` as code; here known names come first.
/// Neither Plack nor this function splits `-lX` and `-pX`: `-pid`, `-path` and `-loader` begin with
/// the same letters.
fn cuddled<'a>(
    argument: &'a OsStr,
    spelling: Spelling<'_>,
) -> Option<(&'static KnownOption, &'a OsStr)> {
    let bytes = argument.as_bytes();
    let name = match (spelling.dash_count, bytes.get(1)?) {
        (1, b'I') => "I",
        (1, b'M') => "M",
        (1, b'e') => "e",
        _ => return None,
    };
    let option = OPTIONS.iter().find(|option| option.names == [name])?;
    let value = bytes.get(2..).filter(|value| !value.is_empty())?;
    Some((option, OsStr::from_bytes(value)))
}

fn spelled(spelling: Spelling<'_>) -> String {
    let dashes = if spelling.dash_count == 2 { "--" } else { "-" };
    format!("{dashes}{}", String::from_utf8_lossy(spelling.name))
}

fn next_plain_word<I: Iterator<Item = OsString>>(rest: &mut Rest<I>) -> Option<OsString> {
    rest.next_if(|word| !word.as_bytes().starts_with(b"-"))
}

fn is_known_option(word: &OsStr) -> bool {
    word == "--" || Spelling::of(word).is_some_and(|spelling| spelling.find().is_some())
}

pub(super) fn lossy(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

/// Returns whether a text counts as true in Perl.
fn is_true(text: &OsStr) -> bool {
    !text.is_empty() && text != "0"
}

fn is_off(text: &OsStr) -> bool {
    ["false", "no", "off"].iter().any(|off| text == *off)
}

#[cfg(test)]
mod tests {
    use super::super::option::find;
    use super::*;

    #[track_caller]
    fn check(arguments: &[&str], expected: &[Item]) {
        assert_eq!(scan(arguments.iter().map(OsString::from)), expected);
    }

    fn known(name: &str) -> &'static KnownOption {
        find(name).expect("is known").0
    }

    fn text(name: &str, spelled: &str, value: &str) -> Item {
        Item::Known {
            option: known(name),
            spelled: spelled.to_owned(),
            value: Value::Text(value.into()),
        }
    }

    fn switch(name: &str, spelled: &str, on: bool) -> Item {
        Item::Known {
            option: known(name),
            spelled: spelled.to_owned(),
            value: Value::Switch(on),
        }
    }

    fn unknown(spelled: &str, value: Option<&str>) -> Item {
        Item::Unknown {
            spelled: spelled.to_owned(),
            value: value.map(OsString::from),
        }
    }

    fn word(word: &str) -> Item {
        Item::Word(word.into())
    }

    #[test]
    fn values_follow_or_are_joined_by_an_equals_sign() {
        check(&["--port", "80"], &[text("port", "--port", "80")]);
        check(&["--port=80"], &[text("port", "--port", "80")]);
        check(&["-p", "80"], &[text("port", "-p", "80")]);
        check(&["-p=80"], &[text("port", "-p", "80")]);
        check(&["--p", "80"], &[text("port", "--p", "80")]);
    }

    #[test]
    fn long_names_work_with_one_dash_and_with_underscores() {
        check(&["-pid", "f"], &[text("pid", "-pid", "f")]);
        check(&["-workers=8"], &[text("workers", "-workers", "8")]);
        check(
            &["--max_requests", "9"],
            &[text("max-requests", "--max_requests", "9")],
        );
        check(
            &["-error-log", "f"],
            &[text("error-log", "-error-log", "f")],
        );
    }

    #[test]
    fn unknown_options_swallow_one_plain_word() {
        check(
            &["--foo", "x", "y"],
            &[unknown("--foo", Some("x")), word("y")],
        );
        check(&["--foo=x", "y"], &[unknown("--foo", Some("x")), word("y")]);
        check(
            &["--foo", "-D"],
            &[unknown("--foo", None), switch("daemonize", "-D", true)],
        );
        check(&["--foo"], &[unknown("--foo", None)]);
        check(
            &["--enable-foo", "x"],
            &[unknown("--enable-foo", None), word("x")],
        );
        check(
            &["--disable_foo", "x"],
            &[unknown("--disable_foo", None), word("x")],
        );
        check(&["--no-foo", "x"], &[unknown("--no-foo", None), word("x")]);
    }

    #[test]
    fn short_options_are_not_bundled_with_their_value() {
        check(&["-p8080", "x"], &[unknown("-p8080", Some("x"))]);
        check(&["-l:5000"], &[unknown("-l:5000", None)]);
    }

    #[test]
    fn perl_options_may_be_cuddled() {
        check(&["-Ilib"], &[text("I", "-I", "lib")]);
        check(&["-MFoo=bar"], &[text("M", "-M", "Foo=bar")]);
        check(&["-eenable"], &[text("e", "-e", "enable")]);
        check(&["-e", "code"], &[text("e", "-e", "code")]);
        check(&["-enable-ssl"], &[switch("ssl", "-enable-ssl", true)]);
    }

    #[test]
    fn toggles_follow_perls_truth() {
        check(
            &["--disable-keepalive"],
            &[switch("keepalive", "--disable-keepalive", false)],
        );
        check(
            &["--keepalive=0"],
            &[switch("keepalive", "--keepalive", false)],
        );
        check(
            &["--keepalive", "0"],
            &[switch("keepalive", "--keepalive", false)],
        );
        check(&["--ssl", "1"], &[switch("ssl", "--ssl", true)]);
        check(
            &["--daemonize=1", "w"],
            &[switch("daemonize", "--daemonize", true), word("w")],
        );
    }

    #[test]
    fn a_value_is_not_taken_from_a_known_option() {
        let missing = |next: Option<&str>| {
            Item::Invalid(CliError::ValueMissing {
                option: "--pid".to_owned(),
                expected: "a file",
                next: next.map(str::to_owned),
            })
        };
        check(&["--pid"], &[missing(None)]);
        check(
            &["--pid", "-D"],
            &[missing(Some("-D")), switch("daemonize", "-D", true)],
        );
        check(&["--pid", "-strange"], &[text("pid", "--pid", "-strange")]);
        check(&["--pid", "-"], &[text("pid", "--pid", "-")]);
    }

    #[test]
    fn two_dashes_end_the_options() {
        check(&["--", "--port", "80"], &[word("--port"), word("80")]);
    }
}
