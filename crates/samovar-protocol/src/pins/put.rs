//! `PUT pin/<name>`: pins a path.
//!
//! # Grammar
//!
//! ```text
//! request = base-name *(LF ("host " text / "message " text)) [LF]
//! answer  = "pinned " generation " " base-name LF "end 1" LF
//! ```
//!
//! `text` is percent-encoded. Each of the two lines occurs at most once.

use samovar_nix::StorePath;

use crate::answer::{AnswerError, Lines};
use crate::line::{number, words};
use crate::names::{PIN_TEXT_LEN_MAX, PinText};
use crate::percent::{decode, encode};

/// Maximum length of a request, in bytes: a base name of at most 244 bytes, and two lines with
/// texts of which each byte may be percent-encoded.
pub const PUT_LEN_MAX: u64 = 1024 + 2 * 3 * PIN_TEXT_LEN_MAX as u64;

/// A request to pin a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// The path to pin.
    pub path: StorePath,
    /// The client's host.
    pub host: Option<PinText>,
    /// The client's message.
    pub message: Option<PinText>,
}

/// Reason why a request is malformed. The text names the line and the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The first line is no path.
    #[error(
        "the body does not begin with the base name of a store path: send the part of the path \
         after /nix/store/"
    )]
    Path,
    /// A line has another name.
    #[error("unknown line {0:?} in the body: use host and message")]
    Unknown(String),
    /// Two lines have this name.
    #[error("the body has two lines {0}: send one")]
    Twice(&'static str),
    /// The text of a line with this name is malformed.
    #[error(
        "the text of the line {0} must be percent-encoded, and have 1 to {PIN_TEXT_LEN_MAX} bytes \
         of UTF-8 before that"
    )]
    Text(&'static str),
}

impl Put {
    /// Returns the request, without its optional last LF.
    #[must_use]
    pub fn text(&self) -> String {
        let (host, message) = (&self.host, &self.message);
        Self::text_of(
            &self.path,
            host.as_ref().map(PinText::as_str),
            message.as_ref().map(PinText::as_str),
        )
    }

    /// Returns the request with these texts, whose length the server checks.
    #[must_use]
    pub fn text_of(path: &StorePath, host: Option<&str>, message: Option<&str>) -> String {
        let mut request = path.base_name().to_owned();
        for (word, text) in [("\nhost ", host), ("\nmessage ", message)] {
            if let Some(text) = text {
                request.push_str(word);
                request.push_str(&encode(text));
            }
        }
        request
    }

    /// Parses a request.
    ///
    /// # Errors
    ///
    /// Any [`PutError`].
    pub fn parse(body: &[u8]) -> Result<Self, PutError> {
        let text = std::str::from_utf8(body).unwrap_or_default();
        let text = text.strip_suffix('\n').unwrap_or(text);
        let mut lines = text.split('\n');
        let path = lines.next().unwrap_or_default();
        let mut request = Self {
            path: StorePath::from_base_name(path).map_err(|_error| PutError::Path)?,
            host: None,
            message: None,
        };
        for line in lines {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            let (name, field) = match name {
                "host" => ("host", &mut request.host),
                "message" => ("message", &mut request.message),
                _ => return Err(PutError::Unknown(name.to_owned())),
            };
            if field.is_some() {
                return Err(PutError::Twice(name));
            }
            let text = decode(value).and_then(|text| text.parse().ok());
            *field = Some(text.ok_or(PutError::Text(name))?);
        }
        Ok(request)
    }
}

/// The answer to a request whose path is pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// Number of the generation that has the path.
    pub number: u64,
    /// The path.
    pub path: StorePath,
}

impl Pinned {
    /// Returns the answer.
    #[must_use]
    pub fn text(&self) -> String {
        format!("pinned {} {}\nend 1\n", self.number, self.path.base_name())
    }

    /// Parses the answer.
    ///
    /// # Errors
    ///
    /// Any [`AnswerError`].
    pub fn parse(text: &str) -> Result<Self, AnswerError> {
        let line = Lines::single(text)?;
        Self::parse_line(line).ok_or_else(|| AnswerError::line(line))
    }

