//! Rule for the length of functions, which must fit on a screen.

use super::modules::{self, Module};
use super::{Finding, Text};

/// Maximum number of lines of a function, including signature and braces.
const LINES_MAX: usize = 70;

/// Start of the comment that gives the reason for a longer function.
const REMARK: &str = "Long:";

/// Checks the length of each function in production files.
pub(super) fn check(texts: &[Text]) -> Vec<Finding> {
    let crates = modules::by_crate(texts);
    let modules = crates.values().flat_map(|modules| modules.values());
    modules.flat_map(too_long).collect()
}

fn too_long(module: &Module<'_>) -> Vec<Finding> {
    let starts = (0..module.lines.len()).filter(|&at| begins_function(&module.lines[at].code));
    let mut findings = Vec::new();
    for start in starts {
        let len = len(module, start);
        if len > LINES_MAX && !has_remark(module, start) {
            let message = format!(
                "a function of {len} lines, at most {LINES_MAX}: split it, or say above it why \
                 not, in a comment with `{REMARK}`"
            );
            findings.push(Finding::new(module.file, start + 1, message));
        }
    }
    findings
}

/// Returns whether a function item starts in this line: only qualifiers precede the keyword, which
/// excludes function pointers and trait bounds.
fn begins_function(code: &str) -> bool {
    let qualifiers = [
        "pub", "const", "async", "unsafe", "extern", "crate", "super", "in", "",
    ];
    code.split_once("fn ").is_some_and(|(before, _)| {
        let mut words = before.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        words.all(|word| qualifiers.contains(&word))
    })
}

/// Returns the number of lines from `start` to the end of the function's body; 0 for a declaration.
fn len(module: &Module<'_>, start: usize) -> usize {
    let (mut depth, mut brackets) = (0_usize, 0_usize);
    for (index, line) in module.lines.iter().enumerate().skip(start) {
        let code = line.code.replace("'{'", "").replace("'}'", "");
        for character in code.chars() {
            match character {
                '[' => brackets += 1,
                ']' => brackets = brackets.saturating_sub(1),
                ';' if depth == 0 && brackets == 0 => return 0,
                '{' => depth += 1,
                '}' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return index - start + 1;
                    }
                }
                _ => {}
            }
        }
    }
    0
}

fn has_remark(module: &Module<'_>, start: usize) -> bool {
    let above = module.lines[..start].iter().rev();
    let mut above = above.take_while(|line| {
        let code = line.code.trim();
        code.is_empty() && !line.comment.is_empty() || code.starts_with("#[")
    });
    above.any(|line| line.comment.contains(REMARK))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(content: String) -> usize {
        let path = "crates/a/src/lib.rs".to_owned();
        check(&[Text { path, content }]).len()
    }

    fn function(lines: usize) -> String {
        format!(
            "pub(crate) fn f<'a>() -> [u8; 2] {{\n{}}}\n",
            "    g('}');\n".repeat(lines - 2)
        )
    }

    #[test]
    fn a_function_has_seventy_lines_or_a_remark() {
        // `;` in an array type of the signature does not end it.
        assert_eq!(count(function(LINES_MAX)), 0);
        assert_eq!(
            count(format!(
                "fn f() {{\n{}}}\n",
                "    g();\n".repeat(LINES_MAX - 2)
            )),
            0
        );
        assert_eq!(
            count(format!(
                "fn f() {{\n{}}}\n",
                "    g();\n".repeat(LINES_MAX - 1)
            )),
            1
        );
        let long = format!("fn f() {{\n{}}}\n", "    g();\n".repeat(LINES_MAX));
        assert_eq!(
            count(format!("/// F.\n// Long: a table.\n#[inline]\n{long}")),
            0
        );
        assert_eq!(count(format!("// Long: of g.\nfn g() {{}}\n{long}")), 1);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert_eq!(count(tests), 0);
    }
}
