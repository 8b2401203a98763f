//! The sample store for tests. It contains every feature of real stores, including those that have
//! caused failures of servers.

use std::io::Write;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::random::Node;
use super::store::{Derivation, Features, Import, LogPlace, STORE_DIR, Store};
use super::{Manifest, graph, trees};
use crate::command::progress;

/// Published key of the signature test vectors (seed 00…1f), hence no secret.
const SIGNING_KEY: &str = "test-1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8DoQe/884Qvh1w3RjnS8CZZ+TWMJulDV8d3IZkElUxuA==";
const SIGNING_KEY_PUBLIC: &str = "test-1:A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=";

/// Output of the builder of `built`, with terminal colours, which logs retain.
const BUILT_LOG: &str = "unpacking\n\x1b[32mbuilding\x1b[0m\ndone\n";

/// Fills `store`; returns the manifest of its paths.
///
/// Keys of the manifest; values are store paths unless stated otherwise:
///
/// | key | value |
/// | --- | --- |
/// | `top`, `closure` | the top of a graph; the list of the 331 paths in its closure |
/// | `graph` | the list of those derivations' outputs, in the order of the layers |
/// | `tree` | 5,200 small files in folders |
/// | `big`, `empty` | 10 MB, incompressible; an empty file; both are sources without deriver |
/// | `odd`, `kinds` | unusual file names; empty folders, all kinds of links, programs |
/// | `deep63`, `deep64` | a file nested 63 or 64 levels deep; newer clients refuse the second, and newer Nix cannot add it: then it is null |
/// | `fixed`, `text` | content-addressed the other two ways: flat hash; text with a reference (`text_reference`) |
/// | `built`, `built_drv`, `built_log` | built by Nix, refers to itself and to another path; its log as text; these and the next two rows are null where Nix may not build |
/// | `multi_out`, `multi_dev`, `multi_drv` | a derivation with two outputs, one referring to the other |
/// | `ca`, `ca_drv` | output of a content-addressed derivation, with a realisation |
/// | `signed`, `signed_by` | a path with two stored signatures; the public key of one |
/// | `self_reference` | a path of the graph that refers to itself |
/// | `single_file` | a path of the graph that is a file and has references |
/// | `deriver_gone` | a path whose deriver is not in the store |
/// | `no_references` | a path with a deriver and no references |
/// | `not_valid` | a path on disk but not in the database, as garbage collection leaves it |
/// | `absent` | a path that is neither on disk nor in the database |
/// | `logs` | objects of `drv`, `kind`, `text`: one for each way a log is stored. `orphan` belongs to a derivation that is not in the store. `bytes` (text null) holds all 256 byte values in order. `growing` (text null) is cut inside bzip2: lines `compiling unit N` from 0 to 59,999, of which a part decodes |
/// | `valid_paths` | the list of all valid paths, sorted |
pub(crate) fn fill(store: &Store) -> Result<Manifest> {
    let mut manifest = Manifest::new();
    add_sources(store, &mut manifest)?;
    progress("  331 paths that refer to each other");
    let packages = graph::register(store, &graph::layers("lib", 33, 10))?;
    describe_graph(store, &packages, &mut manifest)?;
    progress("  builds, signatures and logs");
    build(store, &packages, &mut manifest)?;
    sign(store, &mut manifest)?;
    write_logs(store, &packages, &mut manifest)?;
    leave_garbage(store, &mut manifest)?;
    Ok(manifest)
}

fn add_sources(store: &Store, manifest: &mut Manifest) -> Result<()> {
    let sources = [
        ("big", trees::noise(10_000_000, 1)),
        ("empty", Node::file("")),
        ("odd", trees::odd_names()),
        ("kinds", trees::kinds()),
        ("deep63", trees::deep(63)),
    ];
    for ((name, _), path) in sources.iter().zip(store.add(&sources)?) {
        manifest.insert((*name).into(), json!(path));
    }
    let deep64 = store.add(&[("deep64", trees::deep(64))]).ok();
    manifest.insert(
        "deep64".into(),
        json!(deep64.as_deref().and_then(<[String]>::first)),
    );

    let text = store.evaluate(
        "builtins.toFile \"text\" \"needs ${builtins.toFile \"text-reference\" \"needed\\n\"}\\n\"",
    )?;
    let reference = store.closure(&text)?.into_iter().find(|path| *path != text);
    manifest.insert("text".into(), json!(text));
    manifest.insert("text_reference".into(), json!(reference));
    let fixed = store.add_fixed("fixed", &Node::file("fixed\n"))?;
    manifest.insert("fixed".into(), json!(fixed));

    let derivations = store.instantiate(Features::Stable, &super::single_derivation("tree"))?;
    let (path, deriver) = only_output(&derivations)?;
    let node = trees::node_modules(5_200, 6, 5);
    let tree = Import {
        path: path.clone(),
        node,
        references: Vec::new(),
        deriver,
    };
    manifest.insert("tree".into(), json!(path));

    // Import a path whose deriver is missing, as in stores that keep outputs and not derivations.
    let gone = Import {
        path: format!("{STORE_DIR}/00000000000000000000000000000001-deriver-gone"),
        node: Node::file("my deriver is gone\n"),
        references: Vec::new(),
        deriver: format!("{STORE_DIR}/00000000000000000000000000000002-deriver-gone.drv"),
    };
    manifest.insert("deriver_gone".into(), json!(gone.path));
    store
        .import(&[tree, gone])
        .context("cannot register the tree")
}

