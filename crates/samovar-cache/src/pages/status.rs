//! `/status`: the status page.
//!
//! Only the server renders the page, from one template. When the status changes, a script in the
//! page fetches the page again and replaces the elements that differ.

use std::net::SocketAddr;
use std::time::Duration;

use maud::{Markup, html};
use samovar_http::Response;
use samovar_http::http::Status as HttpStatus;
use samovar_metrics::{CacheStatus, Moment, ServedCacheStatus, Status, TopPath, TransferStatus};
use samovar_nix::HashPart;

use super::frame::{NAME, Page};
use super::status_storage;
use super::status_upstreams;
use super::text::{Count, Date, Size};
use super::url::Base;

/// Width and height of a chart, in the units of its SVG.
const CHART: (f64, f64) = (240.0, 48.0);

/// Renders the status page. `host`: the host by which the browser reached the page, with its port.
pub(crate) fn page(status: &Status, host: &str) -> Response {
    let links = Links::of(status, host);
    let main = html! {
        div.status-head {
            h1 { "Status" }
            p.live role="status" data-live="" { "Snapshot. " a href="" { "Refresh" } "." }
            @if let Some(url) = &links.0 { a href={ (url) "/" } { "Pages of the cache" } }
        }
        (health(status))
        (now(status))
        (served(&status.served_caches))
        (transfers(status, &links))
        div.columns {
            (top("Top by requests", "requests", &status.top_served, &links,
                |count| html! { (Count(count)) }))
            (top("Top by traffic", "bytes", &status.top_bytes, &links,
                |count| html! { (Size(count)) }))
            // A missing path has no page.
            (top("Top misses", "requests", &status.top_missing, &Links::default(),
                |count| html! { (Count(count)) }))
        }
        @if let Some(storage) = &status.storage { (status_storage::section(storage)) }
        @if !status.upstreams.is_empty() { (status_upstreams::section(&status.upstreams)) }
        (errors(status))
        div.columns { (latencies(status)) (caches(&status.caches)) }
        (machine(status))
    };
    Page {
        title: "Status",
        cache_name: NAME,
        base: Base::of(b"/status"),
        kind: "wide",
        search: None,
        main,
    }
    .response(HttpStatus::OK)
    .set_header("Cache-Control", "no-store")
}

/// Links to the pages of store paths. Another listener serves these pages; if the URL of that
/// listener is not known, there are no links.
#[derive(Debug, Default)]
struct Links(Option<String>);

impl Links {
    fn of(status: &Status, host: &str) -> Self {
        let server = &status.server;
        Self(server.pages_url.as_deref().and_then(|url| {
            if !url.starts_with('/') {
                return Some(url.to_owned());
            }
            let listeners = server.listeners.iter();
            let origin = listeners
                .filter_map(|listener| origin_of(listener, host))
                .next()?;
            Some(format!("{origin}{}", url.trim_end_matches('/')))
        }))
    }

    /// Links `content` to the page of a path.
    fn path(&self, hash_part: &str, content: Markup) -> Markup {
        match &self.0 {
            Some(url) if HashPart::parse(hash_part.as_bytes()).is_ok() => html! {
                a href=(format!("{url}/path/{hash_part}")) { (content) }
            },
            _ => content,
        }
    }
}

