//! A client that sends a recipe instead of a NAR gets the same path as with a complete upload. The
//! server refuses recipes and bases that it cannot use, and states the reason in one sentence.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod support_protocol;
mod support_uploads;

use std::fs;
use std::iter;

use samovar_protocol::recipe::Writer;
use support_protocol::{Push, lines_of};
use support_uploads::{MadePath, Site, assert_refused, hash, send};
use testkit::http1::Response;
use testkit::nix::{local, nix};
use testkit::process::output;
use testkit::random::SplitMix64;

const MIB: usize = 1 << 20;

/// Length of the NAR of a regular file before its contents, in bytes.
const NAR_HEAD_LEN: usize = 96;

fn noise(len: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(len as u64);
    iter::repeat_with(|| random.next().to_le_bytes())
        .flatten()
        .take(len)
        .collect()
}

/// Returns a path with a file of 4 MiB, and one with another version of that file.
fn versions() -> (MadePath, MadePath) {
    let old = noise(4 * MIB);
    let mut new = old.clone();
    new.splice(3 * MIB / 2..2 * MIB, b"A version of 16.".repeat(100));
    (
        MadePath::new("old").containing(&old),
        MadePath::new("new").containing(&new),
    )
}

/// Returns a compressed recipe of `new` from the start and the end that it has in common with
/// `base`.
fn recipe(base: &MadePath, new: &MadePath) -> Vec<u8> {
    let (base, new) = (&base.nar[NAR_HEAD_LEN..], &new.nar);
    let (head, rest) = new.split_at(NAR_HEAD_LEN);
    let pairs = base.iter().zip(rest);
    let start = pairs.take_while(|(base, new)| base == new).count();
    let pairs = base[start..].iter().rev().zip(rest[start..].iter().rev());
    let end = pairs.take_while(|(base, new)| base == new).count();
    let compressor = zstd::Encoder::new(Vec::new(), 3).unwrap();
    let mut writer = Writer::new(compressor).unwrap();
    writer.data(head).unwrap();
    writer.copy(NAR_HEAD_LEN as u64, start as u64).unwrap();
    writer.data(&rest[start..rest.len() - end]).unwrap();
    let offset = NAR_HEAD_LEN + base.len() - end;
    writer.copy(offset as u64, end as u64).unwrap();
    writer.finish().unwrap().finish().unwrap()
}

fn assemble(push: &Push<'_>, id: &str, base: &[u8], recipe: &[u8]) -> Response {
    let target = format!("{id}/assemble?base={}", hash(base));
    push.send("POST", &target, recipe)
}

fn kept(nar: &[u8]) -> String {
    format!("kept {} {}", hash(nar), nar.len())
}

#[test]
fn an_assembled_path_is_served_to_stock_nix() {
    let (site, mut server, token) = Site::serving();
    let (old, new) = versions();
    let old = old.compressed("zstd");
    server.publish(&token, &old);
    let recipe = recipe(&old, &new);
    assert!(recipe.len() < 1000, "{} bytes", recipe.len());
    let push = Push::new(&server, &token);
    let (id, needs) = push.open(&[&new]);
    assert_eq!(needs, ["need"]);
    // The request may be repeated.
    for _ in 0..2 {
        let response = assemble(&push, &id, &old.nar, &recipe);
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(lines_of(&response), [kept(&new.nar)]);
        assert!(response.text().ends_with("\nend 1\n"));
    }
    server.assert_lacks(&new);
    // What was acknowledged survives a kill.
    server.process.signal("KILL");
    server.process.wait();
    let server = site.start();
    let push = Push::new(&server, &token);
    assert_eq!(push.open(&[&new]).1, ["link"]);
    push.published(&id, &[&new]);
    let narinfo = server.get(&new.target()).text();
    let url = narinfo.lines().find_map(|line| line.strip_prefix("URL: "));
    let file = server.get(&format!("/{}", url.unwrap()));
    assert!(zstd::decode_all(&*file.body).unwrap() == new.nar);
    assert!(file.body.ends_with(&[0xb1, 0xea, 0x92, 0x8f]));
    let listing = server.get(&new.listing_target());
    assert!(
        listing.text().contains("\"narOffset\""),
        "{}",
        listing.text()
    );
    // The next version needs only the file that was assembled.
    let next = MadePath::new("next").containing(&new.nar[NAR_HEAD_LEN..][..3 * MIB]);
    let response = assemble(&push, &id, &new.nar, &self::recipe(&new, &next));
    assert_eq!(lines_of(&response), [kept(&next.nar)]);
    push.published(&id, &[&next]);
    let home = tempfile::tempdir().unwrap();
    for path in [&old, &new, &next] {
        let store = home.path().join("store");
        let mut copy = nix("nix", home.path());
        copy.args(["copy", "--no-check-sigs", "--from"]);
        copy.arg(server.url()).arg("--to").arg(local(&store));
        output(copy.arg(&path.store_path));
        let found = fs::read(store.join(&path.store_path[1..])).unwrap();
        assert!(
            path.nar[NAR_HEAD_LEN..].starts_with(&found),
            "{}",
            path.store_path
        );
    }
    let mut fsck = support::samovar();
    output(fsck.args(["fsck", "--storage"]).arg(site.storage()));
}

