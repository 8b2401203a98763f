//! [`PinName`], and the other texts of pins that clients choose; [`Lineage`].

use std::fmt;
use std::str::FromStr;

use samovar_nix::Glob;

/// Maximum length of the name of a pin, in bytes.
pub const PIN_NAME_LEN_MAX: usize = 255;

/// The name of a pin: 1 to 255 bytes without control characters. The name of a new pin must also
/// pass [`check_new`](Self::check_new).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinName(String);

impl PinName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Checks the name of a new pin or generation. Pins with other names, which earlier versions
    /// accepted, can be read and removed.
    ///
    /// # Errors
    ///
    /// A part between slashes is empty, `.` or `..`.
    pub fn check_new(&self) -> Result<(), PinPartError> {
        let is_bad = |part: &str| matches!(part, "" | "." | "..");
        match self.0.split('/').any(is_bad) {
            true => Err(PinPartError),
            false => Ok(()),
        }
    }

    /// Returns whether the pattern of a token permits the name. `/` counts as `-`, as in the names
    /// of store paths, which cannot contain `/`.
    #[must_use]
    pub fn is_permitted(&self, names: &Glob) -> bool {
        names.matches(&self.0.replace('/', "-"))
    }
}

/// Error: the text is not the name of a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the name of a pin must have 1 to {PIN_NAME_LEN_MAX} bytes and no control character")]
pub struct PinNameError;

/// Error: the name of a pin looks like a path that must be normalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("in the name of a new pin or ref, no part between slashes may be empty, \".\" or \"..\"")]
pub struct PinPartError;

impl FromStr for PinName {
    type Err = PinNameError;

    fn from_str(text: &str) -> Result<Self, PinNameError> {
        match (1..=PIN_NAME_LEN_MAX).contains(&text.len()) && !text.contains(char::is_control) {
            true => Ok(Self(text.to_owned())),
            false => Err(PinNameError),
        }
    }
}

impl fmt::Display for PinName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Maximum length of the host name or the message of a generation, in bytes.
pub const PIN_TEXT_LEN_MAX: usize = 1024;

/// The host name or the message that the client sent with a generation: 1 to 1024 bytes, which may
/// include control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinText(String);

impl PinText {
    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Error: the text is neither the host name nor the message of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a host or a message must have 1 to {PIN_TEXT_LEN_MAX} bytes")]
pub struct PinTextError;

impl FromStr for PinText {
    type Err = PinTextError;

    fn from_str(text: &str) -> Result<Self, PinTextError> {
        match (1..=PIN_TEXT_LEN_MAX).contains(&text.len()) {
            true => Ok(Self(text.to_owned())),
            false => Err(PinTextError),
        }
    }
}

/// The lineage of a generation: 128 random bits.
///
/// Generations of a pin with the same lineage were added one after the other, each on the one
/// before it. A new lineage begins when a pin is created, also again after its removal, when its
/// newest generation was removed, and when the database was restored from a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lineage([u8; 16]);

impl Lineage {
    /// Creates a lineage from its bytes; any 16 are valid.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Error: the text is not a lineage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a lineage has 32 lower-case hexadecimal digits")]
pub struct LineageError;

impl FromStr for Lineage {
    type Err = LineageError;

    fn from_str(text: &str) -> Result<Self, LineageError> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        match text.len() == 32 && text.bytes().all(is_digit) {
            true => u128::from_str_radix(text, 16)
                .map(|number| Self(number.to_be_bytes()))
                .map_err(|_impossible| LineageError),
            false => Err(LineageError),
        }
    }
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_pins() {
        let longest = "a".repeat(PIN_NAME_LEN_MAX);
        for good in ["a", "app main/1", "\u{e4}", &longest] {
            assert_eq!(good.parse::<PinName>().unwrap().as_str(), good);
        }
        for wrong in ["", "a\n", "\u{7f}", &format!("{longest}a")] {
            assert_eq!(wrong.parse::<PinName>(), Err(PinNameError), "{wrong:?}");
        }
    }

    #[test]
    fn names_of_new_pins() {
        for (name, expected) in [
            ("a/b.c/..d", Ok(())),
            ("...", Ok(())),
            (".a", Ok(())),
            (".", Err(PinPartError)),
            ("..", Err(PinPartError)),
            ("a/../b", Err(PinPartError)),
            ("a//b", Err(PinPartError)),
            ("/a", Err(PinPartError)),
            ("a/", Err(PinPartError)),
            ("/", Err(PinPartError)),
        ] {
            let parsed: PinName = name.parse().unwrap();
            assert_eq!(parsed.check_new(), expected, "{name}");
        }
    }

    #[test]
    fn a_slash_counts_as_a_dash_in_patterns() {
        let names = Glob::new("mr-*");
        for (name, expected) in [
            ("mr-1", true),
            ("mr/1", true),
            ("mr", false),
            ("a/mr-1", false),
        ] {
            let name: PinName = name.parse().unwrap();
            assert_eq!(name.is_permitted(&names), expected, "{name}");
        }
    }

    #[test]
    fn lengths_of_texts() {
        let longest = "\n".repeat(PIN_TEXT_LEN_MAX);
        assert_eq!(longest.parse::<PinText>().unwrap().as_str(), longest);
        for wrong in [String::new(), format!("{longest}a")] {
            assert_eq!(wrong.parse::<PinText>(), Err(PinTextError));
        }
    }

    #[test]
    fn texts_of_lineages() {
        let text = "00ff0102030405060708090a0b0c0d0e";
        let lineage: Lineage = text.parse().unwrap();
        assert_eq!(lineage.to_string(), text);
        assert_eq!(Lineage::from_bytes(*lineage.as_bytes()), lineage);
        for wrong in [
            &text[1..],
            &text.to_uppercase(),
            "+0ff0102030405060708090a0b0c0d0e",
        ] {
            assert_eq!(wrong.parse::<Lineage>(), Err(LineageError), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_name_or_refused(text in ".{0,20}", bytes: [u8; 16]) {
            if let Ok(name) = text.parse::<PinName>() {
                prop_assert_eq!(name.to_string(), text);
            }
            let lineage = Lineage::from_bytes(bytes);
            prop_assert_eq!(lineage.to_string().parse(), Ok(lineage));
        }
    }
}
