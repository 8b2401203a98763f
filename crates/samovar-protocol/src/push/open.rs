//! `POST open`: the paths that a client wants to push, and what the server lacks of each.
//!
//! # Grammar
//!
//! ```text
//! request = *(hash-part " " nar-hash " " nar-size [" " name] LF)
//! answer  = "push 1 " push-id " " count " " pack-max " " part-max LF
//!           *(("have " / "link " / "need ") hash-part LF / "refused " hash-part " " reason LF)
//!           "end " have " " link " " need [" " refused] LF
//! ```
//!
//! `hash-part` and `nar-hash` are in Nix's base-32, 32 and 52 characters. Numbers are decimal,
//! below 2^64, without leading zeros.
//!
//! # Other versions
//!
//! The first servers do not know names, and refuse a body with them. The first clients state none,
//! so no path is refused, and they do not know the fourth number in the last line.

use std::fmt::{Display, Write as _};
use std::io::{self, BufRead, Read as _};

use samovar_nix::{HashPart, NarHash, StorePath};

use super::WireError;
use crate::answer::{AnswerError, Lines};
use crate::line::{in_one_line, nar_hash_text, number};
use crate::names::PushId;

/// Maximum number of paths in the body of `open`.
pub const OPEN_COUNT_MAX: usize = 100_000;

/// Maximum length of the body of `open`, in bytes: [`OPEN_COUNT_MAX`] lines of maximum length.
pub const OPEN_LEN_MAX: u64 = (OPEN_COUNT_MAX * OPEN_LINE_LEN_MAX) as u64;

/// Maximum length of a line in the body of `open`, in bytes: the line of a path with the longest
/// name.
const OPEN_LINE_LEN_MAX: usize = 32 + 1 + 52 + 1 + 20 + 1 + 211 + 1;

/// Start of the first line of the answer. A server without the protocol sends another text.
const START: &str = "push 1 ";

/// A path that a client wants to push: a line of the body of `open`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenLine {
    /// Hash part of the path to push.
    pub hash_part: HashPart,
    /// SHA-256 of the path's NAR.
    pub nar_hash: NarHash,
    /// Length of the path's NAR, in bytes.
    pub nar_size: u64,
    /// The path. `None`: the client does not state its name.
    pub path: Option<StorePath>,
}

impl OpenLine {
    /// Returns the line, with its LF.
    #[must_use]
    pub fn text(&self) -> String {
        let nar_hash = nar_hash_text(&self.nar_hash);
        let mut text = format!("{} {nar_hash} {}", self.hash_part, self.nar_size);
        if let Some(path) = &self.path {
            text.push(' ');
            text.push_str(path.name());
        }
        text.push('\n');
        text
    }
}

/// Reads the body of `open`, with at most `count_max` lines.
///
/// # Errors
///
/// An error of the source, or one that contains [`WireError::OpenLine`] or [`WireError::TooMany`].
pub fn read_open(mut source: impl BufRead, count_max: usize) -> io::Result<Vec<OpenLine>> {
    let mut lines = Vec::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut start = source.by_ref().take(OPEN_LINE_LEN_MAX as u64);
        if start.read_until(b'\n', &mut line)? == 0 {
            return Ok(lines);
        }
        if lines.len() >= count_max {
            return Err(WireError::TooMany(count_max).into());
        }
        let parsed = line.strip_suffix(b"\n").and_then(parse_line);
        lines.push(parsed.ok_or(WireError::OpenLine(lines.len().saturating_add(1)))?);
    }
}

fn parse_line(line: &[u8]) -> Option<OpenLine> {
    let mut words = line.splitn(4, |byte| *byte == b' ');
    let mut word = || words.next();
    let hash_part = word()?;
    Some(OpenLine {
        hash_part: HashPart::parse(hash_part).ok()?,
        nar_hash: NarHash::parse_nixbase32(word()?).ok()?,
        nar_size: number(word()?)?,
        path: match word() {
            None => None,
            Some(name) => {
                let base_name = [hash_part, b"-", name].concat();
                let base_name = std::str::from_utf8(&base_name).ok()?;
                Some(StorePath::from_base_name(base_name).ok()?)
            }
        },
    })
}

/// What a client need not push because upstreams of the server have it: a field of the response to
/// `open`, `COUNT NAR-BYTES`. The answers about these paths are [`OpenAnswer::Have`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Saved {
    /// Number of paths.
    pub count: u64,
    /// Total length of their NARs, in bytes.
    pub nar_len: u64,
}

impl Saved {
    /// Name of the field.
    pub const FIELD: &str = "Samovar-Of-Upstreams";

    /// Returns the value of the field.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{} {}", self.count, self.nar_len)
    }

    /// Parses the value of the field.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (count, nar_len) = text.split_once(' ')?;
        Some(Self {
            count: number(count.as_bytes())?,
            nar_len: number(nar_len.as_bytes())?,
        })
    }
}

