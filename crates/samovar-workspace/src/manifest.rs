//! The manifest of a snapshot: a text with the entries of a tree.
//!
//! # Format
//!
//! Specified in `docs/snapshot-format.md`.
//!
//! ```text
//! samovar-manifest 1
//! tree <base name of the store path> <NAR hash, base-32> <length of the NAR>
//! d <mode> <mtime>
//! f <mode> <mtime> <size> <digest> <name>
//! l <mtime> <target> <name>
//! d <mode> <mtime> <name>
//! ..
//! end <number of entries without the root>
//! ```
//!
//! * Lines end in LF; words are separated by one space; numbers are decimal without leading zeros.
//! * The first `d` is the root, which has no name. The entries follow in the order of a NAR. `..`
//!   ends the innermost open directory, also the root.
//! * Mode: three octal digits. Mtime: see [`Mtime`]. Digest: SHA-256 in base-64 without padding.
//! * In names and targets, `%` and all bytes except `!` to `~` are percent-encoded in upper case.
//!
//! There is exactly one text for each manifest: [`Manifest::parse`] accepts only what
//! [`Manifest::text`] writes.

use std::borrow::Cow;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use samovar_nix::{NarHash, StorePath};

use crate::entries::{Builder, Entries, Kind, MODE_MASK, Mtime, TreeError};
use crate::scan::STATE_DIRECTORY;

const MAGIC: &str = "samovar-manifest 1";

const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// The manifest of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Store path of the tree.
    pub tree: StorePath,
    /// Hash of the tree's NAR.
    pub nar_hash: NarHash,
    /// The entries. Each file has a digest.
    pub entries: Entries,
}

/// Reason why a text is not a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the manifest: {reason}")]
pub struct ManifestError {
    /// Number of the line, from 1.
    pub line: usize,
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error("this is not a manifest of format 1")]
    Magic,
    #[error("the line breaks the grammar")]
    Grammar,
    #[error("the text is truncated")]
    Incomplete,
    #[error("text follows the end")]
    Trailing,
    #[error(
        "an entry has the name {STATE_DIRECTORY}, which is reserved for the state of a workspace"
    )]
    State,
    #[error("the stated number of entries or length of the NAR is wrong")]
    Count,
    #[error(transparent)]
    Tree(#[from] TreeError),
}

impl Manifest {
    /// Writes the manifest as text.
    #[must_use]
    pub fn text(&self) -> String {
        let nar_hash = self.nar_hash.nixbase32();
        let nar_hash = String::from_utf8_lossy(&nar_hash);
        let mut text = format!(
            "{MAGIC}\ntree {} {nar_hash} {}\n",
            self.tree.base_name(),
            self.entries.nar_size()
        );
        let list = self.entries.list();
        let mut open = Vec::new();
        for (index, entry) in list.iter().enumerate() {
            close(&mut text, &mut open, index);
            let (mode, mtime) = (entry.mode, entry.mtime);
            let name = percent_encode(&entry.name, ENCODED);
            let written = match &entry.kind {
                Kind::Directory { end } => {
                    open.push(*end);
                    let space = if index == 0 { "" } else { " " };
                    write!(text, "d {mode:03o} {mtime}{space}{name}")
                }
                Kind::File { size, digest, .. } => {
                    let digest = STANDARD_NO_PAD.encode(digest.unwrap_or_default());
                    write!(text, "f {mode:03o} {mtime} {size} {digest} {name}")
                }
                Kind::Symlink { target } => {
                    let target = percent_encode(target, ENCODED);
                    write!(text, "l {mtime} {target} {name}")
                }
            };
            debug_assert!(written.is_ok(), "writing to a string cannot fail");
            text.push('\n');
        }
        close(&mut text, &mut open, list.len());
        text + &format!("end {}\n", list.len() - 1)
    }

    /// Parses a manifest.
    ///
    /// # Errors
    ///
    /// [`ManifestError`] if [`text`](Self::text) does not write this text.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        let mut parser = Parser {
            lines: text.split_inclusive('\n'),
            line: 0,
        };
        parser.manifest().map_err(|reason| ManifestError {
            line: parser.line,
            reason,
        })
    }
}

