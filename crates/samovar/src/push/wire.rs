//! Writes the requests and parses the responses of the push protocol (`docs/push-protocol.md`).

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use samovar_nix::narinfo::{Compression, NarInfo};
use samovar_nix::{HashPart, NarHash, PathInfo, StoreDir};
use samovar_storage::NARINFO_LEN_MAX;
use samovar_storage::push::PushId;

use super::ledger::Lack;
use crate::http::printable;

/// Prefix of the protocol's URL paths, appended to the URL that stock Nix clients push to.
pub(super) const PREFIX: &str = "/push/1";

/// Maximum length in bytes of the line before a record in a pack, and of the pack's last line.
pub(super) const LINE_LEN_MAX: usize = 128;

/// The parsed response to `open`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Opened {
    pub(super) push_id: String,
    /// Maximum length of a pack, in bytes.
    pub(super) pack_len_max: u64,
    /// Maximum length of a part, in bytes.
    pub(super) part_len_max: u64,
    /// For each path of the request, the files that the cache lacks.
    pub(super) lacks: Vec<Lack>,
    /// The paths that the server refuses: their indices, each with the reason.
    pub(super) refused: Vec<(usize, String)>,
}

/// Returns a NAR hash in the protocol's notation: base-32 without the prefix `sha256:`.
pub(super) fn nar_hash_text(hash: &NarHash) -> String {
    hash.nixbase32().iter().copied().map(char::from).collect()
}

/// Returns the body of an `open` request for these paths. `with_names`: whether to state their
/// names, which the first servers with the protocol do not know.
pub(super) fn open_body(infos: &[PathInfo], with_names: bool) -> String {
    let mut body = String::with_capacity(infos.len() * 96);
    for info in infos {
        let hash_part = info.path.hash_part();
        let nar_hash = nar_hash_text(&info.nar_hash);
        let name = match with_names {
            true => format!(" {}", info.path.name()),
            false => String::new(),
        };
        // Writing to a `String` never fails.
        writeln!(body, "{hash_part} {nar_hash} {}{name}", info.nar_size).ok();
    }
    body
}

/// Parses the response to `open`. Returns `None` if the text is no such response, because the
/// server does not support the protocol.
///
/// # Errors
///
/// The response is incomplete, or does not match the request.
pub(super) fn parse_opened(text: &str, infos: &[PathInfo]) -> anyhow::Result<Option<Opened>> {
    let Some(head) = text.lines().next().and_then(|l| l.strip_prefix("push 1 ")) else {
        return Ok(None);
    };
    let (lines, end) = lines_and_end(text)?;
    let head: Vec<&str> = head.split(' ').collect();
    let [push_id, count, pack_len_max, part_len_max] = head[..] else {
        anyhow::bail!("the first line is malformed");
    };
    ensure!(
        PushId::parse(push_id).is_some(),
        "the push id {push_id:?} is malformed"
    );
    let answers = lines.get(1..).unwrap_or_default();
    ensure!(
        count == infos.len().to_string() && answers.len() == infos.len(),
        "it has {} answers for {} paths",
        answers.len(),
        infos.len()
    );
    let mut lacks = Vec::with_capacity(infos.len());
    let mut refused = Vec::new();
    for (index, (line, info)) in answers.iter().zip(infos).enumerate() {
        let (word, rest) = line.split_once(' ').unwrap_or_default();
        let (hash_part, reason) = match (word, rest.split_once(' ')) {
            ("refused", Some((hash_part, reason))) => (hash_part, Some(printable(reason))),
            _ => (rest, None),
        };
        ensure!(
            hash_part == info.path.hash_part().to_string(),
            "the answer {line:?} is not about the path that was asked for"
        );
        lacks.push(match word {
            "have" => Lack::Nothing,
            "link" => Lack::Narinfo,
            "need" => Lack::Nar,
            "refused" => {
                let reason = reason.context("the reason of a refusal is missing")?;
                refused.push((index, format!("the cache refused it: {reason}")));
                Lack::Nar
            }
            _ => anyhow::bail!("the answer {line:?} is unknown"),
        });
    }
    let count = |lack| lacks.iter().filter(|other| **other == lack).count();
    let [have, link, need] = [Lack::Nothing, Lack::Narinfo, Lack::Nar].map(count);
    let counts = [have, link, need - refused.len(), refused.len()];
    let counts = match refused.is_empty() {
        true => &counts[..3],
        false => &counts,
    };
    ensure!(end == counts, "the last line does not match the answers");
    Ok(Some(Opened {
        push_id: push_id.to_owned(),
        pack_len_max: pack_len_max.parse().context("malformed length of packs")?,
        part_len_max: part_len_max.parse().context("malformed length of parts")?,
        lacks,
        refused,
    }))
}

