//! The Prometheus text format, version 0.0.4.

use std::fmt::{self, Write as _};

/// The media type of the Prometheus text format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Builds a text in the Prometheus format.
#[derive(Debug)]
pub(crate) struct Text {
    /// The declared families, one line each: name, type and help.
    families: &'static str,
    text: String,
}

/// A metric family to which samples are added.
#[derive(Debug)]
pub(crate) struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Text {
    pub(crate) fn new(families: &'static str) -> Self {
        let text = String::new();
        Self { families, text }
    }

    /// Starts a family. It must be one of the declared ones.
    pub(crate) fn family(&mut self, name: &'static str) -> Family<'_> {
        let mut families = self.families.lines();
        let declared =
            families.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.split_once(' '));
        debug_assert!(declared.is_some(), "{name} is not declared");
        let (kind, help) = declared.unwrap_or(("untyped", ""));
        let text = &mut self.text;
        put(
            text,
            format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"),
        );
        Family { text, name }
    }

    /// Adds a family that has a single sample.
    pub(crate) fn put(&mut self, name: &'static str, value: impl fmt::Display) {
        self.family(name).put(&[], value);
    }

    pub(crate) fn into_string(self) -> String {
        self.text
    }
}

impl Family<'_> {
    /// Adds a sample with these labels to the family.
    pub(crate) fn put(&mut self, labels: &[(&str, &str)], value: impl fmt::Display) -> &mut Self {
        self.put_as("", labels, value)
    }

    /// Adds a sample whose name has a suffix, such as `_bucket`.
    pub(crate) fn put_as(
        &mut self,
        suffix: &str,
        labels: &[(&str, &str)],
        value: impl fmt::Display,
    ) -> &mut Self {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let mut separator = '{';
        for (name, label) in labels {
            self.text.push(separator);
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(self.text, label);
            self.text.push('"');
            separator = ',';
        }
        if separator == ',' {
            self.text.push('}');
        }
        put(self.text, format_args!(" {value}\n"));
        self
    }
}

fn put(text: &mut String, arguments: fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes all");
}

/// Escapes the characters that would end a label value or its line.
fn escape(text: &mut String, label: &str) {
    for character in label.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let mut text = Text::new("ab counter Other.\na gauge What.");
        text.family("a")
            .put(&[], 1)
            .put(&[("b", "x\"} 2\n\\"), ("c", "")], 0.5);
        assert_eq!(
            text.into_string(),
            "# HELP a What.\n# TYPE a gauge\na 1\na{b=\"x\\\"} 2\\n\\\\\",c=\"\"} 0.5\n"
        );
    }
}
