//! Adds lines to configuration files of the user, and removes exactly these lines again.
//!
//! Each added line ends in a comment with the URL of its cache. The comment also records what else
//! the addition changed: the file may not have existed, or its last line may have had no end.

use std::fmt;

const MARK: &str = "# samovar use ";

/// What the addition of a line changed in the file besides the line itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    None,
    /// The addition created the file.
    Created,
    /// The addition ended the file's last line, which had no line feed.
    EndedLine,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "",
            Self::Created => " (new file)",
            Self::EndedLine => " (after a line without end)",
        })
    }
}

/// Returns the text of a file with `line` for the cache at `url` added at its end. `text`: the text
/// before, or `None` if the file does not exist.
pub(super) fn add(text: Option<&str>, line: &str, url: &str) -> String {
    let effect = match text {
        None => Effect::Created,
        Some(text) if text.is_empty() || text.ends_with('\n') => Effect::None,
        Some(_) => Effect::EndedLine,
    };
    let line_end = match effect {
        Effect::EndedLine => "\n",
        _ => "",
    };
    let text = text.unwrap_or_default();
    format!("{text}{line_end}{line} {MARK}{url}{effect}\n")
}

/// Returns the line that was added for the cache at `url`, without its comment. `None`: no line was
/// added for this cache.
pub(super) fn find<'a>(text: &'a str, url: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    lines.find_map(|line| {
        let (line, of, _) = parse(line)?;
        (of == url).then_some(line)
    })
}

/// Removes the line that was added for the cache at `url`. Returns the rest of the file. Returns
/// `None` if the addition created the file and nothing else is left in it.
pub(super) fn remove(text: &str, url: &str) -> Option<String> {
    let mut rest = String::with_capacity(text.len());
    // Effect of the line that was just removed.
    let mut effect = Effect::None;
    for line in text.split_inclusive('\n') {
        match parse(line.trim_end_matches('\n')) {
            Some((_, of, removed)) if of == url => {
                effect = removed;
                if effect == Effect::EndedLine {
                    rest.pop();
                }
            }
            // The next added line, of another cache, inherits the effect of the removed line.
            Some((added, of, Effect::None)) if effect != Effect::None => {
                if effect == Effect::EndedLine {
                    rest.push('\n');
                }
                rest.push_str(&format!("{added} {MARK}{of}{effect}\n"));
                effect = Effect::None;
            }
            _ => {
                // Other text follows the removed line, so the line before that keeps its line feed.
                if effect == Effect::EndedLine {
                    rest.push('\n');
                }
                effect = Effect::None;
                rest.push_str(line);
            }
        }
    }
    (!rest.is_empty() || effect != Effect::Created).then_some(rest)
}

/// Splits an added line into its text, the URL of its cache, and the effect of the addition.
/// Returns `None` for a line that `add` did not write.
fn parse(line: &str) -> Option<(&str, &str, Effect)> {
    let (line, url) = line.split_once(MARK)?;
    let line = line.trim_end();
    for effect in [Effect::Created, Effect::EndedLine] {
        if let Some(url) = url.strip_suffix(&effect.to_string()) {
            return Some((line, url, effect));
        }
    }
    Some((line, url, Effect::None))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "http://a";
    const B: &str = "http://b/c";

    #[test]
    fn what_was_added_is_removed_in_any_order() {
        for before in [None, Some(""), Some("x = 1\n"), Some("x = 1"), Some("\n\n")] {
            let one = add(before, "include a", A);
            assert_eq!(find(&one, A), Some("include a"), "{one:?}");
            assert_eq!(find(&one, B), None);
            assert_eq!(remove(&one, A).as_deref(), before);
            let both = add(Some(&one), "include b", B);
            assert_eq!(remove(&both, B), Some(one));
            let without_a = remove(&both, A).unwrap();
            assert_eq!(find(&without_a, B), Some("include b"), "{without_a:?}");
            assert_eq!(remove(&without_a, B).as_deref(), before, "{without_a:?}");
        }
    }

    #[test]
    fn lines_of_others_stay() {
        for before in [None, Some(""), Some("x = 1\n"), Some("x = 1")] {
            let text = add(before, "include a", A) + "y = 2\n";
            let rest = remove(&text, A).unwrap();
            let expected = match before {
                Some("x = 1") => "x = 1\ny = 2\n".to_owned(),
                before => format!("{}y = 2\n", before.unwrap_or_default()),
            };
            assert_eq!(rest, expected);
            assert_eq!(remove(&rest, A), Some(rest));
        }
    }
}