/// Appends the record of a NAR to a pack: a line, then the compressed bytes.
pub(super) fn push_record(pack: &mut Vec<u8>, hash: &NarHash, bytes: &[u8]) {
    let hash = nar_hash_text(hash);
    let compression = Compression::Zstd.name();
    pack.extend_from_slice(format!("nar {hash} {compression} {}\n", bytes.len()).as_bytes());
    pack.extend_from_slice(bytes);
}

/// Appends the line `end` with this count to a pack, or to the body of `publish`.
pub(super) fn push_end(body: &mut Vec<u8>, count: usize) {
    body.extend_from_slice(format!("end {count}\n").as_bytes());
}

/// Parses the response to a pack of these NARs. Returns, for each NAR, the reason if the server
/// refused it, else `None`.
///
/// # Errors
///
/// The response is incomplete, or does not match the request.
pub(super) fn parse_pack(text: &str, hashes: &[NarHash]) -> anyhow::Result<Vec<Option<String>>> {
    let (lines, end) = lines_and_end(text)?;
    ensure!(
        lines.len() == hashes.len(),
        "it has {} answers for {} NARs",
        lines.len(),
        hashes.len()
    );
    let mut reasons = Vec::with_capacity(hashes.len());
    for (line, hash) in lines.iter().zip(hashes) {
        let hash = nar_hash_text(hash);
        let mut words = line.splitn(3, ' ');
        reasons.push(match (words.next(), words.next(), words.next()) {
            (Some("kept"), Some(kept), None) if kept == hash => None,
            (Some("refused"), Some(refused), Some(reason)) if refused == hash => {
                Some(reason.to_owned())
            }
            _ => anyhow::bail!("the answer {line:?} does not match the NAR {hash}"),
        });
    }
    let refused = reasons.iter().flatten().count();
    ensure!(
        end == [hashes.len() - refused, refused],
        "the last line does not match the answers"
    );
    Ok(reasons)
}

/// Parses the list of parts that the server has. Returns the number, the length and the SHA-256 in
/// base 16 of each part.
///
/// # Errors
///
/// The response is incomplete or malformed.
pub(super) fn parse_parts(text: &str) -> anyhow::Result<Vec<(u64, u64, String)>> {
    let (lines, end) = lines_and_end(text)?;
    ensure!(end == [lines.len()], "the last line does not match");
    lines
        .iter()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let ["part", number, len, sha256] = words[..] else {
                anyhow::bail!("the line {line:?} is malformed");
            };
            Ok((number.parse()?, len.parse()?, sha256.to_owned()))
        })
        .collect()
}

/// The reason why a path cannot be published yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// The cache does not have this reference of the path.
    Reference {
        reference: HashPart,
        referrer: HashPart,
    },
    /// The server no longer has the NAR of this path.
    Nar(HashPart),
}

