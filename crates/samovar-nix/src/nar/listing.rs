//! The listing of a NAR, `/<hash part>.ls`, version 1.
//!
//! # Encoding
//!
//! JSON without white space or line end: `{"version":1,"root":NODE}`.
//!
//! | node | members, in this order |
//! | --- | --- |
//! | regular file | `type`, `size`, `executable` (only when true), `narOffset` |
//! | directory | `type`, `entries` |
//! | symbolic link | `type`, `target` |
//!
//! `narOffset` is the offset of the first content byte in the uncompressed NAR; empty files also
//! have it. Entries are in the order of the NAR.
//!
//! # Quirks
//!
//! * Nix up to 2.8 writes the members in this order; later versions sort them, and from 2.35 on
//!   they also write `executable` when it is false. Readers accept all of these forms.
//! * JSON is Unicode, names in a NAR are bytes. Nix 2.8 writes them raw, which is invalid JSON;
//!   from 2.26 on it writes no listing at all. Here each invalid sequence becomes U+FFFD: other
//!   files keep their entries, and the offset of the odd one is still available. Two names may
//!   become equal; most readers then keep the later one.
//! * Control characters are escaped as Nix 2.8 does: `\n`, `\r`, `\t`, else `\u00xx`.
//!
//! # Source
//!
//! Nix 2.8.0, `src/libstore/nar-accessor.cc` and `src/libutil/json.cc`.

use super::{Discard, EncodeError, Encoder, Event};

/// Builds a listing from the same steps as an [`Encoder`], without recursion.
///
/// The steps are checked as by an `Encoder`, which also computes the offsets. So a listing always
/// agrees with the NAR of the same steps.
///
/// # Examples
///
/// ```
/// # use samovar_nix::nar::Listing;
/// let mut listing = Listing::new();
/// listing.file(true, 10)?;
/// assert_eq!(
///     listing.finish()?,
///     r#"{"version":1,"root":{"type":"regular","size":10,"executable":true,"narOffset":128}}"#,
/// );
/// # Ok::<(), samovar_nix::nar::EncodeError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Listing {
    nar: Encoder,
    /// The generated part of the document that was not taken yet.
    json: String,
    /// Whether the next child is the first of its directory.
    is_first: bool,
}

impl Default for Listing {
    fn default() -> Self {
        Self::new()
    }
}

impl Listing {
    /// Creates a listing without its root node.
    #[must_use]
    pub fn new() -> Self {
        Self {
            nar: Encoder::begun(),
            json: r#"{"version":1,"root":"#.into(),
            is_first: false,
        }
    }

