//! Which module of a crate imports which others.
//!
//! An import counts for the module that defines the name, even if the name is imported through
//! re-exports; a re-export itself does not count.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Module, ModulePath};

pub(super) type Modules<'a> = BTreeMap<ModulePath, Module<'a>>;
pub(super) type Arrows<T> = BTreeMap<T, BTreeSet<T>>;

/// The imports of all modules of a crate.
pub(super) struct Uses<'a> {
    modules: &'a Modules<'a>,
    imports: BTreeMap<&'a ModulePath, Vec<Import>>,
}

/// An import: the path from the crate's root to the imported name, and whether it is a re-export.
struct Import {
    path: ModulePath,
    name: String,
    is_export: bool,
}

impl<'a> Uses<'a> {
    pub(super) fn of(modules: &'a Modules<'a>) -> Self {
        let imports = modules
            .iter()
            .map(|(path, module)| (path, imports(path, module, modules)))
            .collect();
        Self { modules, imports }
    }

    /// Returns for each module the modules of the same crate that define the names it imports.
    pub(super) fn arrows(&self) -> Arrows<ModulePath> {
        let mut arrows = Arrows::new();
        for (from, imports) in &self.imports {
            let targets: &mut BTreeSet<_> = arrows.entry((*from).clone()).or_default();
            for import in imports.iter().filter(|import| !import.is_export) {
                let target = self.definer(&import.path);
                // Every module may import what the crate's root defines; the root seldom has more
                // than re-exports.
                if !target.is_empty() && target != **from {
                    targets.insert(target);
                }
            }
        }
        arrows
    }

    /// Returns the imports between the modules at the top level of the crate.
    pub(super) fn room_arrows(&self) -> Arrows<String> {
        let mut rooms = Arrows::new();
        for (from, targets) in self.arrows() {
            let Some(from) = from.first() else { continue };
            let room: &mut BTreeSet<_> = rooms.entry(from.clone()).or_default();
            let targets = targets.into_iter().filter_map(|to| to.into_iter().next());
            room.extend(targets.filter(|to| to != from));
        }
        rooms
    }

    /// Returns the module that defines the name at the end of `path`. Follows re-exports.
    pub(super) fn definer(&self, path: &[String]) -> ModulePath {
        defined_in(path, self.modules, |module, name| {
            exported(self.imports.get(module)?, name)
        })
    }
}

/// Returns the groups of modules that import each other in a circle, directly or through others.
pub(super) fn circles<T: Ord>(arrows: &Arrows<T>) -> BTreeSet<Vec<&T>> {
    let reach: BTreeMap<&T, BTreeSet<&T>> = arrows
        .keys()
        .map(|from| (from, reachable(from, arrows)))
        .collect();
    let mut groups = BTreeSet::new();
    for (from, all) in &reach {
        let back = |to: &&T| reach.get(to).is_some_and(|back| back.contains(from));
        groups.insert(all.iter().copied().filter(back).collect::<Vec<_>>());
    }
    groups.retain(|group| !group.is_empty());
    groups
}

fn reachable<'a, T: Ord>(from: &'a T, arrows: &'a Arrows<T>) -> BTreeSet<&'a T> {
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

#[cfg(test)]
mod tests {
    use super::super::{Text, modules};
    use super::*;

    fn file(name: &str, content: &str) -> Text {
        Text {
            path: format!("crates/a/src/{name}.rs"),
            content: content.to_owned(),
        }
    }

    #[test]
    fn an_import_counts_for_the_file_that_defines_the_name() {
        let files = [
            ("lib", "mod a;\nmod b;\npub use b::deep::Deep;\n"),
            ("a", "use crate::Deep;\n"),
            ("b/mod", "mod deep;\npub(crate) use deep::Deep;\n"),
            ("b/deep", ""),
        ];
        let texts: Vec<_> = files.iter().map(|(name, text)| file(name, text)).collect();
        let crates = modules::by_crate(&texts);
        let uses = Uses::of(&crates["crates/a"]);
        let from = vec!["a".to_owned()];
        let to = vec!["b".to_owned(), "deep".to_owned()];
        assert_eq!(uses.arrows()[&from], BTreeSet::from([to]));
        assert_eq!(uses.room_arrows()["a"], BTreeSet::from(["b".to_owned()]));
        assert_eq!(uses.room_arrows()["b"], BTreeSet::new());
    }
}