/// Ends the directories whose last entry precedes `index`.
fn close(text: &mut String, open: &mut Vec<usize>, index: usize) {
    while open.last() == Some(&index) {
        open.pop();
        text.push_str("..\n");
    }
}

struct Parser<'a> {
    lines: std::str::SplitInclusive<'a, char>,
    /// Number of the last line read.
    line: usize,
}

impl<'a> Parser<'a> {
    fn manifest(&mut self) -> Result<Manifest, Reason> {
        if self.next()? != MAGIC {
            return Err(Reason::Magic);
        }
        let (tree, nar_hash, nar_size) = head(self.next()?).ok_or(Reason::Grammar)?;
        let root = self.next()?.strip_prefix("d ").and_then(|root| {
            let (mode, mtime) = root.split_once(' ')?;
            Some(Builder::new(octal(mode)?, Mtime::parse(mtime)?))
        });
        let mut builder = root.ok_or(Reason::Grammar)?;
        let mut count = 0_u64;
        loop {
            let line = self.next()?;
            if line == ".." {
                if builder.leave()? {
                    break;
                }
                continue;
            }
            entry(&mut builder, line)?;
            count += 1;
        }
        let end = self.next()?;
        let entries = builder.finish()?;
        if end != format!("end {count}") || entries.nar_size() != nar_size {
            return Err(Reason::Count);
        }
        if self.lines.next().is_some() {
            return Err(Reason::Trailing);
        }
        Ok(Manifest {
            tree,
            nar_hash,
            entries,
        })
    }

    fn next(&mut self) -> Result<&'a str, Reason> {
        self.line += 1;
        let line = self.lines.next().and_then(|line| line.strip_suffix('\n'));
        line.ok_or(Reason::Incomplete)
    }
}

fn head(line: &str) -> Option<(StorePath, NarHash, u64)> {
    let mut words = line.strip_prefix("tree ")?.split(' ');
    let tree = StorePath::from_base_name(words.next()?).ok()?;
    let nar_hash = NarHash::parse_nixbase32(words.next()?.as_bytes()).ok()?;
    let nar_size = number(words.next()?)?;
    words.next().is_none().then_some((tree, nar_hash, nar_size))
}

fn entry(builder: &mut Builder, line: &str) -> Result<(), Reason> {
    let mut words = line.split(' ');
    let kind = words.next();
    let mut word = || words.next().ok_or(Reason::Grammar);
    let time = |text| Mtime::parse(text).ok_or(Reason::Grammar);
    let mode = |text| octal(text).ok_or(Reason::Grammar);
    match kind {
        Some("d") => {
            let (mode, mtime, name) = (mode(word()?)?, time(word()?)?, name(word()?)?);
            builder.enter(&name, mode, mtime)?;
        }
        Some("f") => {
            let (mode, mtime) = (mode(word()?)?, time(word()?)?);
            let size = number(word()?).ok_or(Reason::Grammar)?;
            let digest = STANDARD_NO_PAD.decode(word()?).ok();
            let digest = digest.and_then(|digest| digest.try_into().ok());
            let digest = digest.ok_or(Reason::Grammar)?;
            let name = name(word()?)?;
            builder.file(&name, mode, mtime, size, Some(digest))?;
        }
        Some("l") => {
            let (mtime, target, name) = (time(word()?)?, decode(word()?)?, name(word()?)?);
            builder.symlink(&name, mtime, &target)?;
        }
        _ => return Err(Reason::Grammar),
    }
    match words.next() {
        None => Ok(()),
        Some(_) => Err(Reason::Grammar),
    }
}

fn name(text: &str) -> Result<Cow<'_, [u8]>, Reason> {
    match text == STATE_DIRECTORY {
        true => Err(Reason::State),
        false => decode(text),
    }
}

/// Decodes a name or target, and refuses encodings that [`Manifest::text`] does not write.
fn decode(text: &str) -> Result<Cow<'_, [u8]>, Reason> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'%';
    if text.bytes().all(is_plain) {
        return Ok(Cow::Borrowed(text.as_bytes()));
    }
    let decoded = percent_decode_str(text).collect::<Vec<u8>>();
    match percent_encode(&decoded, ENCODED).eq_text(text) {
        true => Ok(Cow::Owned(decoded)),
        false => Err(Reason::Grammar),
    }
}

