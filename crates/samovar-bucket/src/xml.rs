//! Single elements of XML answers, such as the code of an error.
//!
//! Engines answer errors with all kinds of texts: XML with and without a name space, HTML of a
//! proxy, nothing. So this is a search for `<Name>text</Name>`, not a parser; what is not found is
//! absent.

/// Returns the text of the first element called `name`, with the five named entities decoded.
///
/// Returns `None` if there is none, or if it has child elements.
pub(crate) fn element(document: &str, name: &str) -> Option<String> {
    let open = format!("<{name}>");
    let close = format!("</{name}>");
    let (_, rest) = document.split_once(&open)?;
    let (text, _) = rest.split_once(&close)?;
    (!text.contains('<')).then(|| decoded(text.trim()))
}

/// Returns the texts between each `<Name>` and its `</Name>`, as they are.
pub(crate) fn elements<'d>(document: &'d str, name: &str) -> Vec<&'d str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut found = Vec::new();
    let mut rest = document;
    while let Some((_, after)) = rest.split_once(&open) {
        let Some((text, end)) = after.split_once(&close) else {
            break;
        };
        found.push(text);
        rest = end;
    }
    found
}

/// Appends `text` to `document`, encoded as the text of an element.
pub(crate) fn append_text(document: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '&' => document.push_str("&amp;"),
            '<' => document.push_str("&lt;"),
            '>' => document.push_str("&gt;"),
            '"' => document.push_str("&quot;"),
            other => document.push(other),
        }
    }
}

fn decoded(text: &str) -> String {
    // The ampersand last: "&amp;lt;" is the text "&lt;".
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#34;", "\"")
        .replace("&apos;", "'")
        .replace("&#39;", "'")
        .replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_code_of_an_error_is_found() {
        let answer = "<?xml version=\"1.0\"?>\n<Error><Code>NoSuchKey</Code><Message>a &lt;b&gt; \
                      &amp;lt;</Message><Key/></Error>";
        assert_eq!(element(answer, "Code").as_deref(), Some("NoSuchKey"));
        assert_eq!(element(answer, "Message").as_deref(), Some("a <b> &lt;"));
        assert_eq!(element(answer, "Key"), None);
        assert_eq!(element("<html>no</html>", "Code"), None);
        assert_eq!(element("<Code>a<b></Code>", "Code"), None);
        assert_eq!(element("<Code>a", "Code"), None);
    }

    #[test]
    fn all_elements_are_found() {
        let answer = "<R><Rule><A>1</A></Rule><Rule><A>2</A></Rule><Rule></R>";
        assert_eq!(elements(answer, "Rule"), ["<A>1</A>", "<A>2</A>"]);
    }

    proptest! {
        #[test]
        fn a_text_is_read_as_it_was_written(text in "[ -~äß&<>\"']*") {
            let mut document = String::from("<Key>");
            append_text(&mut document, &text);
            document.push_str("</Key>");
            let text = text.trim().to_owned();
            prop_assert_eq!(element(&document, "Key"), Some(text));
        }
    }
}