/// Parses the response to `publish` that lists missing references and NARs.
///
/// # Errors
///
/// The response is incomplete or malformed.
pub(super) fn parse_missing(text: &str) -> anyhow::Result<Vec<Missing>> {
    let (lines, end) = lines_and_end(text)?;
    ensure!(end == [lines.len()], "the last line does not match");
    lines
        .iter()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            Ok(match words[..] {
                ["missing", reference, referrer] => Missing::Reference {
                    reference: reference.parse()?,
                    referrer: referrer.parse()?,
                },
                ["need", path] => Missing::Nar(path.parse()?),
                _ => anyhow::bail!("the line {line:?} is malformed"),
            })
        })
        .collect()
}

/// Appends the narinfo of a path to the body of `publish`. Servers ignore its file hash and file
/// size.
///
/// # Errors
///
/// The path has no NAR size, or its narinfo is too long.
pub(super) fn push_narinfo(
    body: &mut Vec<u8>,
    info: &PathInfo,
    dir: &StoreDir,
) -> anyhow::Result<()> {
    let mut text = Vec::new();
    narinfo(info, "-", Compression::Zstd).write(dir, &mut text)?;
    ensure!(
        text.len() <= NARINFO_LEN_MAX,
        "its narinfo has more than {NARINFO_LEN_MAX} bytes"
    );
    body.extend_from_slice(format!("narinfo {}\n", text.len()).as_bytes());
    body.extend_from_slice(&text);
    Ok(())
}

/// Returns the narinfo of a path whose NAR file has this URL and compression.
pub(super) fn narinfo(info: &PathInfo, url: &str, compression: Compression) -> NarInfo {
    NarInfo {
        store_path: info.path.clone(),
        url: url.to_owned(),
        compression,
        file_hash: None,
        file_size: None,
        nar_hash: info.nar_hash,
        nar_size: info.nar_size,
        references: info.references.clone(),
        deriver: info.deriver.clone(),
        system: None,
        signatures: info.signatures.clone(),
        content_address: info.content_address,
    }
}

/// Splits a response into its lines and the numbers of its `end` line.
fn lines_and_end(text: &str) -> anyhow::Result<(Vec<&str>, Vec<usize>)> {
    let mut lines: Vec<&str> = text
        .strip_suffix('\n')
        .unwrap_or_default()
        .split('\n')
        .collect();
    let end = lines.pop().and_then(|line| line.strip_prefix("end "));
    let end = end.context("it has no last line \"end\"")?;
    let numbers = end.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    Ok((lines, numbers))
}

#[cfg(test)]
mod tests {
    use samovar_nix::StorePath;

    use super::*;
    use crate::push::path_info;

    const H: &str = "vdszx2k8vwaxcpdpwhbwsgib5c6sf53k";
    const NAR: &str = "0000000000000000000000000000000000000000000000000000";
    const ID: &str = "4f1b7c6d0c8e4a5f9d3e2b1a0c9d8e7f";

    fn info() -> PathInfo {
        let path = StorePath::from_base_name(&format!("{H}-app-2.0")).unwrap();
        path_info(path.clone(), NarHash::from_bytes([0; 32]), 120, vec![path])
    }

    #[test]
    fn open_has_a_line_for_each_path() {
        assert_eq!(
            open_body(&[info(), info()], false),
            format!("{H} {NAR} 120\n").repeat(2)
        );
        let with_name = format!("{H} {NAR} 120 app-2.0\n");
        assert_eq!(open_body(&[info()], true), with_name);
        assert_eq!(open_body(&[], true), "");
    }

