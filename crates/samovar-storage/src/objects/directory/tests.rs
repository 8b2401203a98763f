use super::*;

/// Parts are not synced, so a power cut could damage them.
#[test]
fn parts_of_an_earlier_boot_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let objects = Directory::open(dir.path()).unwrap();
    let part = dir.path().join(format!("{PART_PREFIX}x/1"));
    let of_older_version = dir.path().join(format!("{PART_PREFIX}y"));
    let unfinished = dir.path().join(TMP).join("y");
    // A storage without the file is new, or of an older version.
    for boot_id in [
        None,
        Some("00000000-1111-2222-3333-444444444444\n"),
        Some(""),
    ] {
        if let Some(boot_id) = boot_id {
            fs::write(dir.path().join(BOOT_ID), boot_id).unwrap();
        }
        for is_kept in [false, true] {
            fs::create_dir_all(part.parent().unwrap()).unwrap();
            fs::write(&part, "part").unwrap();
            fs::write(&of_older_version, "part").unwrap();
            fs::write(&unfinished, "object").unwrap();
            objects.remove_unfinished().unwrap();
            assert_eq!(part.exists(), is_kept, "{boot_id:?}");
            assert!(!unfinished.exists() && !of_older_version.exists());
        }
    }
}
