//! The header lines of a part.

use super::MultipartError;
use crate::http::media_type::{self, Parameters};

/// The header lines of a part, with the names in its `Content-Disposition`.
///
/// # Source
///
/// RFC 7578, section 4. `filename*` is ignored: section 4.2 forbids it, and a file with two names
/// is ambiguous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartHead {
    fields: Vec<(Box<str>, Box<[u8]>)>,
    name: Box<str>,
    file_name: Option<Box<str>>,
}

impl PartHead {
    /// Parses the lines that an [`Event::Head`](super::Event::Head) covers.
    ///
    /// # Errors
    ///
    /// [`Header`](MultipartError::Header) for a line that is not a header field;
    /// [`Disposition`](MultipartError::Disposition) unless there is exactly one
    /// `Content-Disposition: form-data` with a name.
    pub fn parse(lines: &[u8]) -> Result<Self, MultipartError> {
        let mut fields = Vec::new();
        let mut rest = lines;
        loop {
            let end = memchr::memmem::find(rest, b"\r\n").ok_or(MultipartError::Header)?;
            let (line, behind) = rest.split_at(end);
            if line.is_empty() {
                break;
            }
            fields.push(parse_line(line).ok_or(MultipartError::Header)?);
            rest = behind.get(2..).unwrap_or_default();
        }
        let mut dispositions = fields.iter().filter_map(|(name, value)| {
            let is_it = name.eq_ignore_ascii_case("content-disposition");
            is_it.then_some(&**value)
        });
        let (Some(disposition), None) = (dispositions.next(), dispositions.next()) else {
            return Err(MultipartError::Disposition);
        };
        let (name, file_name) =
            parse_disposition(disposition).ok_or(MultipartError::Disposition)?;
        Ok(Self {
            name,
            file_name,
            fields,
        })
    }

    /// Returns the name of the form's field.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the file, as sent by the client; `None` for a field without a file. It
    /// may be empty or any other text, including slashes and dots, so it must not become a path.
    pub fn file_name(&self) -> Option<&str> {
        self.file_name.as_deref()
    }

    /// Returns the value of the first header field with this name, compared case-insensitively.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let mut fields = self.fields.iter();
        fields
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| &**value)
    }

    /// Returns the `Content-Type`, as sent; `None` if it is absent or not UTF-8.
    pub fn content_type(&self) -> Option<&str> {
        std::str::from_utf8(self.header("content-type")?).ok()
    }

    /// Iterates over all header fields, in the order sent.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter().map(|(name, value)| (&**name, &**value))
    }
}

/// Parses a `field-line` of RFC 9112. A folded line, which continues the line before it, has no
/// name and is refused.
fn parse_line(line: &[u8]) -> Option<(Box<str>, Box<[u8]>)> {
    let colon = memchr::memchr(b':', line)?;
    let (name, value) = line.split_at(colon);
    let name = std::str::from_utf8(name).ok()?;
    let value = value.get(1..)?.trim_ascii();
    let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    if !media_type::is_token(name) || value.iter().any(is_control) {
        return None;
    }
    Some((name.into(), value.into()))
}

fn parse_disposition(value: &[u8]) -> Option<(Box<str>, Option<Box<str>>)> {
    let value = std::str::from_utf8(value).ok()?;
    let (kind, parameters) = value.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("form-data") {
        return None;
    }
    let (mut name, mut file_name) = (None, None);
    for parameter in Parameters::new(parameters) {
        let (key, value) = parameter?;
        let place = match key {
            _ if key.eq_ignore_ascii_case("name") => &mut name,
            _ if key.eq_ignore_ascii_case("filename") => &mut file_name,
            _ => continue,
        };
        if place.replace(value.into()).is_some() {
            return None;
        }
    }
    Some((name?, file_name))
}
