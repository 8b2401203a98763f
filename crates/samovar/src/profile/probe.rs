//! Measures what single operations cost in a directory, in a new directory below it.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::fs::{AtFlags, CWD};

use super::predict::Costs;

/// Maximum number of files.
pub(super) const FILES_MAX: u32 = 200;

/// Maximum number of directories, and of fsyncs.
pub(super) const FEW_MAX: u32 = 50;

/// Length of a file, in bytes: the median of a tree of 42,246 files.
pub(super) const FILE_LEN: usize = 709;

/// Time after which a phase starts no further operation. Removing what was created takes as long as
/// it takes.
pub(super) const PHASE_TIME: Duration = Duration::from_secs(2);

/// A measured directory.
#[derive(Debug)]
pub(super) struct Probe {
    /// Type of the file system, such as `nfs`.
    pub(super) file_system: String,
    /// Number of files that were created within [`PHASE_TIME`].
    pub(super) files: u32,
    pub(super) costs: Costs,
}

/// Creates a directory for the measurements in `parent`.
///
/// # Errors
///
/// The directory cannot be created.
pub(super) fn scratch(parent: &Path) -> anyhow::Result<Scratch> {
    let dir = tempfile::Builder::new()
        .prefix(".samovar-probe-")
        .tempdir_in(parent)
        .with_context(|| format!("cannot create a directory in {parent:?}"))?;
    Ok(Scratch {
        // Not removed by tempfile, which would remove files of other programs, too.
        dir: dir.keep(),
        files: 0,
        renamed: 0,
        directories: 0,
    })
}

/// A temporary directory for this process. On drop, the files and directories that this value has
/// created are removed, then the directory itself, unless something else is in it.
#[derive(Debug)]
pub(super) struct Scratch {
    dir: PathBuf,
    /// Number of files that may exist, and of the first among them that may be renamed.
    files: u32,
    renamed: u32,
    /// Number of directories that may exist.
    directories: u32,
}

impl Scratch {
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Measures the operations, and removes the directory.
    ///
    /// # Errors
    ///
    /// An operation failed.
    pub(super) fn measure(mut self) -> anyhow::Result<Probe> {
        let file_system = file_system(&self.dir);
        let costs = self.costs();
        let costs = costs.with_context(|| format!("cannot measure {:?}", self.dir))?;
        let files = self.files;
        let costs = self.remove(costs);
        let costs = costs.with_context(|| format!("cannot remove {:?}", self.dir))?;
        Ok(Probe {
            file_system,
            files,
            costs,
        })
    }

    fn costs(&mut self) -> io::Result<Costs> {
        let content = [b'x'; FILE_LEN];
        let dir = self.dir.clone();
        let file = |number: u32| dir.join(format!("file-{number}"));
        let renamed = |number: u32| dir.join(format!("renamed-{number}"));
        let directory = |number: u32| dir.join(format!("directory-{number}"));
        let (_, mkdir) = phase(FEW_MAX, |number| {
            self.directories = number + 1;
            fs::create_dir(directory(number))
        })?;
        let (count, create) = phase(FILES_MAX, |number| {
            self.files = number + 1;
            fs::File::create_new(file(number))?.write_all(&content)
        })?;
        let (_, read) = phase(count, |number| {
            let mut read = Vec::with_capacity(FILE_LEN);
            fs::File::open(file(number))?.read_to_end(&mut read)?;
            Ok(())
        })?;
        let (_, stat) = phase(count, |number| {
            let path = file(number);
            let stat = rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW);
            Ok(stat.map(drop)?)
        })?;
        let (_, fsync) = phase(count.min(FEW_MAX), |number| {
            let mut file = OpenOptions::new().write(true).open(file(number))?;
            file.write_all(&content)?;
            file.sync_all()
        })?;
        let (_, rename) = phase(count.min(FEW_MAX), |number| {
            self.renamed = number + 1;
            fs::rename(file(number), renamed(number))
        })?;
        Ok(Costs {
            create,
            read,
            stat,
            rename,
            fsync,
            mkdir,
            ..Costs::default()
        })
    }

    /// Removes everything, and measures that.
    fn remove(&mut self, costs: Costs) -> io::Result<Costs> {
        let started = Instant::now();
        let files = self.files;
        for number in 0..files {
            self.remove_file(number)?;
        }
        let unlink = mean(started.elapsed(), files);
        let started = Instant::now();
        let directories = self.directories;
        for number in 0..directories {
            fs::remove_dir(self.dir.join(format!("directory-{number}")))?;
        }
        let rmdir = mean(started.elapsed(), directories);
        (self.files, self.directories) = (0, 0);
        fs::remove_dir(&self.dir)?;
        Ok(Costs {
            unlink,
            rmdir,
            ..costs
        })
    }

    /// Removes a file under the name that it has.
    fn remove_file(&self, number: u32) -> io::Result<()> {
        if number < self.renamed {
            match fs::remove_file(self.dir.join(format!("renamed-{number}"))) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => return removed,
            }
        }
        fs::remove_file(self.dir.join(format!("file-{number}")))
    }
}

