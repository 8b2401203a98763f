//! [`frames`]: reads the seek table of a file on a server.

use std::io::Read as _;

use samovar_nix::SeekTable;
use samovar_nix::seek_table::Frames;

use crate::http::{Http, content_range};

/// Length of the content of a frame, in bytes, that servers and clients write.
const FRAME_LEN: u64 = 1 << 20;

/// Maximum length of a seek table, in bytes.
const TABLE_LEN_MAX: u64 = 16 << 20;

/// Reads the seek table at the end of the file at `path`, which begins with a slash. Returns `None`
/// if the file has none, or if the server has no ranges.
///
/// # Errors
///
/// The server does not send the file. The reason is a fragment.
pub fn frames(http: &Http, path: &str, nar_size: u64) -> Result<Option<Frames>, String> {
    let read = |len: u64| -> Result<Option<(Vec<u8>, u64)>, String> {
        let response = http.get_part(path, Some(&format!("bytes=-{len}")))?;
        let total = content_range(&response).map(|(_, total)| total);
        let Some(total) = total.filter(|_| response.status() == 206) else {
            // The file is shorter, or the server has no ranges.
            return Ok(None);
        };
        let mut tail = Vec::new();
        let body = response.into_body().into_reader();
        let read = body.take(len).read_to_end(&mut tail);
        read.map_err(|error| error.to_string())?;
        Ok(Some((tail, total)))
    };
    let frame_count = nar_size.div_ceil(FRAME_LEN);
    let usual_len = SeekTable::EMPTY_LEN + frame_count.saturating_mul(SeekTable::ENTRY_LEN);
    let Some((mut tail, mut total)) = read(usual_len.min(TABLE_LEN_MAX))? else {
        return Ok(None);
    };
    let Some(table_len) = Frames::table_len(&tail).filter(|len| *len <= TABLE_LEN_MAX) else {
        return Ok(None);
    };
    if table_len > tail.len() as u64 && table_len <= total {
        match read(table_len)? {
            Some(longer) => (tail, total) = longer,
            None => return Ok(None),
        }
    }
    Ok(Frames::parse(&tail, total, nar_size))
}