/// What a client must send to push a path. `R`: the reason of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpenAnswer<R = String> {
    /// Nothing: the cache has the path.
    Have,
    /// Only the narinfo: the server has the NAR.
    Link,
    /// Both the NAR and the narinfo.
    Need,
    /// Nothing: the server refuses the path because of its name, for this reason.
    Refused(R),
}

/// The answer to `open`.
///
/// # Examples
///
/// ```
/// use samovar_nix::HashPart;
/// use samovar_protocol::names::PushId;
/// use samovar_protocol::push::{OpenAnswer, Opened};
///
/// let asked = [HashPart::from_bytes([0; 20])];
/// let opened: Opened = Opened {
///     push_id: PushId::from_number(1),
///     pack_len_max: 1 << 20,
///     part_len_max: 1 << 20,
///     answers: vec![OpenAnswer::Need],
/// };
/// let text = opened.text(asked);
/// assert_eq!(
///     text,
///     "push 1 00000000000000000000000000000001 1 1048576 1048576\n\
///      need 00000000000000000000000000000000\nend 0 0 1\n"
/// );
/// assert_eq!(Opened::parse(&text, asked), Ok(Some(opened)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened<R = String> {
    /// The push.
    pub push_id: PushId,
    /// Maximum length of a pack, in bytes.
    pub pack_len_max: u64,
    /// Maximum length of a part, in bytes.
    pub part_len_max: u64,
    /// What the server lacks of each path, in the order of the request.
    pub answers: Vec<OpenAnswer<R>>,
}

impl<R: Display> Opened<R> {
    /// Returns the answer to a request with these hash parts, one for each of
    /// [`answers`](Self::answers).
    #[must_use]
    pub fn text(&self, asked: impl IntoIterator<Item = HashPart>) -> String {
        let Self {
            push_id,
            pack_len_max,
            part_len_max,
            answers,
        } = self;
        let count = answers.len();
        let mut text = String::with_capacity(answers.len().saturating_mul(38).saturating_add(100));
        // Writing to a `String` never fails.
        writeln!(
            text,
            "{START}{push_id} {count} {pack_len_max} {part_len_max}"
        )
        .ok();
        for (answer, hash_part) in answers.iter().zip(asked) {
            match answer {
                OpenAnswer::Have => writeln!(text, "have {hash_part}"),
                OpenAnswer::Link => writeln!(text, "link {hash_part}"),
                OpenAnswer::Need => writeln!(text, "need {hash_part}"),
                OpenAnswer::Refused(reason) => {
                    writeln!(
                        text,
                        "refused {hash_part} {}",
                        in_one_line(&reason.to_string())
                    )
                }
            }
            .ok();
        }
        text.push_str("end");
        for count in self.counts() {
            write!(text, " {count}").ok();
        }
        text.push('\n');
        text
    }
}

impl Opened {
    /// Parses the answer to a request with these hash parts. Returns `None` if the text is no such
    /// answer, because the server does not support the protocol.
    ///
    /// # Errors
    ///
    /// Any [`AnswerError`].
    pub fn parse<I>(text: &str, asked: I) -> Result<Option<Self>, AnswerError>
    where
        I: IntoIterator<Item = HashPart, IntoIter: ExactSizeIterator>,
    {
        if !text.starts_with(START) {
            return Ok(None);
        }
        let lines = Lines::of(text)?;
        let (first, lines_of_paths) = lines.lines.split_first().ok_or(AnswerError::First)?;
        let (mut opened, count) = parse_first(first).ok_or(AnswerError::First)?;
        let asked = asked.into_iter();
        if lines_of_paths.len() != asked.len() || count != asked.len() as u64 {
            return Err(AnswerError::Count {
                found: lines_of_paths.len(),
                asked: asked.len(),
                of: "paths",
            });
        }
        opened.answers.reserve_exact(asked.len());
        for (line, asked) in lines_of_paths.iter().zip(asked) {
            let (hash_part, answer) = parse_answer(line).ok_or_else(|| AnswerError::line(line))?;
            if hash_part != asked {
                return Err(AnswerError::other(line));
            }
            opened.answers.push(answer);
        }
        lines.check_end(&opened.counts())?;
        Ok(Some(opened))
    }
}

impl<R> Opened<R> {
    /// Returns the numbers of the last line: how many answers of each kind there are. Clients that
    /// state no names do not know the number of refused paths, which is omitted if it is 0.
    fn counts(&self) -> Vec<usize> {
        let count =
            |is: fn(&OpenAnswer<R>) -> bool| self.answers.iter().filter(|one| is(one)).count();
        let mut counts = vec![
            count(|one| matches!(one, OpenAnswer::Have)),
            count(|one| matches!(one, OpenAnswer::Link)),
            count(|one| matches!(one, OpenAnswer::Need)),
        ];
        let refused = count(|one| matches!(one, OpenAnswer::Refused(_)));
        counts.extend((refused > 0).then_some(refused));
        counts
    }
}

