//! Production files of the workspace as modules of their crates: without tests, entry points for
//! fuzzing, and further programs.

use std::collections::BTreeMap;

use super::Text;
use super::lexer::{self, Line};

/// The path of a module within its crate, such as `["io", "thread"]`; empty for the crate's root.
pub(super) type ModulePath = Vec<String>;

/// A production file, which is one module of its crate.
#[derive(Debug)]
pub(super) struct Module<'a> {
    pub(super) file: &'a str,
    /// Every line of the file. Those of inline test modules are empty.
    pub(super) lines: Vec<Line>,
}

/// Returns the modules of each crate, by the crate's folder.
pub(super) fn by_crate(texts: &[Text]) -> BTreeMap<&str, BTreeMap<ModulePath, Module<'_>>> {
    let mut crates: BTreeMap<&str, BTreeMap<ModulePath, Module<'_>>> = BTreeMap::new();
    for text in texts {
        let Some((folder, below)) = text.path.split_once("/src/") else {
            continue;
        };
        let Some(stem) = below.strip_suffix(".rs") else {
            continue;
        };
        let mut path: ModulePath = stem.split('/').map(str::to_owned).collect();
        let is_test = path
            .iter()
            .any(|name| matches!(&**name, "tests" | "fuzzing" | "bin") || name.ends_with("_tests"));
        if is_test {
            continue;
        }
        match path.last().map(String::as_str) {
            Some("mod") => drop(path.pop()),
            Some("lib" | "main") if path.len() == 1 => path.clear(),
            _ => {}
        }
        let lines = without_tests(lexer::lines(&text.content));
        let file = &*text.path;
        crates
            .entry(folder)
            .or_default()
            .insert(path, Module { file, lines });
    }
    crates
}

/// Empties the lines of `#[cfg(test)] mod … { … }` at the top level; rustfmt ends it with `}` in
/// column one.
fn without_tests(mut lines: Vec<Line>) -> Vec<Line> {
    let mut index = 0;
    while index < lines.len() {
        let is_test = lines[index].code.starts_with("#[cfg(") && lines[index].code.contains("test");
        index += 1;
        if !is_test {
            continue;
        }
        while lines
            .get(index)
            .is_some_and(|line| line.code.starts_with("#[") || line.code.is_empty())
        {
            index += 1;
        }
        let is_module = |line: &Line| line.code.contains("mod ") && line.code.ends_with('{');
        if !lines.get(index).is_some_and(is_module) {
            continue;
        }
        while index < lines.len() {
            let line = std::mem::take(&mut lines[index]);
            index += 1;
            if line.code == "}" {
                break;
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_modules_and_tests_are_left_out() {
        let text = |path: &str, content: &str| Text {
            path: path.into(),
            content: content.into(),
        };
        let texts = [
            text(
                "crates/a/src/lib.rs",
                "mod b;\n#[cfg(test)]\nmod tests {\n    use x;\n}\nlast();\n",
            ),
            text("crates/a/src/b/mod.rs", ""),
            text("crates/a/src/b/c.rs", ""),
            text("crates/a/src/b/tests.rs", ""),
            text("crates/a/tests/d.rs", ""),
        ];
        let crates = by_crate(&texts);
        let modules = &crates["crates/a"];
        let paths: Vec<String> = modules.keys().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["", "b", "b::c"]);
        let code: Vec<&str> = modules[&Vec::new()]
            .lines
            .iter()
            .map(|line| &*line.code)
            .collect();
        assert_eq!(code, ["mod b;", "#[cfg(test)]", "", "", "", "last();"]);
    }
}
