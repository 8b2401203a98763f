//! Reads one file, directory page or link of a tree, without the rest.
//!
//! # Theory of operation
//!
//! Each name is opened relative to its parent directory, and links are never followed, so no file
//! outside the tree is opened. The caller resolves a link and looks up its target.
//!
//! # Limits
//!
//! | limit | value | reason |
//! | --- | --- | --- |
//! | open descriptors | 2 | a parent is closed when its child is open |
//! | entries per directory page | `PageRequest::count_max` | each costs a system call |

use std::cmp::Ordering;
use std::fs::File;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType};
use rustix::io::Errno;
use rustix::path::Arg;

use super::TreeError;
use super::descent::open_directory;
use super::directory::{Dents, Entries};
use super::walk::{Node, OWNER_EXECUTE, file_type, open_file, read_link};

/// A file, directory or link of a tree.
#[derive(Debug)]
pub enum Place {
    /// A regular file.
    File {
        /// The file, open at its beginning.
        file: File,
        /// Size that the file had when it was opened, in bytes.
        size: u64,
        /// Whether the owner may execute the file.
        executable: bool,
    },
    /// A page of a directory.
    Directory(Page),
    /// A symbolic link, at the end of the requested path or earlier on it.
    Symlink {
        /// The target of the link: arbitrary bytes.
        target: Vec<u8>,
        /// Number of names up to and including the link. The names after it were not resolved.
        depth: usize,
    },
}

/// A part of a directory: directories first, then by name, with numbers in names compared as
/// numbers. A directory that exceeds the memory budget of walks is sorted by bytes alone.
#[derive(Debug)]
pub struct Page {
    /// The entries of the page.
    pub entries: Vec<PageEntry>,
    /// Number of entries of the whole directory.
    pub count_in_all: u64,
    /// Whether more entries follow the last one.
    pub has_more: bool,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageEntry {
    /// Name: any bytes except `/` and NUL.
    pub name: Vec<u8>,
    /// Type and details.
    pub kind: EntryKind,
}

/// The type of a directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File {
        /// Size of the file, bytes.
        size: u64,
        /// Whether the owner may execute the file.
        executable: bool,
    },
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink {
        /// The target of the link: arbitrary bytes.
        target: Vec<u8>,
    },
    /// A file type that a NAR cannot hold.
    Other,
}

/// Selects the part of a directory to read.
#[derive(Debug, Clone, Copy)]
pub struct PageRequest {
    /// Number of entries before the first selected one.
    pub skip: usize,
    /// Maximum number of entries.
    pub count_max: usize,
}

/// Finds the file at `names` below the root at `path`. `None` if it does not exist.
pub(super) fn find(
    path: &std::path::Path,
    names: &[&[u8]],
    wanted: PageRequest,
) -> Result<Option<Place>, TreeError> {
    let root_type = file_type(CWD, path)?;
    let Some((last, above)) = names.split_last() else {
        return node(CWD, path, root_type, 0, wanted).map(Some);
    };
    if root_type != FileType::Directory {
        return match root_type {
            FileType::Symlink => link(CWD, path, 0).map(Some),
            _ => Ok(None),
        };
    }
    let mut directory = open_directory(CWD, path)?;
    for (index, name) in above.iter().enumerate() {
        let Some(found) = kind_of(directory.as_fd(), name)? else {
            return Ok(None);
        };
        match found {
            FileType::Directory => directory = open_directory(directory.as_fd(), *name)?,
            FileType::Symlink => return link(directory.as_fd(), *name, index + 1).map(Some),
            _ => return Ok(None),
        }
    }
    match kind_of(directory.as_fd(), last)? {
        Some(found) => node(directory.as_fd(), *last, found, names.len(), wanted).map(Some),
        None => Ok(None),
    }
}