fn describe_graph(store: &Store, packages: &[Derivation], manifest: &mut Manifest) -> Result<()> {
    let outputs: Vec<&String> = packages
        .iter()
        .filter_map(|one| one.outputs.get("out"))
        .collect();
    let top = outputs.last().context("the graph has a top")?;
    manifest.insert("top".into(), json!(top));
    manifest.insert("closure".into(), json!(store.closure(top)?));
    // Indices follow the rules of `trees::package`; the first layer has no references.
    manifest.insert("no_references".into(), json!(outputs.get(1)));
    manifest.insert("self_reference".into(), json!(outputs.get(12)));
    manifest.insert("single_file".into(), json!(outputs.get(13)));
    manifest.insert("graph".into(), json!(outputs));
    Ok(())
}

/// Lets Nix build three derivations. This requires a mount namespace, which many containers forbid;
/// there, the paths are null.
fn build(store: &Store, packages: &[Derivation], manifest: &mut Manifest) -> Result<()> {
    let needed = packages.first().and_then(|one| one.outputs.get("out"));
    let needed = needed.context("the graph has an output")?;
    let derivations = store.instantiate(Features::ContentAddressed, &buildable(needed))?;
    let [built, multi, addressed] = derivations.as_slice() else {
        bail!("three derivations")
    };
    let done = store.build(Features::Stable, &built.drv).and_then(|_| {
        store.build(Features::Stable, &multi.drv)?;
        store.build(Features::ContentAddressed, &addressed.drv)
    });
    if let Err(error) = &done {
        let error = error.to_string();
        let last = error.lines().last().unwrap_or_default();
        progress(&format!("  Nix may not build on this machine: {last}"));
    }
    for (name, value) in [
        ("built", built.outputs.get("out")),
        ("built_drv", Some(&built.drv)),
        ("multi_out", multi.outputs.get("out")),
        ("multi_dev", multi.outputs.get("dev")),
        ("multi_drv", Some(&multi.drv)),
        ("ca", done.as_ref().ok()),
        ("ca_drv", Some(&addressed.drv)),
    ] {
        manifest.insert(name.into(), json!(value.filter(|_| done.is_ok())));
    }
    manifest.insert("built_log".into(), json!(BUILT_LOG));
    Ok(())
}

/// Returns the derivations of [`build`], in its order.
fn buildable(needed: &str) -> String {
    let needed = format!("builtins.storePath \"{needed}\"");
    format!(
        r#"
        let
          shell = name: outputs: more: script: derivation (more // {{
            inherit name outputs;
            system = builtins.currentSystem;
            builder = "/bin/sh";
            args = [ "-euc" "PATH=/bin:/usr/bin\n${{script}}" ];
          }});
          content-addressed = {{
            __contentAddressed = true;
            outputHashMode = "recursive";
            outputHashAlgo = "sha256";
          }};
        in [
          (shell "built" [ "out" ] {{ needed = {needed}; }} ''
            printf 'unpacking\n\033[32mbuilding\033[0m\ndone\n'
            mkdir $out
            printf '#!/bin/sh\nexec %s/libexec/run\n' $out > $out/run
            chmod +x $out/run
            echo $needed > $out/needs
          '')
          (shell "multi" [ "out" "dev" ] {{ }} ''
            echo out > $out
            echo $out > $dev
          '')
          (shell "content-addressed" [ "out" ] content-addressed ''
            echo content-addressed > $out
          '')
        ]
        "#
    )
}

fn sign(store: &Store, manifest: &mut Manifest) -> Result<()> {
    let added = store.add(&[("signed", Node::file("signed\n"))])?;
    let signed = added.first().context("one path was added")?;
    store.sign(signed, SIGNING_KEY)?;
    store.sign(signed, &store.generate_key("another-1")?)?;
    manifest.insert("signed".into(), json!(signed));
    manifest.insert("signed_by".into(), json!(SIGNING_KEY_PUBLIC));
    Ok(())
}

