//! `samovar status`: prints the status of a server and of a hook's spool directory.

mod uploads;
mod upstreams;

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Arg, ArgMatches, Command};
use samovar_metrics::{ServedCacheStatus, Status, TopPath, VERSION};

use self::uploads::Spool;
use crate::arguments::{json, spool};
use crate::http::{Http, Patience, read_body};
use crate::remote::Remote;
use crate::size::{counted, human};

/// Maximum length of a status response, bytes.
const STATUS_LEN_MAX: u64 = 16 << 20;

/// Maximum number of entries that are printed of each list.
const LIST_COUNT: usize = 8;

const PATH: &str = "/status.json";

/// URL of a server's default admin listener.
const URL_DEFAULT: &str = "http://127.0.0.1:5001";

/// Defines `samovar status`.
pub(crate) fn command() -> Command {
    Command::new("status")
        .about("Shows the status of a server; for a live view run it under watch")
        .arg(json())
        .arg(spool().help(
            "Show the builds in this spool of samovar hook; a server is queried only with URL",
        ))
        .arg(Arg::new("url").value_name("URL").help(format!(
            "The server's admin listener [default: {URL_DEFAULT}]"
        )))
        // Other commands have an option for their URL.
        .arg(
            Arg::new("url-option")
                .long("url")
                .hide(true)
                .conflicts_with("url"),
        )
}

/// Prints the status of a server, a spool directory, or both. With `--spool` and without a URL,
/// requests nothing: a build machine need not run a server.
pub(crate) fn run(matches: &ArgMatches, out: &mut dyn Write) -> anyhow::Result<()> {
    let url = matches.get_one::<String>("url");
    let url = url.or_else(|| matches.get_one("url-option"));
    let spool: Option<&PathBuf> = matches.get_one("spool");
    let spool = spool.map(|dir| Spool::read(dir)).transpose()?;
    let is_json = matches.get_flag("json");
    let json = match (url, &spool) {
        (None, Some(_)) => None,
        _ => Some(fetch(url.map_or(URL_DEFAULT, String::as_str))?),
    };
    match (&json, &spool) {
        (Some(json), None) if is_json => out.write_all(json)?,
        (json, Some(spool)) if is_json => {
            let mut status = match json {
                Some(json) => serde_json::from_slice(json).context("not the status of a server")?,
                None => serde_json::json!({}),
            };
            status["spool"] = spool.json();
            writeln!(out, "{status}")?;
        }
        _ => {
            if let Some(json) = &json {
                out.write_all(render(&read(json)?).as_bytes())?;
            }
            if let Some(spool) = &spool {
                out.write_all(spool.text().as_bytes())?;
            }
        }
    }
    Ok(())
}

/// Downloads the status from the admin listener at `url`.
fn fetch(url: &str) -> anyhow::Result<Vec<u8>> {
    let remote = Remote::of_folder(url)?;
    let http = Http::new(remote, Patience::QUERY)?;
    let url = http.url(PATH);
    let response = http.get(PATH)?;
    let status = response.status();
    ensure!(
        status == 200,
        "{url} answered {status}: give the URL of the server's admin listener (option \
         admin.listen)"
    );
    let json = read_body(response, STATUS_LEN_MAX);
    json.with_context(|| format!("cannot read {url}"))
}

fn read(json: &[u8]) -> anyhow::Result<Status> {
    let status: Status = serde_json::from_slice(json).context("not the status of a server")?;
    ensure!(
        status.version == VERSION,
        "unsupported status version {}, expected {VERSION}: use the server's version of samovar",
        status.version
    );
    Ok(status)
}

/// Formats the status as text.
fn render(status: &Status) -> String {
    let mut text = String::new();
    // Ignore errors: writing to a string cannot fail.
    write_all(&mut text, status).unwrap_or_default();
    text
}

