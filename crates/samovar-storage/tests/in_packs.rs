//! Small files that arrive together share an object of the bucket, and are read, checked, mended
//! and deleted like others.

mod support_bucket;
mod support_tokens;

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use samovar_nix::NarHash;
use samovar_protocol::push::OpenLine;
use samovar_storage::check::fsck::Options;
use samovar_storage::metadata::Published;
use samovar_storage::verify::Unlimited;
use samovar_storage::{nar, push};
use sha2::{Digest as _, Sha256};

use support_bucket::{EVERYBODY, Fixture, Upload, path, read, render, text, upload};

#[test]
fn small_files_that_arrive_together_share_an_object() {
    let Some(mut fixture) = Fixture::new(true) else {
        return;
    };
    let uploads: Vec<Upload> = (0..100).map(|seed| upload(seed, 2000)).collect();
    let nar_hash = |upload: &Upload| NarHash::from_bytes(Sha256::digest(&upload.nar).into());
    let lines: Vec<OpenLine> = (0..)
        .zip(&uploads)
        .map(|(number, upload)| OpenLine {
            hash_part: path(number).hash_part(),
            nar_hash: nar_hash(upload),
            nar_size: upload.nar.len() as u64,
            path: None,
        })
        .collect();
    let (id, answers) = push::open(&fixture.cache, &fixture.token, &lines).unwrap();
    assert!(answers.iter().all(|answer| *answer == push::Answer::Need));
    let push = push::find(&fixture.cache, &fixture.token, id).unwrap();
    let mut body = Vec::new();
    for upload in &uploads {
        let hash = samovar_nix::nixbase32::encode(nar_hash(upload).as_bytes());
        writeln!(body, "nar {hash} none {}", upload.nar.len()).unwrap();
        body.extend_from_slice(&upload.nar);
    }
    writeln!(body, "end {}", uploads.len()).unwrap();
    let outcomes = push::put_pack(&push, &mut &body[..], &mut Unlimited).unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.refusal.is_none()));
    let mut narinfos = Vec::new();
    for (number, upload) in (0..).zip(&uploads) {
        let text = text(&path(number), upload);
        write!(narinfos, "narinfo {}\n{text}", text.len()).unwrap();
    }
    writeln!(narinfos, "end {}", uploads.len()).unwrap();
    push::publish(&push, &mut &narinfos[..], &|_| false, &render).unwrap();
    let objects = |fixture: &Fixture| -> Vec<PathBuf> {
        let entries = fs::read_dir(fixture.engine.bucket().join("nar")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    assert_eq!(objects(&fixture).len(), 1);
    let narinfo = format!("{}.narinfo", path(1).hash_part());
    assert!(!fixture.engine.bucket().join(narinfo).exists());
    fixture.forget_copies();
    for upload in &uploads {
        let file = fixture.open_file(upload).unwrap().unwrap();
        assert_eq!(read(file, 0).unwrap(), upload.nar);
        assert!(
            fixture
                .cache
                .find_file(EVERYBODY, &upload.name)
                .unwrap()
                .is_some()
        );
    }
    let counts = fixture.storage.bucket().unwrap().cache_counts();
    assert_eq!((counts.count, counts.miss_count), (1, 1));
    for deep in [false, true] {
        let (summary, findings) = fixture.check(Options {
            deep,
            ..Options::default()
        });
        assert_eq!((summary.objects, findings.len()), (100, 0), "{findings:?}");
    }
    // A pack that is lost is mended file by file.
    fixture.forget_copies();
    let pack = objects(&fixture).remove(0);
    fs::remove_file(&pack).unwrap();
    assert!(fixture.open_file(&uploads[7]).unwrap().is_none());
    fixture.send(&uploads[7]).unwrap();
    let file = fixture.open_file(&uploads[7]).unwrap().unwrap();
    assert_eq!(read(file, 0).unwrap(), uploads[7].nar);
    fixture.collect_all();
    assert_eq!(objects(&fixture), Vec::<PathBuf>::new());
}

#[test]
fn small_files_of_stock_clients_share_objects_if_they_arrive_together() {
    let Some(mut fixture) = Fixture::new(true) else {
        return;
    };
    let uploads: Vec<Upload> = (0..64).map(|seed| upload(seed, 2000)).collect();
    std::thread::scope(|scope| {
        for upload in &uploads {
            let (cache, token) = (fixture.cache.clone(), fixture.token.clone());
            scope.spawn(move || {
                let mut body = upload.nar.as_slice();
                nar::put(&cache, &token, &upload.name, &mut body, &mut Unlimited).unwrap();
            });
        }
    });
    let count = fs::read_dir(fixture.engine.bucket().join("nar"))
        .unwrap()
        .count();
    assert!(count < uploads.len(), "{count}");
    for (number, upload) in (0..).zip(&uploads) {
        assert_eq!(
            fixture.publish(&path(number), upload).unwrap(),
            Published::New
        );
    }
    fixture.forget_copies();
    for upload in &uploads {
        let file = fixture.open_file(upload).unwrap().unwrap();
        assert_eq!(read(file, 0).unwrap(), upload.nar);
    }
    fixture.collect_all();
    let left = fs::read_dir(fixture.engine.bucket().join("nar")).unwrap();
    assert_eq!(left.count(), 0);
}