/// Returns the type of the entry `name`; `None` if it does not exist or the name is invalid.
fn kind_of(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Option<FileType>, TreeError> {
    // The empty name, `.`, `..` and names with a slash or NUL are not names of entries, and some of
    // them lead out of the directory.
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        return Ok(None);
    }
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn node(
    parent: BorrowedFd<'_>,
    name: impl Arg + Copy,
    found: FileType,
    depth: usize,
    wanted: PageRequest,
) -> Result<Place, TreeError> {
    match found {
        FileType::Directory => page(&open_directory(parent, name)?, wanted).map(Place::Directory),
        FileType::Symlink => link(parent, name, depth),
        FileType::RegularFile => match open_file(parent, name)? {
            Node::File {
                executable,
                size,
                file: Some(file),
            } => Ok(Place::File {
                file: file.into(),
                size,
                executable,
            }),
            _ => Err(TreeError::Changed),
        },
        _ => Err(TreeError::UnsupportedType),
    }
}

fn link(parent: BorrowedFd<'_>, name: impl Arg, depth: usize) -> Result<Place, TreeError> {
    let mut target = Vec::new();
    read_link(parent, name, &mut target)?;
    Ok(Place::Symlink { target, depth })
}

fn page(directory: &OwnedFd, wanted: PageRequest) -> Result<Page, TreeError> {
    let (mut names, mut dents) = (Entries::default(), Dents::default());
    names.read(directory.as_fd(), &mut dents)?;
    let mut skip = wanted.skip;
    let mut entries = Vec::new();
    let mut order: Vec<usize> = (0..names.count()).collect();
    if !names.has_more() {
        let key = |index: usize| {
            (
                names.file_type(index) != FileType::Directory,
                names.name(index),
            )
        };
        order.sort_by(|left, right| {
            let ((left_kind, left), (right_kind, right)) = (key(*left), key(*right));
            left_kind
                .cmp(&right_kind)
                .then_with(|| compare_naturally(left, right))
        });
    }
    loop {
        for index in order
            .iter()
            .skip(skip)
            .take(wanted.count_max - entries.len())
        {
            entries.push(PageEntry {
                name: names.name(*index).to_vec(),
                kind: entry_kind(directory.as_fd(), names.c_name(*index)?)?,
            });
        }
        if entries.len() == wanted.count_max || !names.has_more() {
            break;
        }
        skip = skip.saturating_sub(names.count());
        names.read_on(directory.as_fd(), &mut dents)?;
        order = (0..names.count()).collect();
    }
    let end = wanted.skip.saturating_add(entries.len());
    Ok(Page {
        has_more: !entries.is_empty() && (end as u64) < names.count_in_all(),
        count_in_all: names.count_in_all(),
        entries,
    })
}

/// Compares names so that `page-2` comes before `page-10`. Names that differ only in leading zeros
/// are compared by bytes.
fn compare_naturally(left: &[u8], right: &[u8]) -> Ordering {
    let (mut one, mut other) = (left, right);
    while let ([first, ..], [second, ..]) = (one, other) {
        let order = if first.is_ascii_digit() && second.is_ascii_digit() {
            let (number, rest) = split_number(one);
            let (other_number, other_rest) = split_number(other);
            (one, other) = (rest, other_rest);
            let lens = number.len().cmp(&other_number.len());
            lens.then_with(|| number.cmp(other_number))
        } else {
            let order = first.cmp(second);
            (one, other) = (&one[1..], &other[1..]);
            order
        };
        if order.is_ne() {
            return order;
        }
    }
    let lens = one.len().cmp(&other.len());
    lens.then_with(|| left.cmp(right))
}

/// Splits text after the digits at its start, which are returned without leading zeros.
fn split_number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit());
    let (digits, rest) = text.split_at(end.unwrap_or(text.len()));
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    (&digits[zeros..], rest)
}

