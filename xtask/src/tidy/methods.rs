//! Rule that the inherent methods of a type are in few files: who reads one of them needs the state
//! of the type, and so all files that change it.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Module, ModulePath};
use super::ratchet::Exceptions;
use super::uses::Uses;
use super::{Finding, Text, modules};

/// The list of types with methods in more files, with the number of files.
pub(super) const LIST: &str = "xtask/methods.txt";

/// Maximum number of files with inherent methods of a type.
const FILES_MAX: usize = 3;

/// Counts the files with methods of each type, and compares the numbers with the list.
pub(super) fn check(texts: &[Text], list: &str) -> Vec<Finding> {
    let mut files: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (folder, modules) in &modules::by_crate(texts) {
        let uses = Uses::of(modules);
        for (path, module) in modules {
            for name in types(module) {
                let mut full = path.clone();
                full.push(name.clone());
                let mut definition: ModulePath = uses.definer(&full);
                definition.push(name);
                let of_type = files.entry(format!("{folder} {}", definition.join("::")));
                of_type.or_default().insert(module.file);
            }
        }
    }
    let counts = files
        .iter()
        .map(|(name, files)| (name.clone(), files.len()));
    let list = Exceptions {
        file: LIST,
        text: list,
        max: FILES_MAX,
    };
    list.check(counts.collect(), |name, count, allowed| {
        let files: Vec<&str> = files[name].iter().copied().collect();
        let message = format!(
            "`{}` has methods in {count} files, {LIST} allows {allowed}: write functions that get \
             what they need, or split the type: {}",
            name.rsplit("::").next().unwrap_or(name),
            files.join(", ")
        );
        Finding::new(files.first().unwrap_or(&LIST), 0, message)
    })
}

/// Returns the names of the types for which a file has inherent methods.
fn types(module: &Module<'_>) -> BTreeSet<String> {
    let starts = (0..module.lines.len()).filter(|&at| module.lines[at].code.starts_with("impl"));
    let headers = starts.map(|start| {
        let lines = module.lines[start..].iter().map(|line| line.code.trim());
        let text = lines.take(20).collect::<Vec<_>>().join(" ");
        text.split('{').next().unwrap_or_default().to_owned()
    });
    headers.filter_map(|header| of_header(&header)).collect()
}

/// Returns the type of `impl<A> Type<B> where …`; `None` if the header names a trait, too.
fn of_header(header: &str) -> Option<String> {
    let rest = header.strip_prefix("impl")?;
    let rest = if rest.starts_with('<') {
        let mut depth = 0_i32;
        let end = rest.char_indices().find(|&(at, character)| {
            match character {
                '<' => depth += 1,
                '>' if !rest[..at].ends_with('-') => depth -= 1,
                _ => {}
            }
            depth == 0
        })?;
        &rest[end.0 + 1..]
    } else {
        rest
    };
    let is_of_trait = rest.contains(" for ");
    let mut words = rest
        .trim()
        .split(|c: char| !c.is_alphanumeric() && c != '_');
    let name = words
        .next()
        .filter(|name| !name.is_empty() && *name != "dyn");
    name.filter(|_| !is_of_trait).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_an_impl_is_found() {
        let check = |header: &str, expected: Option<&str>| {
            assert_eq!(of_header(header).as_deref(), expected, "{header}");
        };
        check("impl A ", Some("A"));
        check("impl<S: Service> Context<S> ", Some("Context"));
        check(
            "impl<F: Fn(&A<B>) -> C> Map<F> where F: for<'a> D<'a> ",
            Some("Map"),
        );
        check("impl fmt::Debug for A ", None);
        check("impl<T> From<T> for A<T> ", None);
        check("impl dyn Source ", None);
    }

    #[test]
    fn files_with_methods_of_a_type_are_counted() {
        let text = |name: &str, content: &str| Text {
            path: format!("crates/a/src/{name}.rs"),
            content: content.into(),
        };
        let import = "use super::d::D;\nimpl D {\n}\nimpl Other for D {\n}\n";
        let mut texts = vec![
            text("d", "struct D;\nimpl D {\n}\n"),
            text("other", "struct D;\nimpl D {\n}\n"),
            text("e", import),
            text("f", import),
        ];
        assert_eq!(check(&texts, ""), []);
        texts.push(text("g", import));
        let found = check(&texts, "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].message.contains("`D` has methods in 4 files"),
            "{found:?}"
        );
        assert_eq!(check(&texts, "crates/a d::D 4\n"), []);
        assert_eq!(check(&texts, "crates/a d::D 5\n").len(), 1);
    }
}
