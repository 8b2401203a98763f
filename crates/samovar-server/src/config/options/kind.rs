//! Types of options' values.

use std::time::Duration;

use crate::config::toml::{self, Value};
use crate::config::value;

/// Type of an option's values, with bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Text that is not empty.
    Text,
    /// Path of a file or directory, or `credential:NAME`.
    Path,
    /// Whole number between these bounds.
    Count(u64, u64),
    /// Number of bytes between these bounds: a number, or a number with a unit, as in `"64 MiB"`.
    Size(u64, u64),
    /// Time: a number of seconds, or a number with a unit, as in `"10 min"`.
    Time,
    /// Time between these bounds, which are milliseconds.
    TimeWithin(u64, u64),
    /// `true` or `false`.
    Switch,
    /// One of these words; the first is the default.
    Word(&'static [&'static str]),
    /// List of texts, or a single text. In the environment, the texts are separated by white space;
    /// on the command line, the option is repeated for each text.
    List,
    /// URL of a cache, which may contain a login.
    Url,
    /// URL of another kind, which may contain a login; described by its beginning.
    UrlOf(&'static str),
    /// List of URLs of caches, which are given as those of [`List`](Self::List).
    Urls,
    /// List of tables. In the environment and on the command line it is written as in the file.
    Tables,
}

impl Kind {
    /// Parses text of the environment or the command line; `None` if it is not of this type.
    pub(in crate::config) fn value(self, text: &str) -> Option<Value> {
        match self {
            Self::Count(..) => text.trim().parse().ok().map(Value::Count),
            Self::Switch => match text.trim() {
                "true" | "1" | "yes" | "on" => Some(Value::Switch(true)),
                "false" | "0" | "no" | "off" => Some(Value::Switch(false)),
                _ => None,
            },
            Self::List | Self::Urls => match toml::value(text) {
                Some(list @ Value::List(_)) => Some(list),
                _ => {
                    let words = text.split_ascii_whitespace();
                    let words = words.map(|word| Value::Text(word.to_owned()));
                    Some(Value::List(words.collect()))
                }
            },
            Self::Tables => toml::value(text),
            Self::Size(..) | Self::Time | Self::TimeWithin(..) => Some(match text.trim().parse() {
                Ok(count) => Value::Count(count),
                Err(_) => Value::Text(text.to_owned()),
            }),
            Self::Text | Self::Path | Self::Word(_) | Self::Url | Self::UrlOf(_) => {
                Some(Value::Text(text.to_owned()))
            }
        }
    }

    /// Returns the placeholder for a value in help, such as `PATH`.
    pub fn value_name(self) -> String {
        match self {
            Self::Switch => "true|false".to_owned(),
            Self::List | Self::Text => "TEXT".to_owned(),
            Self::Word(words) => words.join("|"),
            Self::Path => "PATH".to_owned(),
            Self::Count(..) => "NUMBER".to_owned(),
            Self::Size(..) => "BYTES".to_owned(),
            Self::Time | Self::TimeWithin(..) => "TIME".to_owned(),
            Self::Url | Self::UrlOf(_) | Self::Urls => "URL".to_owned(),
            Self::Tables => "TOML".to_owned(),
        }
    }

    /// Describes valid values, for an error message.
    pub(in crate::config) fn expected(self) -> String {
        match self {
            Self::Text => "a text".to_owned(),
            Self::Path => "a path".to_owned(),
            Self::Count(min, u64::MAX) => format!("a whole number from {min}"),
            Self::Count(min, max) => format!("a whole number from {min} to {max}"),
            Self::Size(0, u64::MAX) => "a number of bytes, such as 4096 or \"64 MiB\"".to_owned(),
            Self::Size(min, u64::MAX) => {
                format!("a number of bytes, at least {min}, such as 4096 or \"64 MiB\"")
            }
            Self::Size(min, max) => {
                format!("a number of bytes from {min} to {max}, such as 4096 or \"64 MiB\"")
            }
            Self::Time => "a number of seconds, or a time such as \"10 min\"".to_owned(),
            Self::TimeWithin(min, max) => format!("a time from {} to {}", of_ms(min), of_ms(max)),
            Self::Switch => "true or false".to_owned(),
            Self::Word(words) => words.join(" or "),
            Self::Url => value::UPSTREAM_URL.to_owned(),
            Self::UrlOf(beginning) => beginning.to_owned(),
            Self::Urls => "a list of URLs; a table of upstreams is called upstreams".to_owned(),
            Self::List => "a list of texts".to_owned(),
            Self::Tables => "a list of tables".to_owned(),
        }
    }
}

/// Formats a bound of a time, in milliseconds.
fn of_ms(milliseconds: u64) -> String {
    seconds(Duration::from_millis(milliseconds))
}

/// Formats a time, which must not be `Duration::MAX`.
pub(super) fn seconds(time: Duration) -> String {
    match time.as_secs() {
        _ if time.subsec_millis() > 0 => format!("{} ms", time.as_millis()),
        minutes if minutes >= 120 && minutes % 60 == 0 => format!("{} min", minutes / 60),
        seconds => format!("{seconds} s"),
    }
}
