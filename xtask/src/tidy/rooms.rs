//! Rule that the modules at the top level of a crate do not import each other in circles. Each is
//! taken together with all modules below it, and called a room in this file.

use std::collections::{BTreeMap, BTreeSet};

use super::ratchet::Exceptions;
use super::uses::{Arrows, Uses, circles};
use super::{Finding, Text, modules};

/// The list of crates whose modules at the top level still import each other in circles, with the
/// number of these modules.
pub(super) const LIST: &str = "xtask/circles.txt";

/// Counts the modules at the top level that are in circles, and compares the numbers with the list.
pub(super) fn check(texts: &[Text], list: &str) -> Vec<Finding> {
    let crates = modules::by_crate(texts);
    let all: BTreeMap<&str, Arrows<String>> = crates
        .iter()
        .map(|(folder, modules)| (*folder, Uses::of(modules).room_arrows()))
        .collect();
    let counts = all.iter().map(|(folder, arrows)| {
        let count = circles(arrows).iter().map(Vec::len).sum();
        ((*folder).to_owned(), count)
    });
    let list = Exceptions {
        file: LIST,
        text: list,
        max: 0,
    };
    list.check(counts.collect(), |folder, count, allowed| {
        let circles = circles(&all[folder]);
        let circles: Vec<String> = circles.iter().map(|rooms| format!("{rooms:?}")).collect();
        let message = format!(
            "{count} modules at the top level import each other in circles, {LIST} allows \
             {allowed}: none of them can be understood or changed alone: {}",
            circles.join(", ")
        );
        Finding::new(folder, 0, message)
    })
}

/// Returns a table of the numbers of modules and imports at the top level of each crate.
pub(super) fn table(texts: &[Text]) -> String {
    let mut lines = vec!["modules  imports  up  in circles  crate".to_owned()];
    for (folder, modules) in &modules::by_crate(texts) {
        let arrows = Uses::of(modules).room_arrows();
        let count: usize = arrows.values().map(BTreeSet::len).sum();
        let in_circles: usize = circles(&arrows).iter().map(Vec::len).sum();
        let (rooms, up) = (arrows.len(), up_count(&arrows));
        lines.push(format!(
            "{rooms:>7}  {count:>7}  {up:>2}  {in_circles:>10}  {folder}"
        ));
    }
    lines.join("\n")
}

/// Returns the number of imports from a higher layer if the rooms are stacked well: repeatedly, a
/// room that imports none of the rooms left goes to the bottom; if each imports one, the room with
/// the most importers, compared with the number of its imports.
fn up_count(arrows: &Arrows<String>) -> usize {
    let mut left = arrows.clone();
    let mut up_count = 0;
    while let Some(lowest) = left.keys().min_by_key(|room| {
        let imports = left[*room].len();
        let importers = left.values().filter(|targets| targets.contains(*room));
        (
            imports > 0,
            imports.cast_signed() - importers.count().cast_signed(),
        )
    }) {
        let lowest = lowest.clone();
        up_count += left.remove(&lowest).unwrap_or_default().len();
        for targets in left.values_mut() {
            targets.remove(&lowest);
        }
    }
    up_count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_of_rooms_are_counted() {
        let text = |name: &str, content: &str| Text {
            path: format!("crates/a/src/{name}.rs"),
            content: content.into(),
        };
        let texts = [
            text("lib", "mod a;\nmod b;\nmod c;\n"),
            text("a/one", "use crate::b::B;\n"),
            text("a/two", ""),
            text("b", "use crate::a::two::Two;\nuse crate::c::C;\n"),
            text("c", ""),
        ];
        let found = check(&texts, "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("[\"a\", \"b\"]"), "{found:?}");
        assert_eq!(check(&texts, "crates/a 2\n"), []);
        assert_eq!(check(&texts[..3], "crates/a 2\n").len(), 1);
        let row = "      3        3   1           2  crates/a";
        assert_eq!(table(&texts).lines().nth(1), Some(row));
    }
}
