//! Verifies each server's responses once, before any measurement: a server that responds fast but
//! incorrectly must not win.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::figures::to_f64;
use crate::http::Client;
use crate::process::Server;
use crate::store::{PathInfo, Store, base_name, hash_part};

/// Name of the key with which servers sign narinfos in the benchmark.
pub(crate) const KEY_NAME: &str = "bench-1";

/// Number of narinfos that are compared with Nix's information.
const NARINFO_COUNT: usize = 200;

/// Expected values that all servers share. NAR hashes by Nix are slow to compute, so they are kept.
#[derive(Debug, Default)]
pub(crate) struct Dumps {
    hashes: BTreeMap<String, Hash>,
    /// Signature with the benchmark's key in the narinfo of each path, from the first server that
    /// signs.
    signatures: BTreeMap<String, String>,
}

type Hash = sha2::digest::Output<Sha256>;

/// Compares responses of `server` with Nix's information; returns remarks for the report. Fails if
/// a response is wrong.
pub(crate) fn answers(store: &Store, server: &Server, dumps: &mut Dumps) -> Result<Vec<String>> {
    let mut client = Client::new(server.address);
    let mut signed = false;
    for (path, info) in sample(store) {
        let narinfo = fields(&fetch_narinfo(&mut client, path)?);
        compare(path, &narinfo, info).with_context(|| format!("{}: {path}", server.name))?;
        signed |= narinfo.contains_key("Sig");
    }
    let answer = client.get("/00000000000000000000000000000000.narinfo", |_| ())?;
    if answer.status != 404 {
        bail!("{}: {} for an absent path", server.name, answer.status);
    }
    let mut remarks = Vec::new();
    if signed {
        remarks.push(format!("{} signs its narinfos.", server.name));
    }
    let paths = [&store.empty, &store.big, &store.tree].into_iter();
    for path in paths.chain(&store.mixed) {
        let expected = dumps.hash(store, path)?;
        let url = nar_url(&mut client, path)?;
        let mut hash = Sha256::new();
        let answer = client.get(&url, |piece| hash.update(piece))?;
        if answer.status != 200 || hash.finalize() != expected {
            bail!(
                "{}: the NAR of {path} differs from the output of nix-store --dump",
                server.name
            );
        }
    }
    remarks.extend(zstd(store, server, dumps)?);
    Ok(remarks)
}

/// Checks that a client that accepts zstd receives the right NAR of the tree. Returns a remark for
/// the report, if there is one.
fn zstd(store: &Store, server: &Server, dumps: &mut Dumps) -> Result<Option<String>> {
    // Request this narinfo without accepting zstd, because narinfos could be compressed, too.
    let url = nar_url(&mut Client::new(server.address), &store.tree)?;
    let mut client = Client::new(server.address).taking_zstd();
    let mut decoder = zstd::stream::write::Decoder::new(Hasher(Sha256::new()))?;
    let mut plain = Sha256::new();
    let mut decoded = Ok(());
    // The encoding is known only when the response is complete, so hash the body both as it is and
    // decompressed.
    let answer = client.get(&url, |piece| {
        if decoded.is_ok() {
            decoded = decoder.write_all(piece);
        }
        plain.update(piece);
    })?;
    let hash = if answer.is_zstd {
        decoded?;
        decoder.flush()?;
        decoder.into_inner().0.finalize()
    } else {
        plain.finalize()
    };
    if answer.status != 200 || hash != dumps.hash(store, &store.tree)? {
        bail!("{}: the tree for a client with zstd is wrong", server.name);
    }
    Ok(answer.is_zstd.then(|| {
        format!(
            "{} compresses the tree with zstd if the client accepts it: {:.0} MB of {:.0}.",
            server.name,
            to_f64(answer.body_len) / 1e6,
            to_f64(store.info(&store.tree).map_or(0, |info| info.nar_size)) / 1e6,
        )
    }))
}

/// Checks that all servers send the same signature, because Ed25519 is deterministic. Fails if a
/// signature is missing or differs from the previous server's.
pub(crate) fn signatures(store: &Store, server: &Server, dumps: &mut Dumps) -> Result<()> {
    let mut client = Client::new(server.address);
    for (path, info) in sample(store) {
        let text = fetch_narinfo(&mut client, path)?;
        compare(path, &fields(&text), info).with_context(|| format!("{}: {path}", server.name))?;
        let mut lines = text.lines();
        let signature = lines
            .find_map(|line| line.strip_prefix(&format!("Sig: {KEY_NAME}:")))
            .with_context(|| format!("{}: {path} is not signed", server.name))?;
        let known = dumps
            .signatures
            .entry(path.clone())
            .or_insert_with(|| signature.to_owned());
        if known != signature {
            bail!(
                "{}: the signature of {path} differs from that of the other servers",
                server.name
            );
        }
    }
    Ok(())
}

/// Returns the paths whose narinfos are compared, with Nix's information about them.
fn sample(store: &Store) -> impl Iterator<Item = (&String, &PathInfo)> {
    let stride = (store.paths.len() / NARINFO_COUNT).max(1);
    store.paths.iter().step_by(stride)
}

/// Requests a narinfo; returns its text.
fn fetch_narinfo(client: &mut Client, path: &str) -> Result<String> {
    let mut body = Vec::new();
    let url = format!("/{}.narinfo", hash_part(path));
    let answer = client.get(&url, |piece| body.extend_from_slice(piece))?;
    if answer.status != 200 {
        bail!("{url}: status {}", answer.status);
    }
    String::from_utf8(body).with_context(|| format!("{url} is no text"))
}

/// Parses a narinfo into its fields, by name.
fn fields(narinfo: &str) -> BTreeMap<String, String> {
    let fields = narinfo.lines().filter_map(|line| line.split_once(": "));
    fields
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Returns this server's URL of the NAR of `path`.
pub(crate) fn nar_url(client: &mut Client, path: &str) -> Result<String> {
    let narinfo = fields(&fetch_narinfo(client, path)?);
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
    // Servers may omit the deriver and the content address, but they must not send wrong ones.
    let or_absent = |sent: &str, known: &Option<String>| {
        sent.is_empty()
            || known
                .as_deref()
                .is_some_and(|known| base_name(known) == base_name(sent))
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
            bail!("{name} is {:?}, but Nix has {info:?}", field(name));
        }
    }
    Ok(())
}

impl Dumps {
    fn hash(&mut self, store: &Store, path: &str) -> Result<Hash> {
        if let Some(hash) = self.hashes.get(path) {
            return Ok(*hash);
        }
        let hash = dump_hash(store, path)?;
        self.hashes.insert(path.to_owned(), hash);
        Ok(hash)
    }
}

/// Implements `Write` for a hasher.
struct Hasher(Sha256);

impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn dump_hash(store: &Store, path: &str) -> Result<Hash> {
    let mut child = store.dump(path).stdout(Stdio::piped()).spawn()?;
    let mut stdout = child.stdout.take().context("stdout is piped")?;
    let mut hasher = Hasher(Sha256::new());
    io::copy(&mut stdout, &mut hasher)?;
    if !child.wait()?.success() {
        bail!("nix-store --dump {path} failed");
    }
    Ok(hasher.0.finalize())
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
