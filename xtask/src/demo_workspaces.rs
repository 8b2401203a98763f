//! `demo-workspaces`: shows a day with workspaces on one machine. Two directories play two
//! workstations, and a server on the loopback interface plays the server.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{progress, repository};
use crate::serve::{build, prepare_store};

/// Number of files that are written with flushes, as an NFS server with `sync` does. The time for
/// all files is extrapolated, because it may be half an hour.
const FLUSHED_COUNT: u32 = 300;

/// Address of the demo's server, unless another program uses it.
const PORTS: std::ops::Range<u16> = 5700..5800;

/// The directories and the server of the demo. Dropping it stops the server and removes the
/// directories.
struct Demo {
    samovar: PathBuf,
    dir: tempfile::TempDir,
    server: Child,
    url: String,
    token: String,
    /// The rows of the table at the end: description and time.
    rows: Vec<(String, Duration)>,
}

/// Runs the demo. Fails if a command fails.
pub(crate) fn demonstrate() -> Result<()> {
    let samovar = build("samovar")?;
    let mut demo = Demo::start(samovar)?;
    let (first, second) = (
        demo.dir.path().join("workstation-a"),
        demo.dir.path().join("workstation-b"),
    );
    fs::create_dir_all(&first)?;
    fs::create_dir_all(&second)?;
    let (a, b) = (first.join("app"), second.join("app"));

    say("On workstation A, make a directory a workspace of the ref mr/app.");
    demo.samovar(
        "workspace open (new)",
        &first,
        &["workspace", "open", "mr/app", "app"],
    )?;
    say("Install 42,246 small files into it. This is local work: samovar is not involved.");
    let started_at = Instant::now();
    let files = testkit::small_files::small_files(1);
    files.write_tree(&a.join("node_modules"))?;
    demo.row("files written to the local disk", started_at);
    let flushed = flushed_install(demo.dir.path(), 42_246)?;
    demo.rows.push((
        "the same with 2 flushes a file, extrapolated".to_owned(),
        flushed,
    ));
    say("Push it: the whole tree becomes durable on the server.");
    demo.samovar(
        "push of the whole tree",
        &a,
        &["workspace", "push", "--message", "npm install"],
    )?;

    say("On workstation B, open the same ref.");
    demo.samovar(
        "workspace open (whole tree)",
        &second,
        &["workspace", "open", "mr/app", "app"],
    )?;
    let mut diff = Command::new("diff");
    diff.args(["-rq", "--no-dereference", "--exclude=.samovar"])
        .args([&a, &b]);
    ensure!(diff.status()?.success(), "the two workspaces differ");
    say("Both directories are the same. Change a file on B, and push.");
    append(&b.join("README"), "written on B\n")?;
    demo.samovar("status with one changed file", &b, &["workspace", "status"])?;
    demo.samovar(
        "push of one changed file",
        &b,
        &["workspace", "push", "--message", "one file"],
    )?;
    say("Meanwhile the same file was written on A. A push there is refused, a pull keeps both.");
    append(&a.join("README"), "written on A\n")?;
    demo.refused(&a, &["workspace", "push"])?;
    demo.run(&a, &["workspace", "pull"])?;
    demo.run(&a, &["workspace", "log"])?;
    demo.mount()?;
    demo.print_table();
    Ok(())
}