fn write_all(out: &mut String, status: &Status) -> std::fmt::Result {
    let server = &status.server;
    let ready = if server.is_ready {
        "ready".to_owned()
    } else {
        format!("NOT READY: {}", server.not_ready.join("; "))
    };
    writeln!(
        out,
        "{} {}, up {}, {}",
        plain(&server.name),
        plain(&server.version),
        time(server.uptime_s),
        plain(&ready)
    )?;
    writeln!(out, "  {}", plain(&server.listeners.join("  ")))?;
    let store = &status.store;
    let paths = match store.path_count {
        Some(0) if status.storage.is_some() => "no paths but the uploaded ones".to_owned(),
        Some(count) => counted(count, "path"),
        None if store.uses_daemon => "served by the daemon".to_owned(),
        None => "paths not counted yet".to_owned(),
    };
    write!(out, "  {}: {paths}", plain(&store.store_dir))?;
    if store.quarantined_count > 0 {
        write!(out, ", {} QUARANTINED", store.quarantined_count)?;
    }
    match &store.error {
        Some(error) => writeln!(out, ", UNAVAILABLE: {}", plain(error))?,
        None => writeln!(out)?,
    }
    rates(out, status)?;
    served(out, &status.served_caches)?;
    latencies(out, status)?;
    load(out, status)?;
    transfers(out, status)?;
    if let Some(storage) = &status.storage {
        uploads::storage(out, storage, status.time_ms)?;
    }
    upstreams::upstreams(out, &status.upstreams)?;
    top(out, "most requested", &status.top_served, |count| {
        format!("{count} x")
    })?;
    top(out, "most bytes sent", &status.top_bytes, human)?;
    top(out, "missing", &status.top_missing, |count| {
        format!("{count} x")
    })?;
    if !status.recent_errors.is_empty() {
        writeln!(out, "\nrecent errors")?;
    }
    for error in status.recent_errors.iter().take(LIST_COUNT) {
        let ago = status.time_ms.saturating_sub(error.time_ms) / 1000;
        let ago = time(Duration::from_secs(ago).as_secs_f64());
        writeln!(
            out,
            "  {ago:>8} ago  {}: {}",
            plain(&error.level),
            plain(&error.text)
        )?;
    }
    for warning in &status.warnings {
        writeln!(out, "\nwarning: {}", plain(warning))?;
    }
    Ok(())
}

fn rates(out: &mut String, status: &Status) -> std::fmt::Result {
    let (now, totals) = (&status.now, &status.totals);
    let ratio = now
        .hit_ratio
        .map_or("-".to_owned(), |ratio| format!("{:.0} %", ratio * 100.0));
    writeln!(
        out,
        "\n  {:.0} requests/s   {}/s   hits {ratio}   {:.1} errors/s",
        now.requests_per_s,
        human(whole(now.bytes_per_s)),
        now.errors_per_s
    )?;
    writeln!(
        out,
        "  since the start: {}, {}, {}, {}, {}, aborted: {} by the server, {} by clients",
        counted(totals.request_count, "request"),
        human(totals.body_len),
        counted(totals.hit_count, "hit"),
        counted(totals.miss_count, "miss"),
        counted(totals.error_count, "error"),
        totals
            .aborted_count
            .saturating_sub(totals.client_aborted_count),
        totals.client_aborted_count
    )
}

/// Writes the requests for each cache; nothing if there is only one.
fn served(out: &mut String, caches: &[ServedCacheStatus]) -> std::fmt::Result {
    if caches.len() < 2 {
        return Ok(());
    }
    let names = caches.iter().map(|cache| plain(&cache.name));
    let names: Vec<String> = names.collect();
    let width = names.iter().map(|name| name.chars().count()).max();
    let width = width.unwrap_or(0).max("cache".len());
    writeln!(
        out,
        "\n  {:<width$}   requests    traffic   hits  refused   errors",
        "cache"
    )?;
    for (name, cache) in names.iter().zip(caches) {
        let totals = &cache.totals;
        let asked = totals.hit_count.saturating_add(totals.miss_count);
        let ratio = totals.hit_count.saturating_mul(100).checked_div(asked);
        let ratio = ratio.map_or("-".to_owned(), |ratio| format!("{ratio} %"));
        writeln!(
            out,
            "  {name:<width$} {:>10} {:>10} {ratio:>6} {:>8} {:>8}",
            totals.request_count,
            human(totals.body_len),
            totals.refused_count,
            totals.error_count
        )?;
    }
    Ok(())
}

fn latencies(out: &mut String, status: &Status) -> std::fmt::Result {
    writeln!(
        out,
        "\nlatency      over      count       p50       p90       p99"
    )?;
    for one in status.latencies.iter().filter(|one| one.count > 0) {
        writeln!(
            out,
            "  {:<8} {:>6} {:>10} {:>9} {:>9} {:>9}",
            plain(&one.route),
            time(one.window_s),
            one.count,
            duration(one.p50_s),
            duration(one.p90_s),
            duration(one.p99_s)
        )?;
    }
    Ok(())
}

fn load(out: &mut String, status: &Status) -> std::fmt::Result {
    let (load, process) = (&status.load, &status.process);
    let io_threads: Vec<String> = load
        .io_threads
        .iter()
        .map(|busy| format!("{:.0} %", busy * 100.0))
        .collect();
    writeln!(
        out,
        "\n  connections {}/{}   workers {}/{}, {} waiting   I/O threads {}",
        load.connection_count,
        load.connection_count_max,
        load.running_count,
        // An older server does not report the maximum.
        load.worker_count_max.max(load.worker_count),
        load.queued_count,
        io_threads.join(" ")
    )?;
    writeln!(
        out,
        "  memory {}   descriptors {}/{}   threads {}   CPU {:.1} s",
        human(process.resident_len),
        process.open_fds,
        process.max_fds,
        process.thread_count,
        process.cpu_s
    )
}