impl Drop for Scratch {
    /// Removes what is left after an error.
    fn drop(&mut self) {
        for number in 0..self.files {
            self.remove_file(number).ok();
        }
        for number in 0..self.directories {
            fs::remove_dir(self.dir.join(format!("directory-{number}"))).ok();
        }
        fs::remove_dir(&self.dir).ok();
    }
}

/// Repeats an operation at most `count_max` times, and starts none after [`PHASE_TIME`]. Returns
/// the number of operations and their mean time, in seconds.
fn phase(
    count_max: u32,
    mut operation: impl FnMut(u32) -> io::Result<()>,
) -> io::Result<(u32, f64)> {
    let started = Instant::now();
    let mut count = 0;
    while count < count_max && (count == 0 || started.elapsed() < PHASE_TIME) {
        operation(count)?;
        count += 1;
    }
    Ok((count, mean(started.elapsed(), count)))
}

fn mean(time: Duration, count: u32) -> f64 {
    time.as_secs_f64() / f64::from(count.max(1))
}

/// Returns the type of the file system at `path`; `unknown` if it is not in the table.
pub(super) fn file_system(path: &Path) -> String {
    /// Magic numbers of `linux/magic.h`.
    const TYPES: [(i64, &str); 12] = [
        (0x6969, "nfs"),
        (0xef53, "ext4"),
        (0x5846_5342, "xfs"),
        (0x9123_683e, "btrfs"),
        (0x2fc1_2fc1, "zfs"),
        (0x0102_1994, "tmpfs"),
        (0x794c_7630, "overlay"),
        (0x6573_5546, "fuse"),
        (0xff53_4d42, "cifs"),
        (0xfe53_4d42, "smb"),
        (0x00c3_6400, "ceph"),
        (0x0bd0_0bd0, "lustre"),
    ];
    let magic = rustix::fs::statfs(path).map(|stat| stat.f_type);
    let is_type = |entry: &&(i64, &str)| magic.is_ok_and(|magic| magic == entry.0);
    let name = TYPES.iter().find(is_type).map(|(_, name)| *name);
    name.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("mine"), "mine").unwrap();
        let probe = scratch(dir.path()).unwrap().measure().unwrap();
        assert!(probe.files > 0 && probe.files <= FILES_MAX);
        assert!(probe.costs.create > 0.0 && probe.costs.unlink > 0.0);
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert_eq!(names.len(), 1);
        assert_eq!(fs::read(dir.path().join("mine")).unwrap(), b"mine");
    }

    #[test]
    fn a_failed_probe_removes_its_files_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = scratch(dir.path()).unwrap();
        let inside = scratch.dir().to_owned();
        // The probe cannot create its first file.
        fs::create_dir(inside.join("file-0")).unwrap();
        fs::write(inside.join("foreign"), "x").unwrap();
        let error = scratch.measure().unwrap_err();
        assert!(
            format!("{error:#}").starts_with("cannot measure"),
            "{error:#}"
        );
        let left = fs::read_dir(&inside).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["file-0", "foreign"]);
    }
}