#[test]
fn only_a_base_that_the_client_may_use_is_used() {
    let site = Site::new();
    site.configure_empty("[caches.a]\n[caches.b]\n");
    let server = site.start();
    let (first, second) = (site.token(&[]), site.token(&[]));
    let in_cache = |token, cache| Push {
        cache,
        ..Push::new(&server, token)
    };
    let (old, new) = versions();
    let recipe = recipe(&old, &new);
    let own = in_cache(&first, "/a");
    let (id, _) = own.open(&[]);
    let other = in_cache(&second, "/a");
    let (other_id, _) = other.open(&[]);
    let refused = assemble(&own, &id, &old.nar, &recipe);
    assert_refused(
        &refused,
        409,
        &["no base NAR", &hash(&old.nar), "upload the whole NAR"],
    );
    // A NAR that was only sent may be used with the token that sent it.
    own.pack(&id, &[&old]);
    let unknown = assemble(&other, &other_id, &old.nar, &recipe);
    assert_eq!((unknown.status, unknown.text()), (409, refused.text()));
    assert_eq!(assemble(&own, &id, &old.nar, &recipe).status, 200);
    // Once a path of the cache uses it, all tokens of that cache may use it, but in no other cache.
    own.published(&id, &[&old]);
    assert_eq!(other.open(&[&new]).1, ["need"]);
    assert_eq!(assemble(&other, &other_id, &old.nar, &recipe).status, 200);
    assert_eq!(other.open(&[&new]).1, ["link"]);
    let elsewhere = in_cache(&second, "/b");
    let (elsewhere_id, _) = elsewhere.open(&[]);
    let refused = assemble(&elsewhere, &elsewhere_id, &old.nar, &recipe);
    assert_refused(&refused, 409, &["no base NAR"]);
    assert_refused(
        &assemble(&own, &other_id, &old.nar, &recipe),
        404,
        &["no such push"],
    );
    let revoked = site.token(&["--name", "revoked"]);
    let push = in_cache(&revoked, "/a");
    let (id, _) = push.open(&[]);
    site.revoke("revoked");
    assert_refused(&assemble(&push, &id, &old.nar, &recipe), 401, &["token"]);
}

#[test]
fn requests_that_break_a_rule_are_refused() {
    let (site, server, token) = Site::serving();
    let (old, new) = versions();
    let good = recipe(&old, &new);
    let push = Push::new(&server, &token);
    let (id, _) = push.open(&[]);
    push.pack(&id, &[&old]);
    let target = format!("{id}/assemble?base={}", hash(&old.nar));
    for base in ["", "?base=", "?base=0", "?bases=1"] {
        let refused = push.send("POST", &format!("{id}/assemble{base}"), &good);
        assert_refused(&refused, 400, &["parameter base"]);
    }
    for window in ["", "9", "28", "x"] {
        let refused = push.send("POST", &format!("{target}&window={window}"), &good);
        assert_refused(&refused, 400, &["parameter window", "10 to 27"]);
    }
    let refused = push.send("PUT", &target, &good);
    assert_refused(&refused, 405, &["use POST"]);
    let url = format!("/upload/push/1/{target}");
    let head = format!("Authorization: Bearer {token}\r\n");
    let encoded = format!("{head}Content-Encoding: zstd\r\n");
    let refused = send(server.address, "POST", &url, &encoded, &good);
    assert_refused(&refused, 415, &["Content-Encoding"]);
    let compress = |text: String| zstd::encode_all(text.as_bytes(), 1).unwrap();
    let size = old.nar.len();
    let copies = "copy 0 1\n".repeat(1_000_001);
    let recipe = |operations: String| compress(format!("samovar-recipe 1\n{operations}"));
    for (body, status, reason) in [
        (vec![], 400, "cut short"),
        (b"samovar-recipe 1\nend 0\n".to_vec(), 400, "zstd"),
        (good[..good.len() - 1].to_vec(), 400, "cut short"),
        (compress("recipe\n".to_owned()), 400, "samovar-recipe 1"),
        (recipe("copy 0 8\n".to_owned()), 400, "before its line"),
        (recipe("copy\n".to_owned()), 400, "operation 1 is not"),
        (
            recipe(format!("copy 0 {size}\nend 1\n")),
            400,
            "a NAR of 1 bytes",
        ),
        (recipe(copies), 413, "1000000 operations"),
        (
            recipe(format!("copy 1 {size}\nend {size}\n")),
            422,
            "beyond the end",
        ),
        (recipe("data 3\nabcend 3\n".to_owned()), 422, "not a NAR"),
    ] {
        let refused = push.send("POST", &target, &body);
        assert_refused(&refused, status, &[reason]);
    }
    let is_nar = |file: &&String| file.starts_with("nar/");
    assert_eq!(site.files().iter().filter(is_nar).count(), 1);
    assert_eq!(push.send("POST", &target, &good).status, 200);
    let longest = format!("{target}&window=27");
    assert_eq!(push.send("POST", &longest, &good).status, 200);
}

#[test]
fn a_cache_without_space_in_its_quota_refuses_an_assembled_nar() {
    let site = Site::new();
    site.configure_empty("uploads.quota = \"5MiB\"\n");
    let server = site.start();
    let token = site.token(&[]);
    let (old, new) = versions();
    server.publish(&token, &old);
    let push = Push::new(&server, &token);
    let (id, _) = push.open(&[]);
    let refused = assemble(&push, &id, &old.nar, &recipe(&old, &new));
    assert_refused(&refused, 413, &["quota"]);
    assert_eq!(push.open(&[&new]).1, ["need"]);
}