fn transfers(out: &mut String, status: &Status) -> std::fmt::Result {
    if status.transfer_count == 0 {
        return Ok(());
    }
    let transfers = counted(status.transfer_count, "transfer");
    writeln!(out, "\n{transfers} in progress")?;
    for one in status.transfers.iter().take(LIST_COUNT) {
        let percent = one.sent_len.saturating_mul(100) / one.len.max(1);
        writeln!(
            out,
            "  {percent:>3} % of {:>10}  {:>8}  {}  {}",
            human(one.len),
            time(one.age_s),
            plain(&one.client),
            plain(&one.path)
        )?;
    }
    Ok(())
}

fn top(
    out: &mut String,
    title: &str,
    paths: &[TopPath],
    show: impl Fn(u64) -> String,
) -> std::fmt::Result {
    if paths.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    for path in paths.iter().take(LIST_COUNT) {
        let name = path.name.as_deref().map(|name| format!("-{name}"));
        writeln!(
            out,
            "  {:>12}  {}{}  clients: {}",
            show(path.count),
            plain(&path.hash_part),
            plain(&name.unwrap_or_default()),
            path.client_count
        )?;
    }
    Ok(())
}

/// Escapes control characters, because names and error messages may contain terminal commands.
fn plain(text: &str) -> String {
    let is_harmless = |c: char| !c.is_control() && !is_reordering(c);
    if text.chars().all(is_harmless) {
        text.to_owned()
    } else {
        text.escape_debug().to_string()
    }
}

/// Returns whether a character changes the writing direction of text.
fn is_reordering(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, which is precise enough for display"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

/// Formats a duration with its two largest units.
fn time(seconds: f64) -> String {
    let seconds = whole(seconds);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        _ if seconds < 0.001 => format!("{:.0} us", seconds * 1e6),
        _ if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../docs/status.example.json");

    #[test]
    fn shows_all_parts() {
        let text = render(&read(EXAMPLE.as_bytes()).expect("is a status"));
        for part in [
            "nix-serve 0.1.0, up 1 h 0 min, ready\n",
            "/nix/store: 214532 paths\n",
            "812 requests/s   50.0 MiB/s   hits 34 %   0.1 errors/s\n",
            "\n  cache     requests    traffic   hits  refused   errors\n",
            "  release    2800000  175.7 GiB   34 %        0       12\n",
            "  team-a       99000    4.0 MiB   30 %        7        0\n",
            "  narinfo    10 s       7900     11 us     16 us    250 us\n",
            "connections 412/16384   workers 3/33, 0 waiting   I/O threads 18 % 21 %\n",
            "   25 % of  393.2 MiB       3 s  192.0.2.7  /nix/store/n6fh",
            "        5120 x  p4pclmv1gyja5kzc26npqpia1qqxrf0l-ruby-2.7.3  clients: 61\n",
            "    40.0 GiB  n6fhmyf9wrkw7vg4k6mbkgyh4xqf8hfa-llvm-18.1.8-lib  clients: 12\n",
            "         960 x  6qmyzr6ifmynrpkzk4jl7x6h0vhlb6rl  clients: 48\n",
            "     3 min ago  warning: cannot accept connections: Too many open files",
            "warning: hold: no daemon answers",
            "\nuploads into /srv/samovar, 400.0 GiB of 1.0 TiB free\n",
            "  3 in progress, 0 waiting, 1 path waiting for a commit, 2.0 GiB received\n",
            "  since the start: 1840 NARs accepted, 2 NARs refused, 1838 narinfos accepted\n",
            "  reasons of refusals: token 3, busy 2\n",
            "  cache default: 51200 paths, 60.0 GiB of its quota of 100.0 GiB (60 %)\n",
            "  51210 NARs in 60.0 GiB, 10 of them without a path (1.0 MiB), 12 build logs \
             (1.2 MiB with narinfos and realisations), 3 pins, 1 LOST\n",
            "12 paths condemned, 40 deleted, 1.5 GiB freed\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        let mut status = read(EXAMPLE.as_bytes()).expect("is a status");
        status.server.name = "a\x1b[2Jb\nc\u{202e}".to_owned();
        let text = render(&status);
        let first = text.lines().next().expect("has lines");
        assert!(
            first.starts_with("a\\u{1b}[2Jb\\nc\\u{202e} 0.1.0"),
            "{first}"
        );
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
    }

    #[test]
    fn other_documents_are_refused() {
        assert!(read(b"{\"version\":2}").is_err());
        assert!(read(b"<html>").is_err());
    }

    #[test]
    fn times() {
        for (seconds, expected) in [
            (0.4, "0 s"),
            (59.9, "59 s"),
            (60.0, "1 min"),
            (3600.0, "1 h 0 min"),
            (90_000.0, "1 d 1 h"),
        ] {
            assert_eq!(time(seconds), expected);
        }
    }
}
