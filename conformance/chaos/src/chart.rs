//! Chart of the server's resource usage over the requests of a soak, as SVG: three stacked panels.

use std::fmt::Write as _;

use crate::server::Holdings;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const PANEL_HEIGHT: f64 = 110.0;
const PANEL_GAP: f64 = 44.0;
const HEAD: f64 = 60.0;

/// Resources in use by the server after a number of requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    pub(crate) requests: u64,
    pub(crate) held: Holdings,
}

/// Name, value, and the maximum rise of the regression line over the second half of the run.
type Resource = (&'static str, fn(&Sample) -> f64, f64);

/// The panels. The tolerance for memory allows for the allocator's arenas. That for threads allows
/// for up to two workers per slot: a worker is started when a job has a slot but no worker is idle.
pub(crate) const RESOURCES: [Resource; 3] = [
    (
        "anonymous memory, MiB",
        |sample| sample.held.anonymous_kib as f64 / 1024.0,
        2.0,
    ),
    ("descriptors", |sample| sample.held.descriptors as f64, 4.0),
    ("threads", |sample| sample.held.threads as f64, 8.0),
];

pub(crate) fn render(samples: &[Sample]) -> String {
    let requests = samples.last().map_or(1, |sample| sample.requests.max(1)) as f64;
    let height = HEAD + 3.0 * (PANEL_HEIGHT + PANEL_GAP);
    // Writing to a `String` never fails.
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         aria-label=\"What the server held over {requests} requests\">\n<style>\
         text{{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1f2937}}\
         .title{{font-size:16px;font-weight:600}}.soft{{fill:#6b7280;font-size:11px}}\
         .ground{{fill:#ffffff}}.line{{stroke:#e5e7eb}}\
         .curve{{fill:none;stroke:#c2410c;stroke-width:1.5}}\
         @media(prefers-color-scheme:dark){{text{{fill:#e5e7eb}}.soft{{fill:#9ca3af}}\
         .ground{{fill:#0d1117}}.line{{stroke:#30363d}}.curve{{stroke:#fb923c}}}}</style>\n\
         <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"16\" y=\"26\">What the server holds over {:.1} million \
         requests</text>\n",
        requests / 1e6
    );
    let mut top = HEAD;
    for (title, of, _) in RESOURCES {
        let most = samples.iter().map(of).fold(1.0, f64::max) * 1.1;
        let x = |sample: &Sample| LEFT + sample.requests as f64 / requests * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| top + PANEL_HEIGHT * (1.0 - value / most);
        writeln!(svg, "<text x=\"{LEFT}\" y=\"{}\">{title}</text>", top - 8.0).ok();
        for part in [0.0, 0.5, 1.0] {
            let value = most * part;
            writeln!(
                svg,
                "<line class=\"line\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{:.1}\" y2=\"{:.1}\"/>\
                 <text class=\"soft\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value:.0}</text>",
                WIDTH - RIGHT,
                y(value),
                y(value),
                LEFT - 8.0,
                y(value) + 4.0
            )
            .ok();
        }
        let points: Vec<String> = samples
            .iter()
            .map(|sample| format!("{:.1},{:.1}", x(sample), y(of(sample))))
            .collect();
        writeln!(
            svg,
            "<polyline class=\"curve\" points=\"{}\"/>",
            points.join(" ")
        )
        .ok();
        top += PANEL_HEIGHT + PANEL_GAP;
    }
    svg.push_str("</svg>\n");
    svg
}
