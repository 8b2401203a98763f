//! [`Spool`]: a file with the received bytes of a download, with which the download continues after
//! this process was killed.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use samovar_nix::narinfo::NarInfo;

use super::nar_stream::NarStream;

/// Length of a file, in bytes, from which its download can be continued. Smaller ones are fast.
const LEN_MIN: u64 = 8 << 20;

/// The received bytes of the file of a NAR, after a line that names the NAR. The process holds a
/// lock on it.
#[derive(Debug)]
pub(super) struct Spool {
    path: PathBuf,
    file: File,
    header_len: u64,
    /// Number of bytes of the download.
    pub(super) len: u64,
    /// Length of the whole download, in bytes.
    pub(super) file_size: u64,
}

impl Spool {
    /// Opens the file at `path`, or creates it. Returns `None` if the download is small or has an
    /// unknown length, and if the file is in use or cannot be written.
    pub(super) fn open(path: &Path, narinfo: &NarInfo) -> Option<Self> {
        let file_size = narinfo.file_size.filter(|size| *size >= LEN_MIN)?;
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
            .ok()?;
        file.try_lock().ok()?;
        let found = file.metadata().ok()?;
        // In a directory that other users can write, the file may be theirs, or a hard link to a
        // file that must not change.
        let is_own = found.uid() == rustix::process::geteuid().as_raw();
        if !found.is_file() || !is_own || found.nlink() != 1 {
            return None;
        }
        let header = format!("{} {file_size} {}\n", narinfo.nar_hash, narinfo.url);
        let mut line = String::new();
        let header_len = header.len() as u64;
        let read = BufReader::new((&file).take(header_len)).read_line(&mut line);
        let mut spool = Self {
            path: path.to_owned(),
            len: found.len().saturating_sub(header_len),
            file,
            header_len,
            file_size,
        };
        if read.is_err() || line != header || spool.len > file_size {
            spool.file.set_len(0).ok()?;
            spool.file.rewind().ok()?;
            spool.file.write_all(header.as_bytes()).ok()?;
            spool.len = 0;
        }
        Some(spool)
    }

    /// Forgets all received bytes.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.len = 0;
        self.file.set_len(self.header_len)
    }

    /// Returns whether nothing was received, neither before the file was opened nor since.
    pub(super) fn is_empty(&self) -> bool {
        let found = self.file.metadata();
        found.is_ok_and(|found| found.len() <= self.header_len)
    }

    /// Returns a reader of the received bytes, then of `rest`, which are received now. `None`: all
    /// were received.
    pub(super) fn reader(&self, rest: Option<NarStream>) -> io::Result<Spooled> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(self.header_len))?;
        Ok(Spooled {
            file: Some(file),
            left: self.len,
            rest,
        })
    }

    /// Removes the file.
    pub(super) fn remove(self) {
        // If this fails, the next download to this place replaces the file.
        fs::remove_file(&self.path).unwrap_or_default();
    }
}

/// Reader of a download, see [`Spool::reader`].
pub(super) struct Spooled {
    /// `None`: the file cannot be written any more.
    file: Option<File>,
    /// Number of received bytes that are not read yet.
    left: u64,
    rest: Option<NarStream>,
}

impl Read for Spooled {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(file) = self.file.as_mut().filter(|_| self.left > 0) {
            let count = file.take(self.left).read(buffer)?;
            self.left -= count as u64;
            return Ok(count);
        }
        let Some(rest) = &mut self.rest else {
            return Ok(0);
        };
        let count = rest.read(buffer)?;
        let bytes = buffer.get(..count).unwrap_or_default();
        let is_end = count == 0 && !buffer.is_empty();
        if let Some(file) = &mut self.file
            && (is_end || file.write_all(bytes).is_err())
        {
            // The spooled bytes are not needed any more. At the end of the NAR, a flush of the
            // unpacked files would write the spooled bytes, too. After a write that failed, the
            // disk may be full, and the unpacked files need the space.
            file.set_len(0).ok();
            self.file = None;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use samovar_nix::StoreDir;

    use super::*;

    fn narinfo(digit: char, file_size: u64) -> NarInfo {
        let text = format!(
            "StorePath: /nix/store/vdszx2k8vwaxcpdpwhbwsgib5c6sf53k-a\nURL: nar/a\n\
             Compression: zstd\nFileSize: {file_size}\nNarHash: sha256:{}\nNarSize: 1\n\
             References: \n",
            format!("0{digit}").repeat(26)
        );
        NarInfo::parse(&StoreDir::default(), text.as_bytes()).unwrap()
    }

    #[test]
    fn only_a_download_of_the_same_nar_is_continued() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        let open = |narinfo: &NarInfo| Spool::open(&path, narinfo);
        assert!(open(&narinfo('1', LEN_MIN - 1)).is_none());
        let mut spool = open(&narinfo('1', LEN_MIN)).unwrap();
        assert!(spool.is_empty());
        spool.file.write_all(b"123").unwrap();
        assert!(!spool.is_empty());
        // Another process uses it.
        assert!(open(&narinfo('1', LEN_MIN)).is_none());
        drop(spool);
        let spool = open(&narinfo('1', LEN_MIN)).unwrap();
        assert_eq!(spool.len, 3);
        let mut read = Vec::new();
        let mut reader = spool.reader(None).unwrap();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"123");
        drop((spool, reader));
        for other in [narinfo('2', LEN_MIN), narinfo('2', LEN_MIN + 1)] {
            assert_eq!(open(&other).unwrap().len, 0);
        }
        fs::hard_link(&path, dir.path().join("other")).unwrap();
        assert!(open(&narinfo('2', LEN_MIN)).is_none());
    }
}
