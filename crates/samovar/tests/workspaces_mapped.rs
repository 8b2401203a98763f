//! What programs store to files that are mapped is pushed, and never deleted or replaced unseen.
//! The kernel gives such a file new times only with the first store to a page that is not dirty.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it has not tested"
)]

mod support;
mod support_uploads;
mod support_workspaces;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use support_workspaces::{Home, assert_has, read, write};

/// Maps a file, and stores the lines of standard input to its first bytes.
const MAPPER: &str = "\
import mmap, sys
file = open(sys.argv[1], 'r+b')
mapped = mmap.mmap(file.fileno(), 0)
for line in sys.stdin:
    text = line.strip().encode()
    mapped[:len(text)] = text
    print('stored', flush=True)
";

/// A program that has mapped a file.
struct Mapper {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Mapper {
    /// Returns `None`, after printing the reason, if Python is missing.
    fn start(file: &Path) -> Option<Self> {
        let mut command = Command::new("python3");
        command.args(["-c", MAPPER]).arg(file);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                println!("not tested: files are mapped by python3: {error}");
                return None;
            }
        };
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Some(Self {
            child,
            input,
            output,
        })
    }

    /// Stores a text of four bytes, without a system call for the file.
    fn store(&mut self, text: &str) {
        writeln!(self.input, "{text}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "stored\n");
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Returns whether stores to mapped files change their times on the file system of a directory.
fn has_times(directory: &Path) -> bool {
    let found = samovar_workspace::Scanned::scan(directory).unwrap();
    if !found.is_notified {
        println!("not tested: stores to mapped files get no time on this file system");
    }
    found.is_notified
}

#[test]
fn stores_to_mapped_files_are_seen_by_every_command() {
    let home = Home::new();
    let one = home.open("app", "one");
    let file = "data";
    write(&one, file, vec![b'.'; 1 << 16]);
    let start = Mapper::start(&one.join(file)).filter(|_| has_times(&one));
    let Some(mut mapper) = start else { return };
    let two = home.dir("two");
    for round in 0..3 {
        // Each command reads the file while a page is dirty.
        mapper.store(&format!("a{round:03}"));
        home.push(&one);
        mapper.store(&format!("b{round:03}"));
        assert_has(&home.exits(&one, &["diff"], 1), "modified data");
        mapper.store(&format!("c{round:03}"));
        assert_has(&home.exits(&one, &["close", "--delete"], 1), "1 modified");
        mapper.store(&format!("d{round:03}"));
        home.push(&one);
        if round == 0 {
            home.open("app", "two");
        } else {
            home.run(&two, &["pull"]);
        }
        assert!(read(&two, file).starts_with(&format!("d{round:03}")));
    }
    mapper.store("last");
    assert_has(&home.exits(&one, &["close", "--delete"], 1), "1 modified");
    assert!(read(&one, file).starts_with("last"));
    // A pull does not replace it.
    let mut content = read(&two, file);
    content.push('x');
    write(&two, file, content);
    home.push(&two);
    let text = home.exits(&one, &["pull"], 1);
    assert_has(&text, "conflict: data stays");
    assert!(read(&one, file).starts_with("last"));
}

/// On tmpfs, only the first store to a page of a mapped file changes its times: before files are
/// deleted or replaced, their contents are compared.
#[test]
fn mapped_files_without_times_are_neither_deleted_nor_replaced() {
    let home = Home::new();
    let disk = home.dir("disk");
    fs::create_dir(&disk).unwrap();
    if let Err(error) = mount("none", &disk, "tmpfs", MountFlags::empty(), None) {
        println!("not tested: no file system can be mounted here: {error}");
        return;
    }
    let _unmount = Unmount(&disk);
    let one = home.open("app", "disk/one");
    write(&one, "data", vec![b'.'; 1 << 16]);
    write(&one, "other", "other");
    let Some(mut mapper) = Mapper::start(&one.join("data")) else {
        return;
    };
    // Only the first store to a page changes the times.
    mapper.store("base");
    home.push(&one);
    let two = home.open("app", "two");
    mapper.store("lost");
    home.run(&one, &["status"]);
    write(&two, "data", "of two");
    home.push(&two);
    let text = home.exits(&one, &["pull"], 1);
    assert_has(&text, "data was changed by another program");
    assert!(read(&one, "data").starts_with("lost"));
    let text = home.exits(&one, &["close", "--delete"], 1);
    assert_has(&text, "data");
    assert!(read(&one, "data").starts_with("lost"));
    assert!(!one.join("other").exists());
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        unmount(self.0, UnmountFlags::DETACH).ok();
    }
}