/// Returns the URL of a listener for a browser that has reached this machine as `host`. A listener
/// on all addresses has that name, too. `None`: it is a Unix socket.
fn origin_of(listener: &str, host: &str) -> Option<String> {
    let (scheme, address) = listener.split_once("://")?;
    let address: SocketAddr = address.parse().ok()?;
    if !address.ip().is_unspecified() {
        return Some(listener.to_owned());
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let port = address.port();
    (!name.is_empty()).then(|| format!("{scheme}://{name}:{port}"))
}

fn health(status: &Status) -> Markup {
    let server = &status.server;
    let reasons = server
        .not_ready
        .iter()
        .map(|reason| ("Not ready: ", reason));
    let warnings = status
        .warnings
        .iter()
        .map(|warning| ("Configuration: ", warning));
    html! {
        p.health {
            @if server.is_ready { span.good { "Ready" } } @else { span.bad { "Not ready" } }
            " · up " (duration(server.uptime_s))
            " · as of " (Date(i64::try_from(status.time_ms / 1000).unwrap_or_default()))
        }
        ul.notices {
            @for (kind, text) in reasons.chain(warnings) { li { strong { (kind) } (text) } }
        }
    }
}

fn now(status: &Status) -> Markup {
    let now = &status.now;
    let chart = |of: fn(&Moment) -> u64, show| {
        let values = || status.history.iter().map(of);
        html! { (peak(values(), show)) (line(values())) }
    };
    let count = |count| Count(count).grouped();
    let percent = |percent: u64| format!("{percent} %");
    let time = |us: u64| match us {
        0 => "–".to_owned(),
        us => seconds(Duration::from_micros(us).as_secs_f64()),
    };
    let last = status
        .latencies
        .iter()
        .find(|latency| latency.route == "all");
    html! {
        section aria-label="Now" {
            dl.figures {
                div { dt { "Requests per second" } dd { (rate(now.requests_per_s)) }
                    dd { (chart(|moment| moment.request_count, count)) } }
                div { dt { "Traffic per second" } dd { (Size(whole(now.bytes_per_s)).brief()) }
                    dd { (chart(|moment| moment.body_len, |len| Size(len).brief())) } }
                div { dt { "Hit ratio" } dd {
                    @match now.hit_ratio {
                        Some(ratio) => { (format!("{:.0} %", ratio * 100.0)) },
                        None => "–",
                    }
                } dd {
                    @if let Some(lowest) = lowest_hit_percent(&status.history) {
                        span.scale { "lowest " (percent(lowest)) }
                    }
                    (line(hit_percents(&status.history)))
                } }
                div { dt { "Latency, 99th percentile" } dd {
                    @match last.filter(|latency| latency.count > 0) {
                        Some(latency) => (seconds(latency.p99_s)),
                        None => "–",
                    }
                } dd {
                    (peak(p99s_us(&status.history), time))
                    (line(p99s_us(&status.history)))
                } }
                div { dt { "Connections" } dd { (Count(status.load.connection_count)) }
                    dd { (chart(|moment| moment.connection_count, count)) } }
                div { dt { "Errors per second" } dd { (rate(now.errors_per_s)) }
                    dd { (chart(|moment| moment.error_count, count)) } }
            }
        }
    }
}

/// Returns the lowest hit ratio of a second with requests for narinfos, in percent.
fn lowest_hit_percent(history: &[Moment]) -> Option<u64> {
    let percents = history.iter().filter_map(|moment| {
        let asked = moment.hit_count.saturating_add(moment.miss_count);
        moment.hit_count.saturating_mul(100).checked_div(asked)
    });
    percents.min()
}

/// Returns the hit ratio of each second in percent. A second without requests repeats the previous
/// value.
fn hit_percents(history: &[Moment]) -> impl Iterator<Item = u64> {
    history.iter().scan(0, |last, moment| {
        let asked = moment.hit_count.saturating_add(moment.miss_count);
        let percent = moment.hit_count.saturating_mul(100).checked_div(asked);
        *last = percent.unwrap_or(*last);
        Some(*last)
    })
}

/// Returns the 99th percentile of the response times of each second in microseconds. A second
/// without responses repeats the previous value.
fn p99s_us(history: &[Moment]) -> impl Iterator<Item = u64> {
    history.iter().scan(0, |last, moment| {
        *last = moment.p99_s.map_or(*last, |p99_s| whole(p99_s * 1e6));
        Some(*last)
    })
}

/// Renders the highest of the values, which are one per second.
fn peak(values: impl Iterator<Item = u64>, show: fn(u64) -> String) -> Markup {
    let values: Vec<u64> = values.collect();
    html! {
        @if let Some(most) = values.iter().copied().max() {
            span.scale { "peak " (show(most)) " in " (duration(values.len() as f64)) }
        }
    }
}

/// Draws a line chart of one value per second. Screen readers skip the line, because the text
/// beside it has the value.
#[expect(clippy::cast_precision_loss, reason = "a pixel is coarser")]
fn line(values: impl Iterator<Item = u64>) -> Markup {
    let values: Vec<u64> = values.collect();
    let most = values.iter().copied().max().unwrap_or_default().max(1) as f64;
    let step = CHART.0 / (values.len().max(2) - 1) as f64;
    let mut points = String::new();
    for (index, value) in values.iter().enumerate() {
        let x = step * index as f64;
        let y = 2.0 + (CHART.1 - 4.0) * (1.0 - *value as f64 / most);
        points.push_str(&format!("{x:.1},{y:.1} "));
    }
    let view = format!("0 0 {} {}", CHART.0, CHART.1);
    html! {
        svg.chart viewBox=(view) preserveAspectRatio="none" aria-hidden="true" {
            polyline points=(points.trim_end()) fill="none" stroke="currentColor"
                stroke-width="2" vector-effect="non-scaling-stroke" {}
        }
    }
}

/// Renders the requests for each cache; nothing if there is only one.
fn served(caches: &[ServedCacheStatus]) -> Markup {
    let row = |cache: &ServedCacheStatus| {
        let totals = &cache.totals;
        let asked = totals.hit_count.saturating_add(totals.miss_count);
        let ratio = totals.hit_count.saturating_mul(100).checked_div(asked);
        html! {
            tr {
                th scope="row" { (cache.name) " " code.soft { (cache.path_prefix) "/" } }
                td.number { (Count(totals.request_count)) }
                td.number { (Size(totals.body_len).brief()) }
                td.number { @match ratio { Some(ratio) => { (ratio) " %" }, None => "–" } }
                td.number { (Count(totals.refused_count)) }
                td.number { (Count(totals.error_count)) }
            }
        }
    };
    html! {
        @if caches.len() > 1 {
            section aria-labelledby="served" {
                h2 id="served" { "Requests by cache" }
                div.scrolls tabindex="0" role="group" aria-label="Requests by cache" { table {
                    thead { tr {
                        th scope="col" { "Cache" }
                        th.number scope="col" { "Requests" }
                        th.number scope="col" { "Traffic" }
                        th.number scope="col" { "Hit ratio" }
                        th.number scope="col" { "Refused" }
                        th.number scope="col" { "Errors" }
                    } }
                    tbody { @for cache in caches { (row(cache)) } }
                } }
            }
        }
    }
}

fn transfers(status: &Status, links: &Links) -> Markup {
    let row = |transfer: &TransferStatus| {
        let name = transfer.path.rsplit('/').next().unwrap_or_default();
        let (hash_part, name) = name.split_once('-').unwrap_or(("", name));
        html! {
            tr {
                td { (links.path(hash_part, html! { span title=(transfer.path) { (name) } })) }
                td { (transfer.client) }
                td { progress max=(transfer.len.max(1)) value=(transfer.sent_len)
                    aria-label={ "Sent of " (name) } {} }
                td.number { (Size(transfer.sent_len).brief()) " of " (Size(transfer.len).brief()) }
                td.number { (duration(transfer.age_s)) }
            }
        }
    };
    html! {
        section aria-labelledby="transfers" {
            h2 id="transfers" {
                "Downloads in progress " span.soft { (Count(status.transfer_count as u64)) }
            }
            @if status.transfers.is_empty() { p.soft { "None." } }
            @else {
                div.scrolls tabindex="0" role="group" aria-label="Downloads in progress" { table {
                    thead { tr {
                        th scope="col" { "Path" }
                        th scope="col" { "Client" }
                        th scope="col" { "Progress" }
                        th.number scope="col" { "Sent" }
                        th.number scope="col" { "Duration" }
                    } }
                    tbody { @for transfer in &status.transfers { (row(transfer)) } }
                } }
            }
        }
    }
}

fn top(
    title: &str,
    unit: &str,
    paths: &[TopPath],
    links: &Links,
    show: fn(u64) -> Markup,
) -> Markup {
    let shown = |path: &TopPath| match &path.name {
        Some(name) => html! { span title=(path.hash_part) { (name) } },
        None => html! { code.hash title=(path.hash_part) { (path.hash_part) } },
    };
    html! {
        section {
            h2 { (title) }
            @if paths.is_empty() { p.soft { "None yet." } }
            @else {
                table {
                    thead { tr {
                        th scope="col" { "Path" }
                        th.number scope="col" { (unit) }
                        th.number scope="col" { "clients" }
                    } }
                    tbody { @for path in paths.iter().take(10) { tr {
                        td { (links.path(&path.hash_part, shown(path))) }
                        td.number { (show(path.count)) }
                        td.number { (Count(path.client_count)) }
                    } } }
                }
            }
        }
    }
}

fn errors(status: &Status) -> Markup {
    html! {
        section aria-labelledby="errors" {
            h2 id="errors" { "Recent errors" }
            @if status.recent_errors.is_empty() { p.soft { "None." } }
            @else {
                ol.errors { @for error in status.recent_errors.iter().take(20) { li {
                    (Date(i64::try_from(error.time_ms / 1000).unwrap_or_default()))
                    " " strong { (error.level) } " " (error.text)
                } } }
            }
        }
    }
}

fn latencies(status: &Status) -> Markup {
    html! {
        section {
            h2 { "Latency" }
            table {
                thead { tr {
                    th scope="col" { "Route, window" }
                    th.number scope="col" { "responses" }
                    th.number scope="col" { "50 %" }
                    th.number scope="col" { "90 %" }
                    th.number scope="col" { "99 %" }
                } }
                tbody { @for one in status.latencies.iter().filter(|one| one.count > 0) { tr {
                    th scope="row" { (one.route) ", " (duration(one.window_s)) }
                    td.number { (Count(one.count)) }
                    td.number { (seconds(one.p50_s)) }
                    td.number { (seconds(one.p90_s)) }
                    td.number { (seconds(one.p99_s)) }
                } } }
            }
        }
    }
}

fn caches(caches: &[CacheStatus]) -> Markup {
    html! {
        section {
            h2 { "Memory and disk caches" }
            table {
                thead { tr {
                    th scope="col" { "Cache" }
                    th.number scope="col" { "entries" }
                    th.number scope="col" { "size" }
                    th.number scope="col" { "limit" }
                } }
                tbody { @for cache in caches { tr {
                    th scope="row" { (cache.name.replace('_', " ")) }
                    td.number { (Count(cache.entry_count)) }
                    td.number { (Size(cache.len).brief()) }
                    td.number { (Size(cache.len_max).brief()) }
                } } }
            }
        }
    }
}

fn machine(status: &Status) -> Markup {
    let (store, load, process) = (&status.store, &status.load, &status.process);
    html! {
        section aria-labelledby="machine" {
            h2 id="machine" { "Store and process" }
            dl.table-of-facts {
                div { dt { "Store" } dd { code { (store.store_dir) } ", "
                    @match store.path_count {
                        Some(0) if status.storage.is_some() => "no paths but the uploaded ones",
                        Some(count) => { (Count(count).of("path")) },
                        None if store.uses_daemon => "served by the daemon",
                        None => "paths not counted yet",
                    }
                    @if let Some(error) = &store.error { ", " strong { (error) } }
                    @if store.quarantined_count > 0 {
                        ", " strong { (Count(store.quarantined_count)) " quarantined" }
                    }
                } }
                @if let Some(scrub) = &store.scrub { div { dt { "Scrub" } dd {
                    (Count(scrub.paths_done)) " of " (Count(scrub.path_count).of("path")) ", "
                    (Size(scrub.len_done).brief()) " of " (Size(scrub.len).brief())
                    @if scrub.quarantined_count > 0 {
                        ", " strong { (Count(scrub.quarantined_count)) " quarantined" }
                    }
                    @if scrub.unreadable_count > 0 {
                        ", " (Count(scrub.unreadable_count)) " unreadable"
                    }
                } } }
                div { dt { "Since the start" } dd {
                    (Count(status.totals.request_count).of("request")) ", "
                    (Size(status.totals.body_len)) ", "
                    (Count(status.totals.error_count).of("error")) ", "
                    (Count(status.totals.aborted_count.saturating_sub(status.totals.client_aborted_count)))
                    " aborted by the server, "
                    (Count(status.totals.client_aborted_count)) " aborted by clients"
                } }
                div { dt { "Workers" } dd {
                    (Count(load.running_count)) " of " (Count(load.worker_count_max)) " busy, "
                    (Count(load.queued_count).of("request")) " waiting"
                } }
                div { dt { "Memory" } dd { (Size(process.resident_len)) } }
                div { dt { "Open files" } dd {
                    (Count(process.open_fds)) " of " (Count(process.max_fds))
                } }
                div { dt { "Listeners" } dd { ul {
                    @for listener in &status.server.listeners { li { code { (listener) } } }
                } } }
            }
        }
    }
}

fn rate(rate: f64) -> String {
    match rate {
        rate if rate >= 99.95 => Count(whole(rate)).grouped(),
        rate => format!("{rate:.1}"),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, as intended"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// Formats a duration below a minute.
pub(super) fn seconds(time: f64) -> String {
    match time {
        time if time < 0.001 => format!("{:.0} µs", time * 1e6),
        time if time < 1.0 => format!("{:.1} ms", time * 1e3),
        time => format!("{time:.1} s"),
    }
}

/// Formats a duration in seconds, minutes, hours or days.
fn duration(time: f64) -> String {
    let time = whole(time);
    match time {
        0..120 => format!("{time} s"),
        120..7200 => format!("{} min", time / 60),
        7200..172_800 => format!("{} h", time / 3600),
        _ => format!("{} days", time / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_are_rounded() {
        assert_eq!(seconds(0.000_012), "12 µs");
        assert_eq!(seconds(0.0021), "2.1 ms");
        assert_eq!(seconds(3.0), "3.0 s");
        assert_eq!(duration(59.6), "60 s");
        assert_eq!(duration(3600.0), "60 min");
        assert_eq!(duration(1e6), "11 days");
        assert_eq!(rate(812.4), "812");
        assert_eq!(rate(0.1), "0.1");
        assert_eq!(whole(f64::NAN), 0);
    }

    #[test]
    fn a_second_without_requests_repeats_the_last_hit_ratio() {
        let moment = |hit_count, miss_count| Moment {
            hit_count,
            miss_count,
            ..Moment::default()
        };
        let history = [moment(0, 0), moment(3, 1), moment(0, 0), moment(0, 2)];
        let percents: Vec<u64> = hit_percents(&history).collect();
        assert_eq!(percents, [0, 75, 75, 0]);
    }

    #[test]
    fn paths_are_linked_to_the_address_of_the_cache() {
        let part = "zs83x50c7jbs0hj70ivx7ykckxh2zzl5";
        let link = |pages_url: Option<&str>, listeners: &[&str], host: &str| {
            let mut status = Status::default();
            status.server.pages_url = pages_url.map(str::to_owned);
            status.server.listeners = listeners.iter().map(|one| (*one).to_owned()).collect();
            let link = Links::of(&status, host).path(part, html! { "x" });
            let link = link.into_string();
            let href = link.strip_prefix("<a href=\"");
            href.map(|href| href.replace(&format!("/path/{part}\">x</a>"), ""))
        };
        let check = |link: Option<String>, expected: Option<&str>| {
            assert_eq!(link.as_deref(), expected);
        };
        let all = ["unix:/run/s", "http://0.0.0.0:5000"];
        check(
            link(Some("https://c.example/a"), &all, "h"),
            Some("https://c.example/a"),
        );
        check(link(Some("/"), &all, "box:5001"), Some("http://box:5000"));
        check(
            link(Some("/a/"), &["https://[::]:443"], "[::1]:5001"),
            Some("https://[::1]:443/a"),
        );
        check(
            link(Some("/"), &["https://[::]:443"], "[::1]"),
            Some("https://[::1]:443"),
        );
        check(
            link(Some("/"), &["http://192.0.2.1:80"], "box"),
            Some("http://192.0.2.1:80"),
        );
        // The URL is not known: no web interface, no TCP listener, no host.
        check(link(None, &all, "box"), None);
        check(link(Some("/"), &["unix:/run/s"], "box"), None);
        check(link(Some("/"), &all, ""), None);
        // Clients can request what is no hash part.
        let any = Links(Some("https://c.example".to_owned()));
        assert_eq!(any.path("../x", html! { "x" }).into_string(), "x");
    }

    /// Paths and log lines contain text from clients, which must be escaped.
    #[test]
    fn text_in_the_status_is_escaped() {
        let hostile = "<script>alert(1)</script>\"".to_owned();
        let mut status = Status::default();
        status.warnings.push(hostile.clone());
        status.recent_errors.push(samovar_metrics::RecentError {
            text: hostile.clone(),
            ..Default::default()
        });
        status.transfers.push(TransferStatus {
            path: hostile.clone(),
            client: hostile.clone(),
            ..TransferStatus::default()
        });
        status.top_missing.push(TopPath {
            hash_part: hostile.clone(),
            name: Some(hostile),
            ..TopPath::default()
        });
        let response = page(&status, "localhost:5001");
        let samovar_http::Body::Bytes(body) = response.body() else {
            panic!("no bytes");
        };
        let body = String::from_utf8_lossy(body);
        assert!(!body.contains("<script>alert"), "{body}");
    }
}