    /// Adds a whole regular file.
    ///
    /// # Errors
    ///
    /// As [`Encoder::file`].
    pub fn file(&mut self, executable: bool, size: u64) -> Result<(), EncodeError> {
        let nar_offset = self.nar.file(&mut Discard, executable, size)?;
        self.nar.end_file(&mut Discard)?;
        self.json.push_str(r#"{"type":"regular","size":"#);
        self.json.push_str(&size.to_string());
        if executable {
            self.json.push_str(r#","executable":true"#);
        }
        self.json.push_str(r#","narOffset":"#);
        self.json.push_str(&nar_offset.to_string());
        self.json.push('}');
        Ok(())
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    ///
    /// As [`Encoder::symlink`].
    pub fn symlink(&mut self, target: &[u8]) -> Result<(), EncodeError> {
        self.nar.symlink(&mut Discard, target)?;
        self.json.push_str(r#"{"type":"symlink","target":"#);
        self.push_string(target);
        self.json.push('}');
        Ok(())
    }

    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// As [`Encoder::begin_directory`].
    pub fn begin_directory(&mut self) -> Result<(), EncodeError> {
        self.nar.begin_directory(&mut Discard)?;
        self.json.push_str(r#"{"type":"directory","entries":{"#);
        self.is_first = true;
        Ok(())
    }

    /// Adds the name of the next child; the child's node follows.
    ///
    /// # Errors
    ///
    /// As [`Encoder::entry`].
    pub fn entry(&mut self, name: &[u8]) -> Result<(), EncodeError> {
        self.nar.entry(&mut Discard, name)?;
        if !self.is_first {
            self.json.push(',');
        }
        self.is_first = false;
        self.push_string(name);
        self.json.push(':');
        Ok(())
    }

    /// Ends a child, after its node.
    ///
    /// # Errors
    ///
    /// As [`Encoder::end_entry`].
    pub fn end_entry(&mut self) -> Result<(), EncodeError> {
        self.nar.end_entry(&mut Discard)
    }

    /// Closes the innermost directory.
    ///
    /// # Errors
    ///
    /// As [`Encoder::end_directory`].
    pub fn end_directory(&mut self) -> Result<(), EncodeError> {
        self.nar.end_directory(&mut Discard)?;
        self.json.push_str("}}");
        self.is_first = false;
        Ok(())
    }

    /// Adds an event of a [`Decoder`](super::Decoder); contents are ignored.
    ///
    /// # Errors
    ///
    /// Any [`EncodeError`] if events are missing.
    pub fn event(&mut self, event: &Event<'_>) -> Result<(), EncodeError> {
        match *event {
            Event::File {
                executable, size, ..
            } => self.file(executable, size),
            Event::Contents(_) | Event::FileEnd => Ok(()),
            Event::Symlink { target } => self.symlink(target),
            Event::DirectoryBegin => self.begin_directory(),
            Event::Entry { name } => self.entry(name),
            Event::EntryEnd => self.end_entry(),
            Event::DirectoryEnd => self.end_directory(),
        }
    }

    /// Returns the length of the document not yet taken, in bytes.
    #[must_use]
    pub fn pending_len(&self) -> usize {
        self.json.len()
    }

    /// Takes the part of the document generated since the last call, so that a long document need
    /// not be in memory as a whole.
    #[must_use]
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.json)
    }

    /// Ends the listing and returns the rest of the document.
    ///
    /// # Errors
    ///
    /// [`EncodeError::Step`] if the root node is not complete.
    pub fn finish(mut self) -> Result<String, EncodeError> {
        self.nar.finish()?;
        self.json.push('}');
        Ok(self.json)
    }

    fn push_string(&mut self, bytes: &[u8]) {
        self.json.push('"');
        match std::str::from_utf8(bytes) {
            Ok(text) if !text.bytes().any(is_escaped) => self.json.push_str(text),
            _ => self.push_escaped(bytes),
        }
        self.json.push('"');
    }

    fn push_escaped(&mut self, bytes: &[u8]) {
        for character in String::from_utf8_lossy(bytes).chars() {
            match character {
                '"' => self.json.push_str(r#"\""#),
                '\\' => self.json.push_str(r"\\"),
                '\n' => self.json.push_str(r"\n"),
                '\r' => self.json.push_str(r"\r"),
                '\t' => self.json.push_str(r"\t"),
                '\0'..' ' => self
                    .json
                    .push_str(&format!("\\u{:04x}", u32::from(character))),
                _ => self.json.push(character),
            }
        }
    }
}

fn is_escaped(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | 0..b' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&[u8]]) -> String {
        let mut listing = Listing::new();
        listing.begin_directory().unwrap();
        for name in names {
            listing.entry(name).unwrap();
            listing.symlink(b"t").unwrap();
            listing.end_entry().unwrap();
        }
        listing.end_directory().unwrap();
        listing.finish().unwrap()
    }

    #[track_caller]
    fn check_name(name: &[u8], json: &str) {
        let expected = format!(
            r#"{{"version":1,"root":{{"type":"directory","entries":{{{json}:{{"type":"symlink","target":"t"}}}}}}}}"#
        );
        assert_eq!(names(&[name]), expected);
    }

    #[test]
    fn names_are_escaped() {
        check_name(b"plain", r#""plain""#);
        check_name(b"quote\"", r#""quote\"""#);
        check_name(b"back\\slash", r#""back\\slash""#);
        check_name(
            b"\n\r\t\x08\x0c\x01\x1f\x7f",
            "\"\\n\\r\\t\\u0008\\u000c\\u0001\\u001f\x7f\"",
        );
        check_name("é€".as_bytes(), r#""é€""#);
    }

    #[test]
    fn invalid_utf_8_becomes_the_replacement_character() {
        check_name(b"latin1-\xe9", "\"latin1-\u{fffd}\"");
        check_name(b"\xff\xfe", "\"\u{fffd}\u{fffd}\"");
        check_name(b"\xf0\x9f\x92-cut", "\"\u{fffd}-cut\"");
    }

    #[test]
    fn steps_are_checked_as_by_the_encoder() {
        let mut listing = Listing::new();
        assert_eq!(listing.entry(b"a"), Err(EncodeError::Step));
        assert_eq!(listing.clone().finish(), Err(EncodeError::Step));
        listing.begin_directory().unwrap();
        assert!(matches!(listing.entry(b"a/b"), Err(EncodeError::Name(_))));
        assert_eq!(listing.symlink(b"t"), Err(EncodeError::Step));
        listing.end_directory().unwrap();
        assert_eq!(listing.begin_directory(), Err(EncodeError::Step));
        let json = listing.finish().unwrap();
        assert_eq!(
            json,
            r#"{"version":1,"root":{"type":"directory","entries":{}}}"#
        );
    }

    #[test]
    fn pieces_make_the_document() {
        let steps = |listing: &mut Listing, take: &mut dyn FnMut(&mut Listing)| {
            listing.begin_directory().unwrap();
            for name in [b"a", b"b"] {
                take(listing);
                listing.entry(name).unwrap();
                take(listing);
                listing.begin_directory().unwrap();
                take(listing);
                listing.entry(b"c").unwrap();
                listing.file(true, 7).unwrap();
                listing.end_entry().unwrap();
                listing.end_directory().unwrap();
                take(listing);
                listing.end_entry().unwrap();
            }
            listing.end_directory().unwrap();
        };
        let mut whole = Listing::new();
        steps(&mut whole, &mut |_| {});
        let whole = whole.finish().unwrap();
        let (mut pieces, mut taken) = (Listing::new(), String::new());
        steps(&mut pieces, &mut |listing| {
            let len = listing.pending_len();
            let piece = listing.take();
            assert_eq!(piece.len(), len);
            taken.push_str(&piece);
        });
        assert!(taken.len() > 200);
        taken.push_str(&pieces.finish().unwrap());
        assert_eq!(taken, whole);
    }

    #[test]
    fn a_name_that_ends_in_a_brace_still_gets_its_comma() {
        let json = names(&[b"a{", b"b{"]);
        assert!(json.contains(r#"},"b{":"#), "{json}");
    }
}