    fn parse_line(line: &str) -> Option<Self> {
        let [b"pinned", generation, path] = words(line.as_bytes())? else {
            return None;
        };
        Some(Self {
            number: number(generation)?,
            path: StorePath::from_base_name(std::str::from_utf8(path).ok()?).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::damage::damage;

    const PATH: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5-app";

    #[test]
    fn bodies() {
        let parse = |rest: &str| Put::parse(format!("{PATH}{rest}").as_bytes());
        let of = |host: Option<&str>, message: Option<&str>| {
            let text = |text: &str| text.parse().unwrap();
            Ok(Put {
                path: StorePath::from_base_name(PATH).unwrap(),
                host: host.map(text),
                message: message.map(text),
            })
        };
        assert_eq!(parse(""), of(None, None));
        assert_eq!(parse("\n"), of(None, None));
        assert_eq!(parse("\nhost a"), of(Some("a"), None));
        assert_eq!(
            parse("\nmessage a%20%C3%A4%0Ab\nhost x-1\n"),
            of(Some("x-1"), Some("a \u{e4}\nb"))
        );
        let longest = "a".repeat(PIN_TEXT_LEN_MAX);
        assert_eq!(
            parse(&format!("\nhost {longest}")),
            of(Some(&longest), None)
        );
        let encoded = "%61".repeat(PIN_TEXT_LEN_MAX);
        assert_eq!(
            parse(&format!("\nhost {encoded}")),
            of(Some(&longest), None)
        );
        for wrong in [
            "\n\n",
            "\nhost",
            "\nhost ",
            "\nhost a b",
            "\nhost  a",
            "\nhost a\nhost a",
            "\nhost a\r\n",
            "\nhost %2",
            "\nhost %FF",
            "\nhost \u{e4}",
            "\nhosts a",
            " \nhost a",
            &format!("\nhost {longest}a"),
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn encoded_texts_are_decoded(
            host in prop::option::of(".{1,80}"),
            message in prop::option::of(".{1,80}"),
            is_reversed: bool,
        ) {
            let line = |name: &str, text: &Option<String>| {
                let text = text.as_ref();
                text.map(|text| format!("\n{name} {}", encode(text)))
            };
            let mut lines = vec![line("host", &host), line("message", &message)];
            if is_reversed {
                lines.reverse();
            }
            let lines: String = lines.into_iter().flatten().collect();
            let content = Put::parse(format!("{PATH}{lines}\n").as_bytes()).unwrap();
            prop_assert_eq!(content.host.as_ref().map(PinText::as_str), host.as_deref());
            prop_assert_eq!(content.message.as_ref().map(PinText::as_str), message.as_deref());
        }

        #[test]
        fn any_body_is_parsed_or_refused_in_one_line(
            start in prop_oneof![Just(PATH), Just("")],
            rest in prop::collection::vec(any::<u8>(), 0..40),
            word in prop_oneof![Just("\nhost "), Just("\nmessage "), Just("\n")],
        ) {
            let body = [start.as_bytes(), word.as_bytes(), &rest].concat();
            if let Err(fault) = Put::parse(&body) {
                let fault = fault.to_string();
                prop_assert!(!fault.is_empty() && !fault.contains('\n'), "{fault}");
            }
        }

        #[test]
        fn requests_and_answers_are_read_as_they_were_written(
            host in prop::option::of("(?s).{1,12}"),
            message in prop::option::of("(?s).{1,12}"),
            number: u64,
            damage in damage(),
        ) {
            let path = StorePath::from_base_name(PATH).unwrap();
            let text = |text: &Option<String>| text.as_ref().map(|text| text.parse().unwrap());
            let request = Put { path: path.clone(), host: text(&host), message: text(&message) };
            let text = request.text();
            prop_assert_eq!(Put::parse(text.as_bytes()), Ok(request));
            if let Ok(read) = Put::parse(&damage.of(text.as_bytes())) {
                let again = read.text();
                prop_assert_eq!(Put::parse(again.as_bytes()), Ok(read));
            }
            let pinned = Pinned { number, path };
            let text = pinned.text();
            prop_assert_eq!(Pinned::parse(&text), Ok(pinned));
            let damaged = damage.of_text(&text);
            if let Ok(read) = Pinned::parse(&damaged) {
                prop_assert_eq!(read.text(), damaged);
            }
        }
    }

    #[test]
    fn answers() {
        let text = format!("pinned 3 {PATH}\nend 1\n");
        assert_eq!(Pinned::parse(&text).map(|pinned| pinned.number), Ok(3));
        for len in 0..text.len() {
            assert!(Pinned::parse(&text[..len]).is_err(), "{len}");
        }
        assert!(Pinned::parse(&text.replace('3', "x")).is_err());
    }
}
