//! Reads a TOML file as a list of names and values with line numbers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use ::toml::Spanned;
use ::toml::de::{DeTable, DeValue};

use super::error::ConfigError;

/// A value in the configuration. There is one variant for each TOML type that an option can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A string.
    Text(String),
    /// An integer.
    Count(i64),
    /// `true` or `false`.
    Switch(bool),
    /// An array, in order.
    List(Vec<Self>),
    /// A table, by key.
    Table(BTreeMap<String, Self>),
    /// A value of a type that no option has, as written in the file.
    Other(String),
}

impl Value {
    /// Returns the text; `None` if the value is of another type.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    /// Formats the value as TOML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write_text(f, text),
            Self::Count(number) => write!(f, "{number}"),
            Self::Switch(is_on) => write!(f, "{is_on}"),
            Self::Other(text) => f.write_str(text),
            Self::List(values) => {
                f.write_str("[")?;
                for (i, value) in values.iter().enumerate() {
                    let comma = if i > 0 { ", " } else { "" };
                    write!(f, "{comma}{value}")?;
                }
                f.write_str("]")
            }
            Self::Table(values) => {
                f.write_str("{")?;
                for (i, (name, value)) in values.iter().enumerate() {
                    f.write_str(if i > 0 { ", " } else { " " })?;
                    write_name(f, name)?;
                    write!(f, " = {value}")?;
                }
                f.write_str(" }")
            }
        }
    }
}

fn write_name(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match !name.is_empty() && name.bytes().all(is_bare) {
        true => f.write_str(name),
        false => write_text(f, name),
    }
}

fn write_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            c if c.is_control() => write!(f, "\\u{:04X}", u32::from(c))?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}

/// A name in a TOML file and its value.
#[derive(Debug)]
pub(super) struct Leaf {
    /// Dotted name, as in `tls.certificate`.
    pub(super) name: String,
    /// The value; `None` for a table, whose entries are separate leaves.
    pub(super) value: Option<Value>,
    /// Number of the line with the name, starting at 1.
    pub(super) line: usize,
}

/// Returns the names and values of a file, in order. Tables for which `is_table` is true hold
/// values; all other tables are values themselves.
pub(super) fn leaves(
    path: &Path,
    text: &str,
    is_table: impl Fn(&str) -> bool,
) -> Result<Vec<Leaf>, ConfigError> {
    let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        path: path.to_owned(),
        line: error.span().map_or(1, |span| line(text, span.start)),
        message: error.message().to_owned(),
    })?;
    let mut leaves = Vec::new();
    let mut tables = vec![(String::new(), table.into_inner())];
    while let Some((prefix, table)) = tables.pop() {
        for (name, value) in table {
            let line = line(text, name.span().start);
            let name = format!("{prefix}{}", name.into_inner());
            let value = match value.into_inner() {
                DeValue::Table(table) if is_table(&name) => {
                    tables.push((format!("{name}."), table));
                    None
                }
                value => Some(of(value)),
            };
            leaves.push(Leaf { name, value, line });
        }
    }
    leaves.sort_by_key(|leaf| leaf.line);
    Ok(leaves)
}

/// Parses a single value in TOML syntax; `None` if it is invalid.
pub(super) fn value(text: &str) -> Option<Value> {
    let value = DeValue::parse(text).ok()?;
    Some(of(value.into_inner()))
}

/// Returns the line of the byte at `offset`, counted from 1.
fn line(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or_default();
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

fn of(value: DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Boolean(is_on) => Value::Switch(is_on),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Count(number),
            Err(_) => Value::Other(number.as_str().to_owned()),
        },
        DeValue::Float(number) => Value::Other(number.as_str().to_owned()),
        DeValue::Datetime(time) => Value::Other(time.to_string()),
        DeValue::Array(values) => {
            let values = values.into_iter().map(Spanned::into_inner);
            Value::List(values.map(of).collect())
        }
        DeValue::Table(table) => {
            let pairs = table.into_iter();
            let pair = |(name, value): (Spanned<Cow<'_, str>>, Spanned<DeValue<'_>>)| {
                (name.into_inner().into_owned(), of(value.into_inner()))
            };
            Value::Table(pairs.map(pair).collect())
        }
    }
}
