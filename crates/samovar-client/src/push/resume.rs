//! Records the push ids of interrupted uploads of large NARs in the cache directory of the user.
//!
//! A server keeps the parts of a NAR under the push id with which they were sent, so a client needs
//! that id to continue after an interruption. There is one file for each NAR in progress:
//! `samovar/push/<hash of the target>/<NAR hash>`. A later push therefore continues the NAR even if
//! it selects other paths.
//!
//! The file also records the compression settings. Parts that were compressed with other settings
//! do not fit together, so such an upload starts anew.

use std::fs;
use std::path::PathBuf;

use samovar_nix::NarHash;
use samovar_protocol::names::PushId;
use samovar_protocol::nar_hash_text;

use super::cache_dir;
use super::compress::Compressing;

/// The records of NARs whose upload to one target is not finished.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// Directory of the files. `None`: the user has no cache directory, so nothing is recorded.
    dir: Option<PathBuf>,
    /// The present settings of the compression, as each file states them after its push id.
    settings: String,
}

impl Unfinished {
    /// Opens the records. `target`: URL of the cache, without a login. `compressing` and
    /// `part_len`: the present settings, for compressing NARs and for splitting them into parts.
    pub(super) fn new(target: &str, compressing: Compressing, part_len: usize) -> Self {
        let Compressing {
            level, frame_len, ..
        } = compressing;
        let zstd = zstd::zstd_safe::version_number();
        Self {
            dir: cache_dir::path("push", target),
            settings: format!("level {level}\nzstd {zstd}\nframe {frame_len}\npart {part_len}\n"),
        }
    }

    /// Returns the push id under which parts of the NAR were sent with the present settings.
    /// `None`: there is no such upload to continue.
    pub(super) fn push_id(&self, nar: &NarHash) -> Option<PushId> {
        let text = fs::read_to_string(self.file(nar)?).ok()?;
        let (push_id, settings) = text.split_once('\n')?;
        PushId::parse(push_id).filter(|_| settings == self.settings)
    }

    /// Records the push id of a NAR. Ignores errors: without the record, an interrupted upload
    /// merely starts anew.
    pub(super) fn remember(&self, nar: &NarHash, push_id: PushId) {
        let Some(file) = self.file(nar) else { return };
        if let Some(dir) = &self.dir {
            fs::create_dir_all(dir).ok();
        }
        fs::write(file, format!("{push_id}\n{}", self.settings)).ok();
    }

    /// Deletes the record of a NAR, which is complete or was refused.
    pub(super) fn forget(&self, nar: &NarHash) {
        if let Some(file) = self.file(nar) {
            fs::remove_file(file).ok();
        }
    }

    fn file(&self, nar: &NarHash) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.join(nar_hash_text(nar)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nar_is_continued_with_the_same_settings_only() {
        let dir = tempfile::tempdir().unwrap();
        let with = |settings: &str| Unfinished {
            dir: Some(dir.path().join("target")),
            settings: settings.to_owned(),
        };
        let nar = NarHash::from_bytes([7; 32]);
        let id = PushId::from_number(7);
        assert_eq!(with("level 3\n").push_id(&nar), None);
        with("level 3\n").remember(&nar, id);
        assert_eq!(with("level 3\n").push_id(&nar), Some(id));
        assert_eq!(with("level 4\n").push_id(&nar), None);
        let file = with("").file(&nar).unwrap();
        fs::write(file, "not an id\nlevel 3\n").unwrap();
        assert_eq!(with("level 3\n").push_id(&nar), None);
        with("level 3\n").forget(&nar);
        assert_eq!(with("level 3\n").push_id(&nar), None);
    }
}
