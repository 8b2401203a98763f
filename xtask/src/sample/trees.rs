//! File trees of the paths in a sample store.

use testkit::content::Content;
use testkit::random::SplitMix64;

use super::random::{Node, file_len};

/// Generates a tree of about `files` small files like a `node_modules` folder: packages, each with
/// a few nested folders of ten files. Sizes are those of [`file_len`], divided by `shrink`.
pub(crate) fn node_modules(files: u64, shrink: u64, seed: u64) -> Node {
    let mut random = SplitMix64::new(seed);
    let mut left = files;
    let mut packages = Vec::new();
    while left > 0 {
        let mut package = vec![(b"package.json".to_vec(), small_file(&mut random, shrink))];
        left -= 1;
        for folder in ["dist", "lib", "src", "types"]
            .iter()
            .take(1 + random.index(4))
        {
            let depth = if random.between(0, 4) == 0 {
                random.between(0, 4)
            } else {
                0
            };
            let count = left.min(5 + random.between(0, 16));
            left -= count;
            let mut node = Node::dir((0..count).map(|index| {
                (
                    format!("module-{index}.js"),
                    small_file(&mut random, shrink),
                )
            }));
            for level in 0..depth {
                node = Node::dir([(format!("internal-{level}"), node)]);
            }
            package.push((folder.as_bytes().to_vec(), node));
        }
        if random.between(0, 8) == 0 {
            let cli = Node::program("#!/usr/bin/env node\n");
            package.push((b"bin".to_vec(), Node::dir([("cli.js", cli)])));
            left = left.saturating_sub(1);
        }
        packages.push((format!("package-{:04}", packages.len()), Node::dir(package)));
    }
    Node::dir(packages)
}

fn small_file(random: &mut SplitMix64, shrink: u64) -> Node {
    let len = file_len(random) / shrink;
    Node::File {
        content: Content::Prose {
            seed: random.next(),
            len,
        },
        executable: false,
    }
}

/// Generates a file of `len` incompressible bytes.
pub(crate) fn noise(len: u64, seed: u64) -> Node {
    Node::File {
        content: Content::Noise { seed, len },
        executable: false,
    }
}

/// Generates file names that are legal but have broken software: non-UTF-8 bytes, newlines, the
/// maximum length.
pub(crate) fn odd_names() -> Node {
    let names: [&[u8]; 14] = [
        b"\x01ctrl",
        b"-dash",
        b".hidden",
        b"Case",
        &[b'a'; 255],
        b"back\\slash",
        b"case",
        b"latin1-\xe9",
        b"new\nline",
        b"quote\"",
        b"tab\t",
        b"utf8-\xc3\xa9",
        b"with space",
        b"~nix~case~hack~1",
    ];
    Node::dir(names.map(|name| (name, Node::file(name))))
}

/// Generates all kinds of files except plain readable ones: empty folders, all kinds of symbolic
/// links, executables.
pub(crate) fn kinds() -> Node {
    Node::dir([
        ("empty-dir", Node::dir::<&str>([])),
        (
            "nested",
            Node::dir([("empty", Node::dir([("too", Node::dir::<&str>([]))]))]),
        ),
        ("empty-file", Node::file("")),
        ("empty-program", Node::program("")),
        ("program", Node::program("#!/bin/sh\necho program\n")),
        ("eight-bytes", Node::file("12345678")),
        ("nine-bytes", Node::file("123456789")),
        ("link-relative", Node::link("program")),
        ("link-absolute", Node::link("/etc/passwd")),
        ("link-dangling", Node::link("nowhere")),
        ("link-to-dir", Node::link("nested/empty")),
        ("link-up", Node::link("../../../../etc/passwd")),
        ("link-to-itself", Node::link("link-to-itself")),
        ("link-not-text", Node::link(b"latin1-\xe9".as_slice())),
        ("link-long", Node::link(vec![b'l'; 1000])),
    ])
}

/// Generates a file that is nested `components` levels below the root.
pub(crate) fn deep(components: u32) -> Node {
    (0..components).fold(Node::file("deep\n"), |node, _| Node::dir([("d", node)]))
}

/// Generates the contents of a small package: an executable and a manual that mention its
/// references, a link to the first reference, and text. One in three packages mentions itself too;
/// one in seven without a library is a single file. Half of the `library_len` bytes of the library
/// are one file.
pub(crate) fn package(index: u64, own_path: &str, references: &[&str], library_len: u64) -> Node {
    let mut random = SplitMix64::new(index ^ 0x5a5a_0000);
    let mut text = format!("package {index}\n");
    for reference in references {
        text.push_str(reference);
        text.push('\n');
    }
    if index % 7 == 6 && library_len == 0 {
        return Node::file(text);
    }
    let program = if names_itself(index) {
        format!("#!/bin/sh\nexec {own_path}/libexec/run \"$@\"\n{text}")
    } else {
        format!("#!/bin/sh\n{text}")
    };
    let len = file_len(&mut random);
    let page = Node::File {
        content: Content::Prose {
            seed: random.next(),
            len,
        },
        executable: false,
    };
    let mut entries = vec![
        ("bin", Node::dir([("run", Node::program(program))])),
        (
            "share",
            Node::dir([("doc", Node::dir([("manual.txt", page)]))]),
        ),
        ("references.txt", Node::file(text)),
    ];
    if let Some(first) = references.first() {
        entries.push(("dependency", Node::link(*first)));
    }
    if library_len > 0 {
        entries.push(("lib", library(library_len, &mut random)));
    }
    Node::dir(entries)
}

/// Generates a file of half of `len` bytes, and small ones with the rest.
fn library(len: u64, random: &mut SplitMix64) -> Node {
    let mut files = vec![("lib.so".to_owned(), noise(len / 2, random.next()))];
    let mut left = len - len / 2;
    while left > 0 {
        let len = file_len(random).clamp(1, left);
        left -= len;
        let file = Node::File {
            content: Content::Prose {
                seed: random.next(),
                len,
            },
            executable: false,
        };
        files.push((format!("module-{}", files.len()), file));
    }
    Node::dir(files)
}

/// Returns whether the [`package`] with this index refers to itself.
pub(crate) fn names_itself(index: u64) -> bool {
    index.is_multiple_of(3) && index % 7 != 6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(node: &Node) -> u64 {
        match node {
            Node::File { .. } => 1,
            Node::Link(_) => 0,
            Node::Dir(entries) => entries.values().map(files).sum(),
        }
    }

    #[test]
    fn a_tree_has_the_requested_number_of_files() {
        for count in [1, 10, 5200] {
            let made = files(&node_modules(count, 1, 1));
            assert!(made >= count && made <= count + 1, "{made} for {count}");
        }
    }

    #[test]
    fn depth_counts_names_below_the_root() {
        let mut node = deep(63);
        let mut depth = 0;
        while let Node::Dir(entries) = node {
            node = entries.into_values().next().unwrap();
            depth += 1;
        }
        assert_eq!(depth, 63);
    }
}