fn entry_kind(directory: BorrowedFd<'_>, name: impl Arg + Copy) -> Result<EntryKind, TreeError> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File {
            size: u64::try_from(stat.st_size).map_err(|_error| TreeError::Changed)?,
            executable: stat.st_mode & OWNER_EXECUTE != 0,
        },
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => {
            let mut target = Vec::new();
            read_link(directory, name, &mut target)?;
            EntryKind::Symlink { target }
        }
        _ => EntryKind::Other,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const ALL: PageRequest = PageRequest {
        skip: 0,
        count_max: usize::MAX,
    };

    /// Creates a tree, and a secret file beside it.
    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), "secret").unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::write(root.join("bin/run"), "#!").unwrap();
        let executable = std::fs::Permissions::from_mode(0o555);
        std::fs::set_permissions(root.join("bin/run"), executable).unwrap();
        std::fs::write(root.join("a..b"), "plain").unwrap();
        symlink("../secret", root.join("out")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("bin", root.join("sbin")).unwrap();
        dir
    }

    fn place(dir: &tempfile::TempDir, names: &[&str]) -> Option<Place> {
        let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        find(&dir.path().join("root"), &names, ALL).unwrap()
    }

    #[track_caller]
    fn check_link(dir: &tempfile::TempDir, names: &[&str], expected: &str, at: usize) {
        match place(dir, names) {
            Some(Place::Symlink { target, depth }) => {
                assert_eq!((&*target, depth), (expected.as_bytes(), at), "{names:?}");
            }
            other => panic!("{names:?}: {other:?}"),
        }
    }

    #[test]
    fn files_and_directories_are_found() {
        let dir = tree();
        let Some(Place::File {
            mut file,
            size: 2,
            executable: true,
        }) = place(&dir, &["bin", "run"])
        else {
            panic!("no file");
        };
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "#!");
        assert!(matches!(
            place(&dir, &["a..b"]),
            Some(Place::File {
                executable: false,
                ..
            })
        ));
        let Some(Place::Directory(page)) = place(&dir, &[]) else {
            panic!("no directory");
        };
        let names: Vec<_> = page.entries.iter().map(|entry| &*entry.name).collect();
        assert_eq!(names, [&b"bin"[..], b"a..b", b"out", b"sbin", b"up"]);
        assert_eq!(page.entries[0].kind, EntryKind::Directory);
        let target = b"../secret".to_vec();
        assert_eq!(page.entries[2].kind, EntryKind::Symlink { target });
        assert_eq!((page.count_in_all, page.has_more), (5, false));
    }

    #[test]
    fn no_link_is_followed() {
        let dir = tree();
        check_link(&dir, &["out"], "../secret", 1);
        check_link(&dir, &["up", "secret"], "..", 1);
        check_link(&dir, &["sbin", "run"], "bin", 1);
        symlink("root", dir.path().join("link")).unwrap();
        let root = find(&dir.path().join("link"), &[b"bin"], ALL).unwrap();
        assert!(matches!(root, Some(Place::Symlink { depth: 0, .. })));
    }

    #[test]
    fn no_name_leads_out() {
        let dir = tree();
        let long = "x".repeat(300);
        for names in [
            &["..", "secret"][..],
            &["bin", "..", "a..b"],
            &["."],
            &["", "bin"],
            &["bin", ""],
            &["../secret"],
            &["bin\0"],
            &["a..b", "x"],
            &["absent"],
            &[&long],
        ] {
            assert!(place(&dir, names).is_none(), "{names:?}");
        }
    }

    #[test]
    fn a_directory_comes_in_pages() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..25 {
            std::fs::write(dir.path().join(format!("{number:02}")), "").unwrap();
        }
        let mut seen: Vec<Vec<u8>> = Vec::new();
        loop {
            let wanted = PageRequest {
                skip: seen.len(),
                count_max: 10,
            };
            let found = find(dir.path(), &[], wanted).unwrap();
            let Some(Place::Directory(page)) = found else {
                panic!("no directory");
            };
            assert_eq!(page.count_in_all, 25);
            seen.extend(page.entries.into_iter().map(|entry| entry.name));
            assert_eq!(page.has_more, seen.len() < 25);
            if !page.has_more {
                break;
            }
        }
        let expected = (0..25).map(|number| format!("{number:02}").into_bytes());
        assert!(seen.into_iter().eq(expected));
    }

    #[test]
    fn directories_come_first_and_numbers_are_compared_as_numbers() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "page-10", "page-2", "page-02", "Zebra", "apple", "1.10", "1.9", "page-", "x9y",
        ] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        for name in ["sub-10", "sub-9"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let Some(Place::Directory(page)) = find(dir.path(), &[], ALL).unwrap() else {
            panic!("no directory");
        };
        let names = page
            .entries
            .iter()
            .map(|entry| std::str::from_utf8(&entry.name).unwrap());
        let expected = [
            "sub-9", "sub-10", "1.9", "1.10", "Zebra", "apple", "page-", "page-02", "page-2",
            "page-10", "x9y",
        ];
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_page_beyond_the_end_is_empty() {
        let dir = tree();
        let wanted = PageRequest {
            skip: 5,
            count_max: 10,
        };
        let found = find(&dir.path().join("root"), &[], wanted).unwrap();
        let Some(Place::Directory(page)) = found else {
            panic!("no directory");
        };
        assert_eq!(
            (page.entries.len(), page.count_in_all, page.has_more),
            (0, 5, false)
        );
    }
}
