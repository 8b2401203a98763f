//! Rules for imports between the files of one crate: no large import cycles, and no import from a
//! higher floor.
//!
//! An import counts for the file that defines the name, even if the name is imported through
//! re-exports; a re-export itself does not count. ARCHITECTURE.md may list the floors of a crate,
//! from the top down:
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

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Module, ModulePath};
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
        let circles = circles(modules, &arrows(modules));
        let too_large = circles.iter().filter(|files| files.len() > CIRCLE_LEN_MAX);
        findings.extend(too_large.map(|files| {
            let message = format!(
                "is in a circle of {} files that import each other, at most {CIRCLE_LEN_MAX} may: \
                 none of them can be understood or changed alone: {}",
                files.len(),
                files.join(", ")
            );
            Finding::new(files[0], 0, message)
        }));
    }
    for (folder, floors) in floors(document) {
        match crates.get(&*folder) {
            Some(modules) => findings.extend(upward(&folder, &floors, modules)),
            None => {
                let message = format!("draws the floors of `{folder}`, which is no crate");
                findings.push(Finding::new(DOCUMENT, 0, message));
            }
        }
    }
    findings
}

type Modules<'a> = BTreeMap<ModulePath, Module<'a>>;
type Arrows = BTreeMap<ModulePath, BTreeSet<ModulePath>>;

/// An import: the path from the crate's root to the imported name, and whether it is a re-export.
struct Import {
    path: ModulePath,
    name: String,
    is_export: bool,
}

/// Returns for each module the modules of the same crate that define the names it imports.
fn arrows(modules: &Modules<'_>) -> Arrows {
    let all: BTreeMap<&ModulePath, Vec<Import>> = modules
        .iter()
        .map(|(path, module)| (path, imports(path, module, modules)))
        .collect();
    let mut arrows = Arrows::new();
    for (from, imports) in &all {
        let targets = arrows.entry((*from).clone()).or_default();
        for import in imports.iter().filter(|import| !import.is_export) {
            let target = defined_in(&import.path, modules, |module, name| {
                exported(all.get(module)?, name)
            });
            // Every module may import what the crate's root defines; the root seldom has more than
            // re-exports.
            if !target.is_empty() && target != **from {
                targets.insert(target);
            }
        }
    }
    arrows
}

/// Returns the path from which a module imports `name`; `None` if it does not import it.
fn exported(imports: &[Import], name: &str) -> Option<ModulePath> {
    let found = imports.iter().find(|import| import.name == name);
    found.map(|import| import.path.clone())
}

/// Returns the module that defines the name at the end of `path`. Follows re-exports.
fn defined_in(
    path: &[String],
    modules: &Modules<'_>,
    import: impl Fn(&ModulePath, &str) -> Option<ModulePath>,
) -> ModulePath {
    let mut path = path.to_vec();
    // Chains of re-exports are short. The bound stops a circular chain.
    for _ in 0..8 {
        let known = (0..=path.len())
            .rev()
            .find(|&len| modules.contains_key(&path[..len]));
        let (module, rest) = path.split_at(known.unwrap_or_default());
        let module = module.to_vec();
        let Some((name, rest)) = rest.split_first() else {
            return module;
        };
        match import(&module, name) {
            Some(mut next) => {
                next.extend_from_slice(rest);
                if next == path {
                    return module;
                }
                path = next;
            }
            None => return module,
        }
    }
    path
}

/// Returns the imports of one file from its own crate.
fn imports(path: &ModulePath, module: &Module<'_>, modules: &Modules<'_>) -> Vec<Import> {
    let mut imports = Vec::new();
    for (is_export, text) in use_items(module) {
        for item in write_out("", &text) {
            let (item, alias) = match item.split_once(" as ") {
                Some((item, alias)) => (item.to_owned(), Some(alias.trim().to_owned())),
                None => (item, None),
            };
            let mut segments: ModulePath = item
                .split("::")
                .map(|segment| segment.trim().to_owned())
                .collect();
            if segments
                .last()
                .is_some_and(|last| last == "self" || last == "*")
            {
                segments.pop();
            }
            let Some(absolute) = absolute(path, &segments, modules) else {
                continue;
            };
            let name = alias
                .or_else(|| absolute.last().cloned())
                .unwrap_or_default();
            imports.push(Import {
                path: absolute,
                name,
                is_export,
            });
        }
    }
    imports
}

/// Returns the text of each `use` item, and whether it is public.
fn use_items(module: &Module<'_>) -> Vec<(bool, String)> {
    let mut items = Vec::new();
    let mut open: Option<(bool, String)> = None;
    for line in &module.lines {
        let code = line.code.trim();
        if open.is_none() {
            let private = code.strip_prefix("use ");
            let public = code
                .starts_with("pub")
                .then(|| code.split_once("use "))
                .flatten()
                .filter(|(before, _)| !before.contains(['{', '=']));
            open = match (private, public) {
                (Some(rest), _) => Some((false, rest.to_owned())),
                (None, Some((_, rest))) => Some((true, rest.to_owned())),
                (None, None) => None,
            };
        } else if let Some((_, text)) = &mut open {
            text.push(' ');
            text.push_str(code);
        }
        if let Some((is_export, text)) = open.take_if(|(_, text)| text.contains(';')) {
            let text = text.split(';').next().unwrap_or_default().to_owned();
            items.push((is_export, text));
        }
    }
    items
}

