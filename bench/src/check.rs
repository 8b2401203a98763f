//! Are the answers right? Looked at once for each server, before anything is timed: a server that
//! answers fast and wrong would win.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::http::Client;
use crate::process::Server;
use crate::store::{PathInfo, Store, base_name, hash_part};

/// Narinfos that are compared.
const NARINFO_COUNT: usize = 200;

/// Compares what `server` says with what Nix says, and returns what a reader should know.
///
/// # Errors
///
/// If an answer is wrong.
pub(crate) fn answers(store: &Store, server: &Server) -> Result<Vec<String>> {
    let mut client = Client::new(server.address);
    let stride = (store.paths.len() / NARINFO_COUNT).max(1);
    let mut signed = false;
    for (path, info) in store.paths.iter().step_by(stride) {
        let narinfo = fetch_narinfo(&mut client, path)?;
        compare(path, &narinfo, info).with_context(|| format!("{}: {path}", server.name))?;
        signed |= narinfo.contains_key("Sig");
    }
    let answer = client.get("/00000000000000000000000000000000.narinfo", |_| ())?;
    if answer.status != 404 {
        bail!(
            "{}: {} for a path that is not there",
            server.name,
            answer.status
        );
    }
    for path in [&store.empty, &store.big, &store.tree] {
        let url = nar_url(&mut client, path)?;
        let mut hash = Sha256::new();
        let answer = client.get(&url, |piece| hash.update(piece))?;
        if answer.status != 200 || hash.finalize() != dump_hash(store, path)? {
            bail!(
                "{}: the NAR of {path} is not what nix-store --dump says",
                server.name
            );
        }
    }
    Ok(signed
        .then(|| format!("{} signs its narinfos.", server.name))
        .into_iter()
        .collect())
}

/// The fields of a narinfo, by name.
pub(crate) fn fetch_narinfo(client: &mut Client, path: &str) -> Result<BTreeMap<String, String>> {
    let mut body = Vec::new();
    let url = format!("/{}.narinfo", hash_part(path));
    let answer = client.get(&url, |piece| body.extend_from_slice(piece))?;
    if answer.status != 200 {
        bail!("{url}: status {}", answer.status);
    }
    let text = String::from_utf8(body).with_context(|| format!("{url} is no text"))?;
    let fields = text.lines().filter_map(|line| line.split_once(": "));
    Ok(fields
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect())
}

/// Where this server has the NAR of `path`.
pub(crate) fn nar_url(client: &mut Client, path: &str) -> Result<String> {
    let narinfo = fetch_narinfo(client, path)?;
    Ok(format!(
        "/{}",
        narinfo
            .get("URL")
            .with_context(|| format!("{path} has no URL"))?
    ))
}

fn compare(path: &str, narinfo: &BTreeMap<String, String>, info: &PathInfo) -> Result<()> {
    let field = |name: &str| narinfo.get(name).map(String::as_str).unwrap_or_default();
    let mut references: Vec<&str> = field("References").split_whitespace().collect();
    references.sort_unstable();
    let size = info.nar_size.to_string();
    // Not every server sends all: a missing deriver or content address is allowed, a wrong one not.
    let or_absent = |said: &str, known: &Option<String>| {
        said.is_empty()
            || known
                .as_deref()
                .is_some_and(|known| base_name(known) == base_name(said))
    };
    let checks = [
        ("StorePath", field("StorePath") == path),
        ("Compression", field("Compression") == "none"),
        ("NarHash", field("NarHash") == info.nar_hash),
        ("NarSize", field("NarSize") == size),
        ("References", references == info.references),
        ("Deriver", or_absent(field("Deriver"), &info.deriver)),
        ("CA", or_absent(field("CA"), &info.content_address)),
    ];
    for (name, right) in checks {
        if !right {
            bail!("{name} is {:?}, but Nix says {info:?}", field(name));
        }
    }
    Ok(())
}

fn dump_hash(store: &Store, path: &str) -> Result<sha2::digest::Output<Sha256>> {
    let mut child = store.dump(path).stdout(Stdio::piped()).spawn()?;
    let mut stdout = child.stdout.take().context("stdout is piped")?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let len = stdout.read(&mut buffer)?;
        if len == 0 {
            break;
        }
        hash.update(buffer.get(..len).unwrap_or_default());
    }
    if !child.wait()?.success() {
        bail!("nix-store --dump {path} failed");
    }
    Ok(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_field_is_found() {
        let info = PathInfo {
            nar_hash: "sha256:h".into(),
            nar_size: 120,
            references: vec!["a-1".into(), "b-1".into()],
            deriver: Some("d.drv".into()),
            content_address: None,
        };
        let right = [
            ("StorePath", "/nix/store/x"),
            ("Compression", "none"),
            ("NarHash", "sha256:h"),
            ("NarSize", "120"),
            ("References", "b-1 a-1"),
        ];
        let narinfo = |change: (&str, &str)| {
            let mut fields: BTreeMap<String, String> = right
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect();
            fields.insert(change.0.into(), change.1.into());
            fields
        };
        assert!(compare("/nix/store/x", &narinfo(("Deriver", "d.drv")), &info).is_ok());
        for change in [
            ("NarHash", "sha256:i"),
            ("References", "a-1"),
            ("Deriver", "e.drv"),
            ("CA", "x"),
        ] {
            assert!(
                compare("/nix/store/x", &narinfo(change), &info).is_err(),
                "{change:?}"
            );
        }
    }
}
