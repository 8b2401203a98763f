//! Which words are options, which are their values, and which are neither.
//!
//! The rules are those of `Plack::Runner`: `Getopt::Long` takes what it knows, and a second pass
//! makes `key => value` pairs of what is left, so that no option is ever refused. Two deviations
//! make one pass of it. An unknown option takes the next word only if that does not begin with a
//! dash (in starman `--typo --workers 8` gives `typo` the value `--workers`); and an option that
//! needs a value does not take a known option for one (`--pid --daemonize` would write the file
//! `--daemonize`).
//!
//! # Source
//!
//! Plack 1.0050, `Plack::Runner::parse_options`; `Getopt::Long` 2.52 with `no_auto_abbrev`,
//! `no_ignore_case`, `pass_through`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::option::{KnownOption, OPTIONS, OptionId, Spelling, Takes, split_switch};

/// One thing on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    /// A known option.
    Known {
        id: OptionId,
        /// What it is called in messages: as given, without the value.
        spelled: String,
        value: Value,
    },
    /// A known option that needs a value and has none.
    ValueMissing {
        spelled: String,
        expected: &'static str,
        /// The option that stands in its place.
        next: Option<OsString>,
    },
    /// An option nobody knows.
    Unknown {
        spelled: String,
        value: Option<OsString>,
    },
    /// A word that is no option and no value.
    Word(OsString),
}

/// What came with a known option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// Only for options that work without one.
    None,
    /// On or off.
    Switch(bool),
    /// A word.
    Text(OsString),
}

/// Takes a command line apart, without the program's name.
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
    let Some(found) = spelling.find() else {
        return match cuddled(argument, spelling) {
            Some((option, value)) => Item::Known {
                id: option.id,
                spelled: format!("-{}", option.names[0]),
                value: Value::Text(value.to_owned()),
            },
            None => scan_unknown(spelling, rest),
        };
    };
    let (id, spelled) = (found.option.id, spelled(spelling));
    let value = match (found.option.takes, found.switch) {
        // `--disable-keepalive=1` reaches starman as a key of that name, which means nothing to it.
        // The only sensible reading is the switch.
        (_, Some(on)) => Value::Switch(on),
        (Takes::Nothing, None) => Value::Switch(spelling.value.is_none_or(is_true)),
        (Takes::Toggle, None) => match spelling.value.map(ToOwned::to_owned) {
            Some(text) => Value::Switch(is_true(&text)),
            None => Value::Switch(next_plain_word(rest).is_none_or(|text| is_true(&text))),
        },
        (Takes::Optional, None) => spelling
            .value
            .map(ToOwned::to_owned)
            .or_else(|| next_plain_word(rest))
            .map_or(Value::None, Value::Text),
        (Takes::Value(expected), None) => match spelling.value {
            Some(text) => Value::Text(text.to_owned()),
            None if rest.peek().is_none_or(|next| is_known_option(next)) => {
                return Item::ValueMissing {
                    spelled,
                    expected,
                    next: rest.peek().cloned(),
                };
            }
            None => rest.next().map_or(Value::None, Value::Text),
        },
    };
    Item::Known { id, spelled, value }
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

/// `-Idir`, `-Mmodule` and `-eCODE`: the only short options with the value in the same word.
///
/// Plack splits them before anything else, so that `-error-log` is code to be evaluated; here names
/// that are known come first. `-lX` and `-pX` are not split by Plack and not split here: `-pid`,
/// `-path`, `-loader` begin with the same letters.
fn cuddled<'a>(
    argument: &'a OsStr,
    spelling: Spelling<'_>,
) -> Option<(&'static KnownOption, &'a OsStr)> {
    let bytes = argument.as_bytes();
    let id = match (spelling.dash_count, bytes.get(1)?) {
        (1, b'I') => OptionId::Include,
        (1, b'M') => OptionId::Module,
        (1, b'e') => OptionId::Eval,
        _ => return None,
    };
    let option = OPTIONS.iter().find(|option| option.id == id)?;
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

/// Perl's idea of truth.
fn is_true(text: &OsStr) -> bool {
    !text.is_empty() && text != "0"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(arguments: &[&str], expected: &[Item]) {
        assert_eq!(scan(arguments.iter().map(OsString::from)), expected);
    }

    fn text(id: OptionId, spelled: &str, value: &str) -> Item {
        Item::Known {
            id,
            spelled: spelled.to_owned(),
            value: Value::Text(value.into()),
        }
    }

    fn switch(id: OptionId, spelled: &str, on: bool) -> Item {
        Item::Known {
            id,
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
        check(&["--port", "80"], &[text(OptionId::Port, "--port", "80")]);
        check(&["--port=80"], &[text(OptionId::Port, "--port", "80")]);
        check(&["-p", "80"], &[text(OptionId::Port, "-p", "80")]);
        check(&["-p=80"], &[text(OptionId::Port, "-p", "80")]);
        check(&["--p", "80"], &[text(OptionId::Port, "--p", "80")]);
    }

    #[test]
    fn long_names_work_with_one_dash_and_with_underscores() {
        check(&["-pid", "f"], &[text(OptionId::Pid, "-pid", "f")]);
        check(&["-workers=8"], &[text(OptionId::Workers, "-workers", "8")]);
        check(
            &["--max_requests", "9"],
            &[text(OptionId::MaxRequests, "--max_requests", "9")],
        );
        check(
            &["-error-log", "f"],
            &[text(OptionId::ErrorLog, "-error-log", "f")],
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
            &[
                unknown("--foo", None),
                switch(OptionId::Daemonize, "-D", true),
            ],
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
        check(&["-Ilib"], &[text(OptionId::Include, "-I", "lib")]);
        check(&["-MFoo=bar"], &[text(OptionId::Module, "-M", "Foo=bar")]);
        check(&["-eenable"], &[text(OptionId::Eval, "-e", "enable")]);
        check(&["-e", "code"], &[text(OptionId::Eval, "-e", "code")]);
        check(
            &["-enable-ssl"],
            &[switch(OptionId::Ssl, "-enable-ssl", true)],
        );
    }

    #[test]
    fn toggles_follow_perls_truth() {
        check(
            &["--disable-keepalive"],
            &[switch(OptionId::Keepalive, "--disable-keepalive", false)],
        );
        check(
            &["--keepalive=0"],
            &[switch(OptionId::Keepalive, "--keepalive", false)],
        );
        check(
            &["--keepalive", "0"],
            &[switch(OptionId::Keepalive, "--keepalive", false)],
        );
        check(&["--ssl", "1"], &[switch(OptionId::Ssl, "--ssl", true)]);
        check(
            &["--daemonize=1", "w"],
            &[switch(OptionId::Daemonize, "--daemonize", true), word("w")],
        );
    }

    #[test]
    fn a_value_is_not_taken_from_a_known_option() {
        let missing = |next: Option<&str>| Item::ValueMissing {
            spelled: "--pid".to_owned(),
            expected: "a file",
            next: next.map(OsString::from),
        };
        check(&["--pid"], &[missing(None)]);
        check(
            &["--pid", "-D"],
            &[missing(Some("-D")), switch(OptionId::Daemonize, "-D", true)],
        );
        check(
            &["--pid", "-strange"],
            &[text(OptionId::Pid, "--pid", "-strange")],
        );
        check(&["--pid", "-"], &[text(OptionId::Pid, "--pid", "-")]);
    }

    #[test]
    fn two_dashes_end_the_options() {
        check(&["--", "--port", "80"], &[word("--port"), word("80")]);
    }
}
