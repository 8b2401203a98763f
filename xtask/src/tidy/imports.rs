//! Rules for imports between the files of one crate: no large import cycles, and no import from a
//! higher layer.
//!
//! A block marked `floors` in ARCHITECTURE.md lists the layers of a crate, from the top down:
//!
//! ````text
//! ```floors crates/samovar-cache
//! site
//! pages access
//! route
//! ```
//! ````
//!
//! Each line names modules at the top level of the crate. A module imports only from lines below
//! its own.

use super::uses::{Modules, Uses, circles};
use super::{Finding, Text, modules};

const DOCUMENT: &str = "ARCHITECTURE.md";
const FENCE: &str = "```floors ";

/// Maximum number of files that may import each other in a cycle, such as a parent and its
/// children.
const CIRCLE_LEN_MAX: usize = 3;

/// Checks all crates against `document`, the text of ARCHITECTURE.md.
pub(super) fn check(texts: &[Text], document: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let crates = modules::by_crate(texts);
    for modules in crates.values() {
        let arrows = Uses::of(modules).arrows();
        let circles = circles(&arrows).into_iter();
        let too_large = circles.filter(|group| group.len() > CIRCLE_LEN_MAX);
        findings.extend(too_large.map(|group| {
            let files: Vec<&str> = group.into_iter().map(|path| modules[path].file).collect();
            let message = format!(
                "is in a circle of {} files that import each other, at most {CIRCLE_LEN_MAX} may: \
                 none of them can be understood or changed alone: {}",
                files.len(),
                files.join(", ")
            );
            Finding::new(files[0], 0, message)
        }));
    }
    for (folder, layers) in layers(document) {
        match crates.get(&*folder) {
            Some(modules) => findings.extend(upward(&folder, &layers, modules)),
            None => {
                let message = format!("lists the layers of `{folder}`, which is no crate");
                findings.push(Finding::new(DOCUMENT, 0, message));
            }
        }
    }
    findings
}

/// Parses the layers that a document lists for each crate, from the top down.
fn layers(document: &str) -> Vec<(String, Vec<Vec<String>>)> {
    let mut found = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        if let Some(folder) = line.trim().strip_prefix(FENCE) {
            let block = lines.by_ref().take_while(|line| line.trim() != "```");
            let names = |line: &str| line.split_whitespace().map(str::to_owned).collect();
            found.push((folder.trim().to_owned(), block.map(names).collect()));
        }
    }
    found
}

/// Reports modules that import from their own layer or a higher one, and modules without a layer.
fn upward(folder: &str, layers: &[Vec<String>], modules: &Modules<'_>) -> Vec<Finding> {
    let layer = |name: &str| {
        let mut all = layers.iter();
        all.position(|names| names.iter().any(|listed| listed == name))
    };
    let mut findings = Vec::new();
    for (from, targets) in Uses::of(modules).arrows() {
        let Some(name) = from.first() else { continue };
        let file = modules[&from].file;
        let Some(own) = layer(name) else {
            let message =
                format!("is in no layer: list `{name}` below `{FENCE}{folder}` in {DOCUMENT}");
            findings.push(Finding::new(file, 0, message));
            continue;
        };
        for to in targets
            .iter()
            .filter_map(|to| to.first())
            .filter(|to| *to != name)
        {
            if layer(to).is_some_and(|other| other <= own) {
                let message = format!(
                    "imports `{to}`, which is not below `{name}` in {DOCUMENT}: a layer knows only \
                     those below it"
                );
                findings.push(Finding::new(file, 0, message));
            }
        }
    }
    findings.dedup();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(files: &[(&str, &str)]) -> Vec<Text> {
        files
            .iter()
            .map(|(name, content)| Text {
                path: format!("crates/a/src/{name}.rs"),
                content: (*content).to_owned(),
            })
            .collect()
    }

    fn messages(files: &[(&str, &str)], document: &str) -> Vec<String> {
        let found = check(&texts(files), document);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_circle_of_four_files_is_found() {
        let circle = [
            ("lib", "mod a;\nmod b;\nmod c;\nmod d;\n"),
            ("a", "use crate::b::B;\n"),
            ("b", "use super::c::{C, D};\n"),
            ("c/mod", "use crate::{\n    d::D,\n};\n"),
            ("d", "use crate::a::A; // and back\n"),
        ];
        let found = messages(&circle, "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("4 files"), "{found:?}");
        assert!(messages(&circle[..4], "").is_empty());
        // Imports in comments, strings and tests do not count.
        let mut harmless = circle;
        harmless[4].1 = "// use crate::a::A;\nconst S: &str = \"use crate::a::A;\";\n\
            #[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n";
        assert!(messages(&harmless, "").is_empty());
    }

    #[test]
    fn a_layer_imports_only_what_is_below() {
        let document = "```floors crates/a\ntop\nleft right\nbottom\n```\n";
        let files = [
            ("top", "use crate::bottom::B;\n"),
            ("left", "use crate::right::R;\n"),
            ("right", ""),
            ("bottom", "use crate::top::T;\n"),
            ("new", ""),
        ];
        let found = messages(&files, document);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("bottom.rs: imports `top`"), "{found:?}");
        assert!(found[1].contains("left.rs: imports `right`"), "{found:?}");
        assert!(found[2].contains("new.rs: is in no layer"), "{found:?}");
        assert!(messages(&[], "```floors crates/b\n```")[0].contains("no crate"));
    }
}
