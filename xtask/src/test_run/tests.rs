//! Runs of real test programs, which the compiler makes from a few lines.

use std::path::PathBuf;

use super::*;

/// A test that passes, one that always fails, and one that fails at its first run only.
const SOURCE: &str = r#"
#[test]
fn passes() {}

#[test]
fn fails() {
    println!("always");
    panic!();
}

mod inner {
    #[test]
    fn is_flaky() {
        println!("the first time");
        std::fs::create_dir("was-here").unwrap_err();
    }
}
"#;

/// A test that kills its program at its first run.
const ABORTS_ONCE: &str = r#"
#[test]
fn aborts() {
    if std::fs::create_dir("was-here").is_ok() {
        std::process::abort();
    }
}
"#;

fn compiled(folder: &Path, source: &str) -> Program {
    let path = |name: &str| -> PathBuf { folder.join(name) };
    fs::write(path("source.rs"), source).unwrap();
    let mut rustc = Command::new("rustc");
    rustc.args(["--test", "-o"]).arg(path("program"));
    crate::command::run(rustc.arg(path("source.rs"))).unwrap();
    Program::new(folder, "program", false, path("program"))
}

fn names(failures: &[Failure<'_>]) -> Vec<Option<String>> {
    failures
        .iter()
        .map(|failure| failure.test.clone())
        .collect()
}

#[test]
fn a_test_that_passes_alone_is_flaky_and_one_that_fails_again_has_failed() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), SOURCE);
    let ended = program.run_all(folder.path(), PROGRAM_TIME_MAX).unwrap();
    assert_eq!((ended.summary.passed, ended.summary.failed), (1, 2));
    let failures = failures_of(&program, &ended);
    let (flaky, failed) = run_again(failures, folder.path()).unwrap();
    assert_eq!(names(&flaky), [Some("inner::is_flaky".to_owned())]);
    assert_eq!(names(&failed), [Some("fails".to_owned())]);
    assert!(flaky[0].output.contains("the first time"));
    assert!(!flaky[0].output.contains("always"), "{}", flaky[0].output);
}

#[test]
fn a_program_that_was_killed_runs_again_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), ABORTS_ONCE);
    let ended = program.run_all(folder.path(), PROGRAM_TIME_MAX).unwrap();
    let failures = failures_of(&program, &ended);
    let (flaky, failed) = run_again(failures, folder.path()).unwrap();
    assert_eq!((names(&flaky), names(&failed)), (vec![None], vec![]));
    assert!(flaky[0].output.contains("SIGABRT"), "{:?}", flaky[0].output);
}

#[test]
fn a_test_that_the_program_does_not_find_has_not_passed() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), SOURCE);
    let failure = Failure {
        program: &program,
        test: Some("gone".to_owned()),
        output: String::new(),
    };
    let (flaky, failed) = run_again(vec![failure], folder.path()).unwrap();
    assert_eq!((flaky.len(), failed.len()), (0, 1));
}

#[test]
fn many_failures_are_not_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), SOURCE);
    let failure = |_| Failure {
        program: &program,
        test: Some("passes".to_owned()),
        output: String::new(),
    };
    for (count, flaky_count) in [(AGAIN_COUNT_MAX, AGAIN_COUNT_MAX), (AGAIN_COUNT_MAX + 1, 0)] {
        let failures = (0..count).map(failure).collect();
        let (flaky, failed) = run_again(failures, folder.path()).unwrap();
        assert_eq!(flaky.len(), flaky_count);
        assert_eq!(failed.len(), count - flaky_count);
    }
}

#[test]
fn a_program_that_runs_too_long_is_killed_with_its_descendants() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("program");
    fs::write(&script, "#!/bin/sh\nsleep 1000 & echo $!; wait\n").unwrap();
    crate::command::run(Command::new("chmod").arg("+x").arg(&script)).unwrap();
    let program = Program::new(folder.path(), "program", false, script);
    let limit = Duration::from_millis(500);
    let ended = program.run_all(folder.path(), limit).unwrap();
    assert!(ended.output.contains("killed"), "{}", ended.output);
    assert_eq!(names(&failures_of(&program, &ended)), [None]);
    let sleep: u32 = ended.output.lines().next().unwrap().parse().unwrap();
    testkit::eventually("the descendant has ended", || {
        let state = testkit::procfs::stat_fields(sleep);
        state.is_none_or(|fields| fields.first().is_some_and(|state| state == "Z"))
    });
}
