//! The PID file.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, test_kill_process};

/// The PID file of this process; [`remove`](PidFile::remove) it at exit.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
    content: String,
    /// The temporary path of the file, which is removed on drop; `None` once [`put`](Self::put) has
    /// renamed the file.
    beside: Option<PathBuf>,
}

impl PidFile {
    /// Writes the PID of this process to `path`, replacing the file of a server that no longer
    /// runs.
    ///
    /// The file is written under a temporary name and renamed. Readers therefore never see a
    /// partial number, and if `path` is a symbolic link in a directory that others can write to,
    /// the link is replaced and not followed.
    ///
    /// # Errors
    ///
    /// The file names a running nix-serve or starman, or cannot be written. Any other running
    /// process is ignored: it has that PID by chance, for example after a reboot.
    ///
    /// # Source
    ///
    /// `Net::Server` 2.014, `Net::Server::Daemonize::check_pid_file`. That refuses if the PID
    /// belongs to any process.
    pub fn write(path: &Path) -> anyhow::Result<Self> {
        let _lock = lock_directory(path);
        let mut pid_file = Self::prepare(path, None)?;
        pid_file.put()?;
        Ok(pid_file)
    }

    /// Like [`write`](Self::write), but leaves the file under its temporary name until
    /// [`put`](Self::put). The existing file may name the running process `predecessor`.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn prepare(path: &Path, predecessor: Option<u32>) -> anyhow::Result<Self> {
        let other = running(path).with_context(|| cannot_write(path))?;
        let other = other.filter(|pid| u32::try_from(*pid).ok() != predecessor);
        if let Some(pid) = other {
            bail!("the PID file {path:?} names process {pid}, a server that is running");
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        // A file of this name may be left over from a killed process with the same PID.
        fs::remove_file(&beside).ok();
        let pid_file = Self {
            path: path.to_owned(),
            content: format!("{}\n", std::process::id()),
            beside: Some(beside.clone().into()),
        };
        fs::File::create_new(&beside)
            .and_then(|mut file| file.write_all(pid_file.content.as_bytes()))
            .with_context(|| cannot_write(path))?;
        Ok(pid_file)
    }

    /// Renames the file to its final name, unless it has that name already.
    ///
    /// # Errors
    ///
    /// The error of renaming it.
    pub fn put(&mut self) -> anyhow::Result<()> {
        if let Some(beside) = &self.beside {
            fs::rename(beside, &self.path).with_context(|| cannot_write(&self.path))?;
            self.beside = None;
        }
        Ok(())
    }

    /// Removes the file, unless another process has replaced it.
    ///
    /// # Errors
    ///
    /// The error of removing it. After switching the user, the directory may not be writable.
    pub fn remove(self) -> io::Result<()> {
        match fs::read(&self.path) {
            Ok(content) if content == self.content.as_bytes() => fs::remove_file(&self.path),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            fs::remove_file(beside).ok();
        }
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write the PID file {path:?}")
}

/// Maximum time to wait for the lock of the directory.
const LOCK_TIME: Duration = Duration::from_secs(1);

/// Locks the directory. If two servers start at once, the second one then sees the PID of the
/// first. Gives up and returns `None` after [`LOCK_TIME`], because any user may lock a directory
/// such as `/tmp` forever.
fn lock_directory(path: &Path) -> Option<fs::File> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let directory = fs::File::open(parent.unwrap_or(Path::new("."))).ok()?;
    let start = Instant::now();
    loop {
        match directory.try_lock() {
            Ok(()) => return Some(directory),
            Err(fs::TryLockError::WouldBlock) if start.elapsed() < LOCK_TIME => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return None,
        }
    }
}

/// Returns the PID in the file if a running server has it, otherwise `None`.
fn running(path: &Path) -> io::Result<Option<i32>> {
    let content = match fs::read(path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let number = str::from_utf8(&content)
        .ok()
        .and_then(|text| text.trim().parse::<i32>().ok());
    Ok(number.filter(|number| is_server(*number)))
}

fn is_server(number: i32) -> bool {
    let Some(pid) = (number > 0).then(|| Pid::from_raw(number)).flatten() else {
        return false;
    };
    if pid == rustix::process::getpid() {
        return false;
    }
    // Any other error, such as EPERM, means that the process exists.
    if test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
        return false;
    }
    match fs::read(format!("/proc/{number}/cmdline")) {
        Ok(command_line) => is_server_command(&command_line),
        // The command line cannot be read, so assume a server: an unnecessary refusal is better
        // than two running servers.
        Err(_) => true,
    }
}

/// Returns whether one of the first words of a command line is the name of a server: the program,
/// or the script that an interpreter runs. starman sets its process title to `starman master …`.
fn is_server_command(command_line: &[u8]) -> bool {
    let words = command_line.split(|byte| matches!(byte, 0 | b' ')).take(2);
    words
        .map(|word| word.rsplit(|&byte| byte == b'/').next().unwrap_or_default())
        .any(|name| {
            matches!(
                name,
                b"nix-serve"
                    | b".nix-serve-wrapped"
                    | b"starman"
                    | b".starman-wrapped"
                    | b"samovar"
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_and_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pid");
        let pid_file = PidFile::write(&path).expect("writes");
        let content = fs::read_to_string(&path).expect("reads");
        assert_eq!(content, format!("{}\n", std::process::id()));
        assert_eq!(fs::read_dir(directory.path()).expect("lists").count(), 1);
        pid_file.remove().expect("removes");
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_another_process_replaced_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pid");
        let pid_file = PidFile::write(&path).expect("writes");
        fs::write(&path, "1\n").expect("writes");
        pid_file.remove().expect("leaves it");
        assert!(path.exists());
    }

    #[test]
    fn stale_files_are_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pid");
        // A PID that is not in use, text that is not a number, and the PID of another program.
        for content in [
            "2147483647\n",
            "junk",
            "",
            "-1",
            "0",
            &std::os::unix::process::parent_id().to_string(),
        ] {
            fs::write(&path, content).expect("writes");
            PidFile::write(&path).expect("replaces");
        }
    }

    #[test]
    fn a_file_that_is_never_put_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        drop(PidFile::prepare(&directory.path().join("pid"), None).expect("writes"));
        assert_eq!(fs::read_dir(directory.path()).expect("lists").count(), 0);
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, target) = (
            directory.path().join("pid"),
            directory.path().join("precious"),
        );
        fs::write(&target, "precious").expect("writes");
        std::os::unix::fs::symlink(&target, &path).expect("links");
        PidFile::write(&path).expect("writes");
        assert_eq!(fs::read_to_string(&target).expect("reads"), "precious");
        assert!(!fs::symlink_metadata(&path).expect("is there").is_symlink());
    }

    #[test]
    fn servers_are_recognised_by_their_command_line() {
        assert!(is_server_command(
            b"/nix/store/x-nix-serve/bin/nix-serve\0--listen\0:5000\0"
        ));
        assert!(is_server_command(b"starman master --listen :5000\0\0"));
        assert!(is_server_command(b"/usr/bin/perl\0/bin/starman\0"));
        assert!(!is_server_command(b"/bin/sh\0-c\0nix-serve\0"));
        assert!(!is_server_command(b"vim\0/etc/nix-serve.conf\0"));
        assert!(!is_server_command(b""));
    }
}
