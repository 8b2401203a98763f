//! A generated tree of small files, like the `node_modules` folder of a web application.
//!
//! The numbers are those of a measured tree: an Angular 15.2 project after `npm install`. At scale
//! 1 the generated tree has the same numbers of files, directories, links and executables, the same
//! number of files in each size class, and about the same sum of sizes and share of duplicates.

use crate::content::Content;
use crate::nar::Node;
use crate::random::SplitMix64;

/// Number of directories of the measured tree, including its root.
const DIRECTORY_COUNT: usize = 3_824;

/// Number of entries of the largest directory of the measured tree.
const LARGEST_COUNT: usize = 1_156;

/// Number of symbolic links of the measured tree.
const LINK_COUNT: usize = 79;

/// Number of files of the measured tree, and of the executables among them.
const FILE_COUNT: usize = 42_246;
const EXECUTABLE_COUNT: usize = 5_653;

/// Number of directories of a generated package.
const PACKAGE_COUNT: usize = 4;

/// A size class of the measured tree.
struct Class {
    /// Smallest and largest size, in bytes.
    sizes: (u64, u64),
    count: usize,
    /// Share of files whose contents are a copy of an earlier file's, in percent.
    copies: u64,
}

const fn class(least: u64, largest: u64, count: usize, copies: u64) -> Class {
    Class {
        sizes: (least, largest),
        count,
        copies,
    }
}

const CLASSES: [Class; 13] = [
    class(0, 0, 32, 0),
    class(1, 184, 10_001, 60),
    class(185, 368, 5_757, 60),
    class(369, 736, 5_626, 60),
    class(737, 1_472, 6_358, 60),
    class(1_473, 2_944, 5_876, 20),
    class(2_945, 5_888, 3_907, 20),
    class(5_889, 11_776, 2_359, 20),
    class(11_777, 23_552, 1_144, 20),
    class(23_553, 47_104, 620, 20),
    class(47_105, 94_208, 284, 20),
    class(94_209, 520_000, 273, 20),
    // Nine files have 30 % of the bytes.
    class(5_000_000, 15_000_000, 9, 0),
];

/// Generates the tree, with all its numbers divided by `shrink`; every class has at least one file.
/// Contents are recipes: [`Node::write_tree`] generates them.
#[must_use]
pub fn small_files(shrink: usize) -> Node<Content> {
    let scaled = |count: usize| (count / shrink).max(1);
    let mut random = SplitMix64::new(42);
    let mut contents = contents(&mut random, scaled);
    shuffle(&mut contents, &mut random);
    let directory_count = scaled(DIRECTORY_COUNT).max(4);
    // The directories: the root, `.bin`, the largest one, and packages of [`PACKAGE_COUNT`]
    // directories.
    let parents: Vec<usize> = (0..directory_count)
        .map(|index| match (index, (index + 1) % PACKAGE_COUNT) {
            (0..=2, _) | (_, 0) => 0,
            // Any of the package's directories before this one.
            (_, place) => index - place + random.index(place),
        })
        .collect();
    let mut entries: Vec<Vec<(String, Node<Content>)>> = vec![Vec::new(); directory_count];
    let largest_count = scaled(LARGEST_COUNT);
    for (number, content) in contents.into_iter().enumerate() {
        let file = Node::File {
            content,
            executable: number * EXECUTABLE_COUNT % FILE_COUNT < EXECUTABLE_COUNT,
        };
        let directory = match number < largest_count {
            true => 2,
            // The smaller of two numbers: some directories are much fuller than others.
            false => {
                3 + random
                    .index(directory_count - 3)
                    .min(random.index(directory_count - 3))
            }
        };
        entries[directory].push((format!("module-{number}.js"), file));
    }
    for number in 0..scaled(LINK_COUNT) {
        let target = format!("../package-0003/tool-{number}.js");
        entries[1].push((format!("tool-{number}"), Node::link(target)));
    }
    // Children have higher numbers than their parents, so all of a directory's entries are there
    // when it is assembled.
    for index in (1..directory_count).rev() {
        let name = match index {
            1 => ".bin".to_owned(),
            _ => format!("package-{index:04}"),
        };
        let node = Node::dir(std::mem::take(&mut entries[index]));
        entries[parents[index]].push((name, node));
    }
    Node::dir(std::mem::take(&mut entries[0]))
}

fn contents(random: &mut SplitMix64, scaled: impl Fn(usize) -> usize) -> Vec<Content> {
    let mut contents = Vec::new();
    for class in &CLASSES {
        let first = contents.len();
        for _ in 0..scaled(class.count) {
            let earlier = contents.len() - first;
            if earlier > 0 && random.percent(class.copies) {
                let copied: Content = Clone::clone(&contents[first + random.index(earlier)]);
                contents.push(copied);
                continue;
            }
            contents.push(Content::Prose {
                seed: random.next(),
                len: random.between(class.sizes.0, class.sizes.1 + 1),
            });
        }
    }
    contents
}

fn shuffle<T>(items: &mut [T], random: &mut SplitMix64) {
    for index in (1..items.len()).rev() {
        items.swap(index, random.index(index + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nar::Content as _;

    #[derive(Default)]
    struct Numbers {
        directories: usize,
        links: usize,
        executables: usize,
        largest: usize,
        sizes: Vec<u64>,
    }

    impl Numbers {
        fn of(node: &Node<Content>) -> Self {
            let mut numbers = Self::default();
            numbers.add(node);
            numbers.sizes.sort_unstable();
            numbers
        }

        fn add(&mut self, node: &Node<Content>) {
            match node {
                Node::Link(_) => self.links += 1,
                Node::File {
                    content,
                    executable,
                } => {
                    self.sizes.push(content.size());
                    self.executables += usize::from(*executable);
                }
                Node::Dir(entries) => {
                    self.directories += 1;
                    self.largest = self.largest.max(entries.len());
                    entries.values().for_each(|node| self.add(node));
                }
            }
        }
    }

    #[test]
    fn the_full_tree_has_the_numbers_of_the_measured_one() {
        let numbers = Numbers::of(&small_files(1));
        let sizes = &numbers.sizes;
        assert_eq!((sizes.len(), numbers.directories), (FILE_COUNT, 3_824));
        assert_eq!((numbers.links, numbers.largest), (79, 1_156));
        assert_eq!(numbers.executables, EXECUTABLE_COUNT);
        let median = sizes[sizes.len() / 2];
        assert!((680..740).contains(&median), "median {median}");
        let mean = sizes.iter().sum::<u64>() / sizes.len() as u64;
        assert!((6_800..7_600).contains(&mean), "mean {mean}");
    }

    #[test]
    fn the_same_scale_gives_the_same_tree() {
        let nar = small_files(500).nar();
        assert_eq!(nar, small_files(500).nar());
        let count = Numbers::of(&small_files(500)).sizes.len();
        assert!((80..100).contains(&count), "{count}");
    }
}
