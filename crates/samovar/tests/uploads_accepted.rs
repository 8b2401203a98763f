//! Uploads of paths that the cache has are compared by what they contain, and contents are accepted
//! whatever their compression.

mod support;
mod support_protocol;
mod support_uploads;

use support_protocol::{Push, narinfo_records};
use support_uploads::{MadePath, Site, assert_refused};
use testkit::eventually;
use testkit::random::SplitMix64;

#[test]
fn a_hash_part_has_one_name() {
    let (site, server, token) = Site::serving();
    let path = MadePath::new("path");
    server.publish(&token, &path);
    let before = server.get(&path.target()).text();
    let mut misnamed = path.clone();
    misnamed.store_path.push_str("-of-another-name");
    let signed = format!("{}Sig: a-1:{}==\n", misnamed.narinfo(), "A".repeat(86));
    let refused = server.put(&token, &path.target(), &signed);
    assert_refused(&refused, 409, &[&path.store_path[11..], "-of-another-name"]);
    let push = Push::new(&server, &token);
    let (id, _) = push.open(&[]);
    let target = format!("{id}/publish");
    let refused = push.send("POST", &target, narinfo_records(&[signed]));
    assert_refused(&refused, 422, &[&path.store_path[11..], "-of-another-name"]);
    assert_eq!(server.get(&path.target()).text(), before);
    assert_eq!(site.sql("select count(*) from path").trim(), "1");
}

#[test]
fn the_same_nar_in_another_compression_is_the_same_path() {
    let (site, server, token) = Site::serving();
    let other = site.token(&["--name", "other"]);
    let path = MadePath::new("path").compressed("zstd");
    server.publish(&token, &path);
    let again = path.clone().compressed("xz");
    server.put(&other, &again.file_target(), &again.file);
    let signature = format!("Sig: a-1:{}==\n", "A".repeat(86));
    let signed = format!("{}{signature}", again.narinfo());
    let response = server.put(&other, &again.target(), signed);
    assert_eq!(
        (response.status, response.text()),
        (200, "known\n".to_owned())
    );
    server.assert_serves(&path);
    let narinfo = server.get(&path.target()).text();
    assert!(narinfo.contains(&signature), "{narinfo}");
    // Another NAR is a conflict. Its log line comes after all others.
    let differing = MadePath::new("path").containing(b"another build");
    server.put(&other, &differing.file_target(), &differing.file);
    let response = server.put(&other, &differing.target(), differing.narinfo());
    assert!(response.text().contains("stays"), "{}", response.text());
    eventually("the conflict is logged", || {
        server.process.count("not reproducible") > 0
    });
    assert_eq!(server.process.count("not reproducible"), 1);
}

#[test]
fn contents_that_compress_well_at_their_start_are_accepted() {
    let (_site, server, token) = Site::serving();
    let mut content = vec![0; 40 << 20];
    content.extend(SplitMix64::new(1).bytes(1 << 20));
    for compression in ["zstd", "xz"] {
        let path = MadePath::new(compression).containing(&content);
        server.publish(&token, &path.compressed(compression));
    }
}