/// Parses the first line of an answer. Returns an answer for no path, and the number of paths.
fn parse_first(line: &str) -> Option<(Opened, u64)> {
    let mut words = line.strip_prefix(START)?.split(' ');
    let push_id = PushId::parse(words.next()?)?;
    let mut next = || number(words.next()?.as_bytes());
    let (count, pack_len_max, part_len_max) = (next()?, next()?, next()?);
    let opened = Opened {
        push_id,
        pack_len_max,
        part_len_max,
        answers: Vec::new(),
    };
    words.next().is_none().then_some((opened, count))
}

/// Parses the line of a path in an answer.
fn parse_answer(line: &str) -> Option<(HashPart, OpenAnswer)> {
    let (word, rest) = line.split_once(' ')?;
    let (hash_part, answer) = match word {
        "have" => (rest, OpenAnswer::Have),
        "link" => (rest, OpenAnswer::Link),
        "need" => (rest, OpenAnswer::Need),
        "refused" => {
            let (hash_part, reason) = rest.split_once(' ')?;
            (hash_part, OpenAnswer::Refused(in_one_line(reason)))
        }
        _ => return None,
    };
    Some((HashPart::parse(hash_part.as_bytes()).ok()?, answer))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::damage::damage;

    const H: &str = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5";
    const N: &str = "1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z";
    const ID: &str = "4f1b7c6d0c8e4a5f9d3e2b1a0c9d8e7f";

    fn read(body: &[u8], count_max: usize) -> Result<Vec<OpenLine>, WireError> {
        read_open(body, count_max).map_err(|error| WireError::of(&error).unwrap())
    }

    fn asked(count: usize) -> Vec<HashPart> {
        vec![H.parse().unwrap(); count]
    }

    #[test]
    fn lines_of_requests() {
        assert_eq!(read(b"", 1), Ok(Vec::new()));
        let line = format!("{H} {N} 120\n");
        let lines = read(line.as_bytes(), 1).unwrap();
        assert_eq!(lines[0].hash_part.to_string(), H);
        assert_eq!(&lines[0].nar_hash.nixbase32()[..], N.as_bytes());
        assert_eq!((lines[0].nar_size, &lines[0].path), (120, &None));
        assert_eq!(lines[0].text(), line);
        let longest = "n".repeat(211);
        let with_name = line.replace(" 120", &format!(" 18446744073709551615 {longest}"));
        let lines = read(with_name.as_bytes(), 1).unwrap();
        assert_eq!(lines[0].path.as_ref().unwrap().name(), longest);
        assert_eq!(lines[0].text(), with_name);
        for wrong in [
            with_name.replace("\n", "n\n"),
            line.replace(" 120", " 120 a b"),
            line.replace(" 120", " 120 a/b"),
            "\n".to_owned(),
            line.trim_end().to_owned(),
            line.replace(' ', "  "),
            line.replace(" 120", ""),
            line.replace(" 120", " 0120"),
            line.replace(" 120", " +120"),
            line.replace(" 120", " "),
            line.replace(" 120", " 18446744073709551616"),
            line.replace(" 120", " 120 "),
            line.replace(" 120", " 120\r"),
            line.replace(N, H),
            line.replace(H, N),
            line.to_uppercase(),
            format!("sha256:{line}"),
        ] {
            let body = format!("{line}{wrong}");
            assert_eq!(
                read(body.as_bytes(), 9),
                Err(WireError::OpenLine(2)),
                "{body:?}"
            );
        }
    }

    #[test]
    fn a_request_has_a_maximum_number_of_lines() {
        let name = "n".repeat(211);
        let line = format!("{H} {N} {} {name}\n", u64::MAX);
        let lines = line.repeat(OPEN_COUNT_MAX);
        assert_eq!(lines.len() as u64, OPEN_LEN_MAX);
        let parsed = read(lines.as_bytes(), OPEN_COUNT_MAX);
        assert_eq!(parsed.map(|lines| lines.len()), Ok(OPEN_COUNT_MAX));
        let one_more = format!("{lines}{H} {N} 1\n");
        let parsed = read(one_more.as_bytes(), OPEN_COUNT_MAX);
        assert_eq!(parsed, Err(WireError::TooMany(OPEN_COUNT_MAX)));
    }

    #[test]
    fn answers() {
        let text = format!("push 1 {ID} 2 33554432 1024\nhave {H}\nneed {H}\nend 1 0 1\n");
        let expected = Opened {
            push_id: PushId::parse(ID).unwrap(),
            pack_len_max: 32 << 20,
            part_len_max: 1024,
            answers: vec![OpenAnswer::Have, OpenAnswer::Need],
        };
        let both = asked(2);
        assert_eq!(expected.text(both.clone()), text);
        assert_eq!(Opened::parse(&text, both.clone()), Ok(Some(expected)));
        // Every shorter text is invalid, and so are other deviations from the grammar.
        for len in START.len()..text.len() {
            assert!(Opened::parse(&text[..len], both.clone()).is_err(), "{len}");
        }
        for (from, to) in [
            ("end 1 0 1", "end 1 1 1"),
            ("end 1 0 1", "end 1 0 1 0"),
            ("need", "want"),
            ("need", "refused"),
            (ID, "../x"),
            (" 2 33", " 3 33"),
            (" 2 33", " 02 33"),
            (H, N),
            (H, "00000000000000000000000000000006"),
            ("33554432", "x"),
            ("1024", "1024 1"),
        ] {
            let wrong = text.replacen(from, to, 1);
            assert!(Opened::parse(&wrong, both.clone()).is_err(), "{to}");
        }
        assert!(Opened::parse(&text, asked(1)).is_err());
        for other in ["", "<html>\n", "push 2 x\nend 0 0 0\n"] {
            assert_eq!(Opened::parse(other, asked(0)), Ok(None), "{other}");
        }
    }

    #[test]
    fn a_refused_path_has_a_reason_in_one_line() {
        let text = format!("push 1 {ID} 1 1 1\nrefused {H} a name; leave it out\nend 0 0 0 1\n");
        let opened = Opened::parse(&text, asked(1)).unwrap().unwrap();
        let reason = "a name; leave it out".to_owned();
        assert_eq!(opened.answers, [OpenAnswer::Refused(reason)]);
        let written = Opened {
            answers: vec![OpenAnswer::Refused("a name;\nleave it\tout".to_owned())],
            ..opened
        };
        assert_eq!(written.text(asked(1)), text);
        for wrong in ["refused {H}\nend 0 0 0 1\n", "refused {H} a\nend 0 0 1\n"] {
            let wrong = format!("push 1 {ID} 1 1 1\n{}", wrong.replace("{H}", H));
            assert!(Opened::parse(&wrong, asked(1)).is_err(), "{wrong}");
        }
    }

    prop_compose! {
        fn line()(
            hash_part in any::<[u8; 20]>(),
            nar_hash in any::<[u8; 32]>(),
            nar_size: u64,
            name in prop::option::of("[a-z][a-zA-Z0-9+._?=-]{0,30}"),
        ) -> OpenLine {
            let hash_part = HashPart::from_bytes(hash_part);
            let path = name.map(|name| StorePath::from_base_name(&format!("{hash_part}-{name}")));
            OpenLine {
                hash_part,
                nar_hash: NarHash::from_bytes(nar_hash),
                nar_size,
                path: path.transpose().unwrap(),
            }
        }
    }

    fn answer() -> impl Strategy<Value = OpenAnswer> {
        prop_oneof![
            Just(OpenAnswer::Have),
            Just(OpenAnswer::Link),
            Just(OpenAnswer::Need),
            "[a-z\u{e4} :;]{0,20}".prop_map(OpenAnswer::Refused),
        ]
    }

    proptest! {
        #[test]
        fn requests_are_read_as_they_were_written(
            lines in vec(line(), 0..6),
            damage in damage(),
        ) {
            let text: String = lines.iter().map(OpenLine::text).collect();
            prop_assert_eq!(read(text.as_bytes(), 6), Ok(lines));
            let damaged = damage.of(text.as_bytes());
            if let Ok(lines) = read(&damaged, 6) {
                let again: String = lines.iter().map(OpenLine::text).collect();
                prop_assert_eq!(again.as_bytes(), damaged);
            }
        }

        #[test]
        fn answers_are_read_as_they_were_written(
            (number, pack_len_max, part_len_max) in any::<(u128, u64, u64)>(),
            answers in vec((any::<[u8; 20]>(), answer()), 0..6),
            damage in damage(),
        ) {
            let (asked, answers): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
            let asked: Vec<_> = asked.into_iter().map(HashPart::from_bytes).collect();
            let push_id = PushId::from_number(number);
            let opened = Opened { push_id, pack_len_max, part_len_max, answers };
            let text = opened.text(asked.clone());
            prop_assert_eq!(Opened::parse(&text, asked.clone()), Ok(Some(opened)));
            if let Ok(Some(read)) = Opened::parse(&damage.of_text(&text), asked.clone()) {
                let again = read.text(asked.clone());
                prop_assert_eq!(Opened::parse(&again, asked), Ok(Some(read)));
            }
        }
    }
}