impl Demo {
    fn start(samovar: PathBuf) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("demo-")
            .tempdir_in(repository().join(".samovar"))?;
        let store = prepare_store()?;
        let storage = dir.path().join("storage");
        let (server, port) = PORTS
            .map(|port| {
                (
                    start_server(&samovar, &store.arguments, &storage, port),
                    port,
                )
            })
            .find_map(|(server, port)| Some((server?, port)))
            .context("the server does not start")?;
        let mut token = Command::new(&samovar);
        token.args([
            "token",
            "create",
            "--name",
            "demo",
            "--rights",
            "read,push,pin",
        ]);
        let token = token.arg("--storage").arg(&storage).output()?;
        let token = String::from_utf8(token.stdout)?.trim().to_owned();
        Ok(Self {
            samovar,
            dir,
            server,
            url: format!("http://127.0.0.1:{port}"),
            token,
            rows: Vec::new(),
        })
    }

    fn command(&self, dir: &Path, words: &[&str]) -> Command {
        println!("  $ samovar {}", words.join(" "));
        let mut command = Command::new(&self.samovar);
        command.args(words).current_dir(dir);
        command
            .env("SAMOVAR_CACHE", &self.url)
            .env("SAMOVAR_TOKEN", &self.token);
        command.env("XDG_STATE_HOME", self.dir.path().join("state"));
        command.env("XDG_CACHE_HOME", self.dir.path().join("cache"));
        command
    }

    /// Runs a command, and adds its time to the table.
    fn samovar(&mut self, what: &str, dir: &Path, words: &[&str]) -> Result<()> {
        let started_at = Instant::now();
        self.run(dir, words)?;
        self.row(what, started_at);
        Ok(())
    }

    /// Runs a command that ends with exit code 0 or 1: status and pull report changes by 1.
    fn run(&self, dir: &Path, words: &[&str]) -> Result<()> {
        let status = self.command(dir, words).status()?;
        ensure!(
            matches!(status.code(), Some(0 | 1)),
            "the command failed: {status}"
        );
        Ok(())
    }

    fn refused(&self, dir: &Path, words: &[&str]) -> Result<()> {
        let status = self.command(dir, words).status()?;
        ensure!(
            status.code() == Some(1),
            "the command was not refused: {status}"
        );
        Ok(())
    }

    fn row(&mut self, what: &str, started_at: Instant) {
        self.rows.push((what.to_owned(), started_at.elapsed()));
    }

    /// Mounts the ref, if FUSE works here.
    fn mount(&mut self) -> Result<()> {
        if File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .is_err()
        {
            say("/dev/fuse cannot be opened here, so the mount is left out.");
            return Ok(());
        }
        say("Mount the newest generation without downloading it first, and list all files.");
        let at = self.dir.path().join("mounted");
        fs::create_dir(&at)?;
        let words = ["mount", "mr/app", "mounted"];
        let started_at = Instant::now();
        let mut mounted = self.command(self.dir.path(), &words).spawn()?;
        let is_mounted = || fs::metadata(at.join("node_modules")).is_ok();
        while !is_mounted() {
            ensure!(
                started_at.elapsed() < Duration::from_secs(30),
                "it was not mounted"
            );
            if let Some(status) = mounted.try_wait()? {
                bail!("the mount ended: {status}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.row("mount", started_at);
        let started_at = Instant::now();
        let found = Command::new("find").arg(&at).output()?;
        self.row("find in the mounted tree", started_at);
        let count = found.stdout.iter().filter(|byte| **byte == b'\n').count();
        println!("    {count} entries");
        Command::new("kill")
            .arg(mounted.id().to_string())
            .status()?;
        mounted.wait()?;
        Ok(())
    }

    fn print_table(&self) {
        println!("\n{:>10}  step", "seconds");
        for (what, time) in &self.rows {
            println!("{:>10.2}  {what}", time.as_secs_f64());
        }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // The server may have ended.
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

/// Starts a server at this port. Returns `None` if it ends.
fn start_server(samovar: &Path, store: &[String], storage: &Path, port: u16) -> Option<Child> {
    let mut server = Command::new(samovar);
    server.args([
        "serve",
        "--listen",
        &format!("127.0.0.1:{port}"),
        "--admin-listen",
        "127.0.0.1:0",
    ]);
    // Only holders of a token may read the cache.
    server
        .args(["--access-networks", "192.0.2.0/24"])
        .args(store);
    server.arg("--storage").arg(storage).stderr(Stdio::null());
    let mut server = server.spawn().ok()?;
    let started_at = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        if server.try_wait().ok()?.is_some() || started_at.elapsed() > Duration::from_secs(20) {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // Another program may use the port.
    std::thread::sleep(Duration::from_millis(100));
    server.try_wait().ok()?.is_none().then_some(server)
}

/// Writes some files with a flush after the creation and after the contents of each. Returns the
/// time that `count` files would take.
fn flushed_install(dir: &Path, count: u32) -> Result<Duration> {
    let dir = dir.join("flushed");
    fs::create_dir(&dir)?;
    let directory = File::open(&dir)?;
    let started_at = Instant::now();
    for number in 0..FLUSHED_COUNT {
        let mut file = File::create(dir.join(number.to_string()))?;
        directory.sync_all()?;
        file.write_all(&[b'x'; 709])?;
        file.sync_all()?;
    }
    Ok(started_at.elapsed() * count / FLUSHED_COUNT)
}

fn append(file: &Path, text: &str) -> Result<()> {
    let mut file = File::options().append(true).create(true).open(file)?;
    Ok(file.write_all(text.as_bytes())?)
}

fn say(text: &str) {
    progress(text);
}