/// The places in which Nix searches for a build log. The first value tells whether the file is
/// directly in the log folder, as in very old versions, and the second whether it is compressed.
const PLAIN: LogPlace = (false, false);
const BZIP2: LogPlace = (false, true);
const FLAT: LogPlace = (true, false);
const FLAT_BZIP2: LogPlace = (true, true);

fn write_logs(store: &Store, packages: &[Derivation], manifest: &mut Manifest) -> Result<()> {
    let growing: String = (0..60_000)
        .map(|line| format!("compiling unit {line}\n"))
        .collect();
    let text = |kind| format!("the log is {kind}\n").into_bytes();
    let logs = [
        ("bzip2", BZIP2, text("bzip2")),
        ("plain", PLAIN, text("plain")),
        ("flat", FLAT, text("flat")),
        ("flat-bzip2", FLAT_BZIP2, text("flat-bzip2")),
        ("growing", BZIP2, growing.into_bytes()),
        ("bytes", BZIP2, (0..=255).collect()),
        ("empty", PLAIN, Vec::new()),
        ("orphan", BZIP2, text("orphan")),
    ];
    // Start at the second layer of the graph, because `no_references` must have no log.
    let derivations = packages.iter().skip(10).map(|package| package.drv.clone());
    let orphan = format!("{STORE_DIR}/00000000000000000000000000000003-orphan.drv");
    let derivations = derivations.take(logs.len() - 1).chain([orphan]);
    let mut described = Vec::new();
    for (drv, (kind, place, content)) in derivations.zip(logs) {
        let mut bytes = if place.1 {
            bzip2(&content)?
        } else {
            content.clone()
        };
        if kind == "growing" {
            bytes.truncate(bytes.len() * 2 / 3);
        }
        store.write_log(&drv, place, &bytes)?;
        let text = match kind {
            "growing" | "bytes" => None,
            _ => Some(String::from_utf8(content)?),
        };
        described.push(json!({"drv": drv, "kind": kind, "text": text}));
    }
    manifest.insert("logs".into(), json!(described));
    Ok(())
}

/// Compresses bytes with the minimum block size of 100 kB, so that a truncated log still contains
/// whole blocks.
fn bzip2(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// Creates files that real store directories contain besides valid paths.
fn leave_garbage(store: &Store, manifest: &mut Manifest) -> Result<()> {
    let not_valid = format!("{STORE_DIR}/00000000000000000000000000000004-not-valid");
    Node::dir([("half", Node::file("the rest is gone\n"))]).write_tree(&store.real(&not_valid))?;
    let lock = format!("{STORE_DIR}/00000000000000000000000000000005-being-built.lock");
    Node::file("").write_tree(&store.real(&lock))?;
    manifest.insert("not_valid".into(), json!(not_valid));
    let absent = format!("{STORE_DIR}/00000000000000000000000000000006-absent");
    manifest.insert("absent".into(), json!(absent));
    Ok(())
}

/// Returns path and derivation of the only output.
fn only_output(derivations: &[Derivation]) -> Result<(String, String)> {
    let [derivation] = derivations else {
        bail!("expected one derivation")
    };
    let path = derivation
        .outputs
        .get("out")
        .context("a derivation has an output")?;
    Ok((path.clone(), derivation.drv.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_lists_paths_that_nix_considers_valid() {
        // This needs the real Nix. Without it, no store was set up to test.
        if crate::command::find("nix-store").is_none() {
            return;
        }
        let dir = std::env::temp_dir().join(format!("xtask-sample-{}", std::process::id()));
        super::super::make(&dir, super::super::Kind::Test).unwrap();
        let text = std::fs::read_to_string(dir.join(super::super::MANIFEST)).unwrap();
        let manifest: Manifest = serde_json::from_str(&text).unwrap();
        let list = |key: &str| manifest[key].as_array().unwrap().clone();
        let valid = list("valid_paths");

        assert_eq!(list("closure").len(), 331);
        assert!(list("closure").iter().all(|path| valid.contains(path)));
        assert!(valid.len() > 660);
        let single = [
            "top", "tree", "big", "empty", "odd", "kinds", "deep63", "fixed", "text",
        ];
        let more = [
            "text_reference",
            "built",
            "built_drv",
            "multi_out",
            "multi_dev",
            "multi_drv",
        ];
        let rest = [
            "signed",
            "self_reference",
            "single_file",
            "deriver_gone",
            "no_references",
        ];
        for key in single.iter().chain(&more).chain(&rest) {
            assert!(valid.contains(&manifest[*key]), "{key}: {}", manifest[*key]);
        }
        for key in ["not_valid", "absent"] {
            assert!(!valid.contains(&manifest[key]), "{key}");
        }
        assert_eq!(list("logs").len(), 8);
        super::super::remove_tree(&dir).unwrap();
        std::fs::remove_file(dir.with_extension("lock")).ok();
    }
}