    #[test]
    fn answers_to_open() {
        let text = format!("push 1 {ID} 2 33554432 1024\nhave {H}\nneed {H}\nend 1 0 1\n");
        let expected = Opened {
            push_id: ID.to_owned(),
            pack_len_max: 32 << 20,
            part_len_max: 1024,
            lacks: vec![Lack::Nothing, Lack::Nar],
            refused: Vec::new(),
        };
        let both = [info(), info()];
        assert_eq!(parse_opened(&text, &both).unwrap(), Some(expected));
        let refused = format!("push 1 {ID} 1 1 1\nrefused {H} a name; leave it out\nend 0 0 0 1\n");
        let opened = parse_opened(&refused, &[info()]).unwrap().unwrap();
        let reason = "the cache refused it: a name; leave it out".to_owned();
        assert_eq!(opened.refused, [(0, reason)]);
        for wrong in ["refused {H}\nend 0 0 0 1\n", "refused {H} a\nend 0 0 1\n"] {
            let wrong = format!("push 1 {ID} 1 1 1\n{}", wrong.replace("{H}", H));
            assert!(parse_opened(&wrong, &[info()]).is_err(), "{wrong}");
        }
        // Every shorter text is invalid, and so are other deviations from the grammar.
        for len in "push 1 ".len()..text.len() {
            assert!(parse_opened(&text[..len], &both).is_err(), "{len}");
        }
        for (from, to) in [
            ("end 1 0 1", "end 1 1 1"),
            ("need", "want"),
            (ID, "../x"),
            (" 2 33", " 3 33"),
            (H, NAR),
            ("33554432", "x"),
        ] {
            assert!(
                parse_opened(&text.replacen(from, to, 1), &both).is_err(),
                "{to}"
            );
        }
        assert!(parse_opened(&text, &[info()]).is_err());
        for other in ["", "<html>\n", "push 2 x\nend 0 0 0\n"] {
            assert_eq!(parse_opened(other, &[]).unwrap(), None, "{other}");
        }
    }

    #[test]
    fn packs() {
        let hash = info().nar_hash;
        let mut pack = Vec::new();
        push_record(&mut pack, &hash, b"abc\n");
        push_record(&mut pack, &hash, b"");
        push_end(&mut pack, 2);
        let expected = format!("nar {NAR} zstd 4\nabc\nnar {NAR} zstd 0\nend 2\n");
        assert_eq!(pack, expected.as_bytes());
        let line = format!("nar {NAR} zstd {}\nend {}\n", usize::MAX, usize::MAX);
        assert!(line.len() <= LINE_LEN_MAX);
    }

    #[test]
    fn answers_to_packs() {
        let hashes = [info().nar_hash; 2];
        let text = format!("kept {NAR}\nrefused {NAR} wrong hash, send it again\nend 1 1\n");
        let reason = "wrong hash, send it again".to_owned();
        assert_eq!(parse_pack(&text, &hashes).unwrap(), [None, Some(reason)]);
        for len in 0..text.len() {
            assert!(parse_pack(&text[..len], &hashes).is_err(), "{len}");
        }
        assert!(parse_pack(&text.replace("end 1 1", "end 2 0"), &hashes).is_err());
        assert!(parse_pack(&text.replacen(NAR, H, 1), &hashes).is_err());
        assert_eq!(parse_pack("end 0 0\n", &[]).unwrap(), []);
    }

    #[test]
    fn lists_of_parts_and_missing_references() {
        let parts = parse_parts("part 1 32 ab\npart 3 7 cd\nend 2\n").unwrap();
        assert_eq!(parts, [(1, 32, "ab".to_owned()), (3, 7, "cd".to_owned())]);
        assert_eq!(parse_parts("end 0\n").unwrap(), []);
        for bad in [
            "",
            "part 1 32 ab\n",
            "part 1 32 ab\nend 2\n",
            "part 1 32\nend 1\n",
        ] {
            assert!(parse_parts(bad).is_err(), "{bad}");
        }
        let hash_part: HashPart = H.parse().unwrap();
        let text = format!("missing {H} {H}\nneed {H}\nend 2\n");
        let reference = Missing::Reference {
            reference: hash_part,
            referrer: hash_part,
        };
        let expected = [reference, Missing::Nar(hash_part)];
        assert_eq!(parse_missing(&text).unwrap(), expected);
        for bad in ["missing a b\nend 1\n", "need a\nend 1\n", "end 1\n", ""] {
            assert!(parse_missing(bad).is_err(), "{bad}");
        }
    }
}