/// Expands nested imports: `a::{b, c::{d, e}}` becomes `a::b`, `a::c::d`, `a::c::e`.
fn write_out(prefix: &str, tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((head, group)) = tree.split_once('{') else {
        return if tree.is_empty() {
            Vec::new()
        } else {
            vec![format!("{prefix}{tree}")]
        };
    };
    let prefix = format!("{prefix}{}", head.trim());
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let mut depth = 0_u32;
    let mut parts = vec![String::new()];
    for character in group.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if character == ',' && depth == 0 {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    parts
        .iter()
        .flat_map(|part| write_out(&prefix, part))
        .collect()
}

/// Resolves a path in `module` to a path from the crate's root; `None` if it leads to another
/// crate.
fn absolute(module: &ModulePath, path: &[String], modules: &Modules<'_>) -> Option<ModulePath> {
    let (first, rest) = path.split_first()?;
    let mut base = module.clone();
    match &**first {
        "crate" => return Some(rest.to_vec()),
        "self" => base.extend_from_slice(rest),
        "super" => {
            base.pop();
            let mut rest = rest;
            while let Some((next, behind)) = rest.split_first()
                && next == "super"
            {
                base.pop();
                rest = behind;
            }
            base.extend_from_slice(rest);
        }
        _ => {
            base.push(first.clone());
            if !modules.contains_key(&base) {
                return None;
            }
            base.extend_from_slice(rest);
        }
    }
    Some(base)
}

/// Returns the groups of files that import each other in a cycle, directly or through other files.
fn circles<'a>(modules: &Modules<'a>, arrows: &Arrows) -> Vec<Vec<&'a str>> {
    let reach: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = arrows
        .keys()
        .map(|from| (from, reachable(from, arrows)))
        .collect();
    let mut groups = BTreeSet::new();
    for (from, all) in &reach {
        let back = |to: &&ModulePath| reach.get(*to).is_some_and(|back| back.contains(from));
        groups.insert(all.iter().copied().filter(back).collect::<Vec<_>>());
    }
    let files = |group: Vec<&ModulePath>| group.iter().map(|path| modules[*path].file).collect();
    let groups = groups.into_iter().filter(|group| !group.is_empty());
    groups.map(files).collect()
}

fn reachable<'a>(from: &'a ModulePath, arrows: &'a Arrows) -> BTreeSet<&'a ModulePath> {
    let mut found = BTreeSet::new();
    let mut left = vec![from];
    while let Some(next) = left.pop() {
        for to in arrows.get(next).into_iter().flatten() {
            if found.insert(to) {
                left.push(to);
            }
        }
    }
    found
}

/// Parses the floors that a document lists for each crate, from the top down.
fn floors(document: &str) -> Vec<(String, Vec<Vec<String>>)> {
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

/// Reports modules that import from their own floor or a higher one, and modules without a floor.
fn upward(folder: &str, floors: &[Vec<String>], modules: &Modules<'_>) -> Vec<Finding> {
    let floor = |name: &str| {
        let mut all = floors.iter();
        all.position(|names| names.iter().any(|listed| listed == name))
    };
    let mut findings = Vec::new();
    for (from, targets) in arrows(modules) {
        let Some(name) = from.first() else { continue };
        let file = modules[&from].file;
        let Some(own) = floor(name) else {
            let message =
                format!("is on no floor: list `{name}` below `{FENCE}{folder}` in {DOCUMENT}");
            findings.push(Finding::new(file, 0, message));
            continue;
        };
        for to in targets
            .iter()
            .filter_map(|to| to.first())
            .filter(|to| *to != name)
        {
            if floor(to).is_some_and(|other| other <= own) {
                let message = format!(
                    "imports `{to}`, which is not below `{name}` in {DOCUMENT}: a floor knows only \
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
    fn an_import_counts_for_the_file_that_defines_the_name() {
        let files = [
            ("lib", "mod a;\nmod b;\npub use b::deep::Deep;\n"),
            ("a", "use crate::Deep;\n"),
            ("b/mod", "mod deep;\npub(crate) use deep::Deep;\n"),
            ("b/deep", ""),
        ];
        let texts = texts(&files);
        let crates = modules::by_crate(&texts);
        let arrows = arrows(&crates["crates/a"]);
        let from = vec!["a".to_owned()];
        let to = vec!["b".to_owned(), "deep".to_owned()];
        assert_eq!(arrows[&from], BTreeSet::from([to]));
    }

    #[test]
    fn a_floor_imports_only_what_is_below() {
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
        assert!(found[2].contains("new.rs: is on no floor"), "{found:?}");
        assert!(messages(&[], "```floors crates/b\n```")[0].contains("no crate"));
    }
}
