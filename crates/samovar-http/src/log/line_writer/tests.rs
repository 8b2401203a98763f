//! The log writer never blocks its callers and loses no line silently, even if its output is slow,
//! full, renamed or closed.

use std::fs;
use std::io::Read as _;
use std::sync::mpsc;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

fn silent(_: Trouble<'_>) -> Vec<u8> {
    Vec::new()
}

fn writer_to(path: &Path, linger: Duration) -> LineWriter {
    LineWriter::spawn("test", Sink::file(path).expect("opens"), linger, silent).expect("spawns")
}

#[test]
fn lines_arrive_in_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("log");
    fs::write(&path, "before\n").expect("writes");
    let writer = writer_to(&path, Duration::from_millis(1));
    let mut expected = "before\n".to_owned();
    for index in 0..1000 {
        let line = format!("line {index}\n");
        assert!(writer.push(line.as_bytes()));
        expected.push_str(&line);
    }
    assert!(writer.flush(PATIENCE));
    assert_eq!(fs::read_to_string(&path).expect("reads"), expected);
}

#[test]
fn a_flush_does_not_wait_for_the_linger_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("log");
    let writer = writer_to(&path, Duration::from_secs(3600));
    assert!(writer.push(b"x\n"));
    assert!(writer.flush(PATIENCE));
    assert_eq!(fs::read_to_string(&path).expect("reads"), "x\n");
}

#[test]
fn a_renamed_file_is_left_after_reopen() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, old) = (directory.path().join("log"), directory.path().join("log.1"));
    let writer = writer_to(&path, Duration::ZERO);
    assert!(writer.push(b"one\n") && writer.flush(PATIENCE));
    fs::rename(&path, &old).expect("renames");
    assert!(writer.push(b"two\n") && writer.flush(PATIENCE));
    writer.reopen();
    assert!(writer.flush(PATIENCE));
    assert!(writer.push(b"three\n") && writer.flush(PATIENCE));
    assert_eq!(fs::read_to_string(&old).expect("reads"), "one\ntwo\n");
    assert_eq!(fs::read_to_string(&path).expect("reads"), "three\n");
}

#[test]
fn a_file_that_cannot_be_reopened_stays_in_use() {
    let directory = tempfile::tempdir().expect("a directory");
    let inner = directory.path().join("d");
    fs::create_dir(&inner).expect("makes");
    let (sender, reports) = mpsc::channel();
    let report = move |trouble: Trouble<'_>| {
        sender.send(format!("{trouble:?}")).expect("is received");
        Vec::new()
    };
    let sink = Sink::file(inner.join("log")).expect("opens");
    let writer = LineWriter::spawn("test", sink, Duration::ZERO, report).expect("spawns");
    let moved = directory.path().join("e");
    fs::rename(&inner, &moved).expect("renames");
    writer.reopen();
    assert!(
        reports
            .recv_timeout(PATIENCE)
            .expect("is reported")
            .starts_with("Reopen")
    );
    assert!(writer.push(b"x\n") && writer.flush(PATIENCE));
    assert_eq!(fs::read_to_string(moved.join("log")).expect("reads"), "x\n");
}

/// If nothing reads a pipe, lines are dropped without delay, and the loss is reported once the pipe
/// is read.
#[test]
fn lost_lines_are_counted_and_reported_when_there_is_room() {
    let (mut reader, pipe) = io::pipe().expect("a pipe");
    let file = File::from(std::os::fd::OwnedFd::from(pipe));
    let sink = Sink(Target::File {
        path: PathBuf::from("/nonexistent/x"),
        file,
    });
    let report = |trouble: Trouble<'_>| match trouble {
        Trouble::Lost(count) => format!("lost {count}\n").into_bytes(),
        _ => Vec::new(),
    };
    let writer = LineWriter::spawn("test", sink, Duration::ZERO, report).expect("spawns");
    let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
    let mut lost_count = 0_u64;
    // The pipe holds 64 KiB, and each of the two buffers 1 MiB.
    for _ in 0..4096 {
        lost_count += u64::from(!writer.push(&line));
    }
    assert!(lost_count > 1024, "{lost_count}");
    assert!(!writer.flush(Duration::from_millis(10)), "nobody reads");

    let reading = thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).map(|_| text)
    });
    assert!(writer.flush(PATIENCE));
    drop(writer);
    let text = reading.join().expect("reads").expect("is text");
    // The thread may have reported a part of the loss while lines were pushed.
    let counts = text
        .lines()
        .filter_map(|line| line.strip_prefix("lost ")?.parse::<u64>().ok());
    assert_eq!(counts.sum::<u64>(), lost_count);
    let whole = text.lines().filter(|line| line.len() == 1023).count();
    assert_eq!(u64::try_from(whole).expect("fits"), 4096 - lost_count);
}

#[test]
fn a_full_disk_is_reported_once() {
    let (sender, reports) = mpsc::channel();
    let report = move |trouble: Trouble<'_>| {
        sender.send(format!("{trouble:?}")).expect("is received");
        Vec::new()
    };
    let sink = Sink::file(Path::new("/dev/full")).expect("opens");
    let writer = LineWriter::spawn("test", sink, Duration::ZERO, report).expect("spawns");
    for _ in 0..3 {
        assert!(writer.push(b"x\n") && writer.flush(PATIENCE));
    }
    drop(writer);
    let reports: Vec<_> = reports.iter().collect();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert!(reports[0].contains("StorageFull"), "{reports:?}");
}