trait EqText {
    fn eq_text(self, text: &str) -> bool;
}

impl EqText for percent_encoding::PercentEncode<'_> {
    fn eq_text(self, text: &str) -> bool {
        let mut rest = text;
        for piece in self {
            match rest.strip_prefix(piece) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        rest.is_empty()
    }
}

fn octal(text: &str) -> Option<u16> {
    let is_octal = text.len() == 3 && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = u16::from_str_radix(text, 8).ok()?;
    (is_octal && mode <= MODE_MASK).then_some(mode)
}

fn number(text: &str) -> Option<u64> {
    let is_canonical = text == "0" || !text.starts_with('0');
    let is_decimal = is_canonical && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_decimal)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "samovar-manifest 1\n\
        tree zs83x50c7jbs0hj70ivx7ykckxh2zzl5-app \
        1xga7qa3wjdkhc71mbz9wm36q1nl7z2c95sl9529vindmjnrdn0z 648\n\
        d 755 1700000000\n\
        d 700 1 dir\n\
        f 644 1.5 6 AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA a%20b%25%0A\n\
        ..\n\
        l 0 dir/%C3%A4 link\n\
        ..\n\
        end 3\n";

    fn text() -> String {
        TEXT.replace("1.5", "1.500000000")
    }

    #[test]
    fn a_manifest_is_read_and_written() {
        let text = text();
        let manifest = Manifest::parse(&text).unwrap();
        assert_eq!(manifest.entries.path(2), b"dir/a b%\n");
        assert_eq!(manifest.text(), text);
    }

    #[test]
    fn the_example_of_the_specification_is_a_manifest() {
        let page = include_str!("../../../docs/snapshot-format.md");
        let (_, example) = page.split_once("```\nsamovar-manifest 1\ntree z").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        let text = format!("{MAGIC}\ntree z{example}");
        assert_eq!(Manifest::parse(&text).unwrap().text(), text);
    }

    #[test]
    fn a_text_that_is_cut_off_is_refused() {
        let text = text();
        for len in 0..text.len() {
            assert!(Manifest::parse(&text[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for (from, to) in [
            ("manifest 1", "manifest 2"),
            ("end 3", "end 4"),
            ("end 3\n", "end 3\nend 3\n"),
            (" 648\n", " 904\n"),
            ("d 755 1700000000", "d 755 1700000000 x"),
            ("d 700", "d 0700"),
            ("d 700", "d 778"),
            ("f 644", "g 644"),
            ("%0A", "%0a"),
            ("%0A", "\r"),
            ("a%20b", "a b"),
            ("a%20b", "..%2Fb"),
            ("a%20b", "%61%20b"),
            ("a%20b%25%0A", ".."),
            ("link", "dir"),
            ("d 700 1 dir", "d 700 1 .samovar"),
            (" link", " .samovar"),
            ("link", "%00"),
            ("link", ""),
            ("AAAA ", "AAAB "),
            ("AAAA ", "AAA= "),
            (" 6 ", " 06 "),
            (" 6 ", " 18446744073709551615 "),
            ("..\nl", "l"),
            ("..\nend", "..\n..\nend"),
        ] {
            let text = text();
            assert!(text.contains(from), "{from}");
            assert!(
                Manifest::parse(&text.replacen(from, to, 1)).is_err(),
                "{to}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,200}") {
            prop_assert!(Manifest::parse(&text).is_err());
            prop_assert!(Manifest::parse(&(MAGIC.to_owned() + "\n" + &text)).is_err());
        }

        #[test]
        fn a_changed_text_is_refused_or_written_in_the_same_way(
            at in 0..1000_usize,
            byte in any::<char>(),
        ) {
            let text = text();
            let mut chars: Vec<char> = text.chars().collect();
            let at = at % chars.len();
            chars[at] = byte;
            let changed: String = chars.into_iter().collect();
            if let Ok(manifest) = Manifest::parse(&changed) {
                prop_assert_eq!(manifest.text(), changed);
            }
        }
    }
}
