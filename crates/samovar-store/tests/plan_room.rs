//! All plans of a process share a memory limit. This test has its own process, because it exhausts
//! the limit.

use std::os::unix::fs::symlink;

use samovar_store::{PlanError, Tree};

/// The limit, in bytes.
const PLANS_LEN_MAX: usize = 64 << 20;

#[test]
fn held_plans_count_until_dropped() {
    let dir = tempfile::tempdir().unwrap();
    // Symbolic links of maximal length take 4,105 bytes each in a plan.
    let target = "t".repeat(4095);
    for number in 0..2000 {
        symlink(&target, dir.path().join(format!("{number:04}"))).unwrap();
    }
    let tree = Tree::of_files(dir.path().to_owned());
    let plan = || tree.plan(PLANS_LEN_MAX);
    let mut held = vec![plan().unwrap()];
    let len = held[0].memory_len();
    assert!(len > 8_000_000);
    while (held.len() + 1) * len <= PLANS_LEN_MAX {
        held.push(plan().unwrap());
    }
    assert_eq!(held.len(), 8);
    assert!(matches!(plan(), Err(PlanError::NoRoom)));
    // The memory that was reserved for the failed plan is available again.
    let small = tempfile::tempdir().unwrap();
    assert!(
        Tree::of_files(small.path().to_owned())
            .plan(1 << 10)
            .is_ok()
    );
    drop(held.pop());
    assert!(plan().is_ok());
}
