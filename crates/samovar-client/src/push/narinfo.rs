//! The narinfos of pushed paths.

use anyhow::ensure;
use samovar_nix::narinfo::{Compression, NarInfo};
use samovar_nix::{PathInfo, StoreDir};
use samovar_protocol::push::{NARINFO_LEN_MAX, NarinfoLine, write_record};

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
    let len = text.len() as u64;
    write_record(body, &NarinfoLine { len }, &text);
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
