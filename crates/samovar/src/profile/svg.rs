//! Draws the histogram as an SVG document: two bars for each bin, its share of the files and of the
//! bytes.

use std::fmt::Write as _;

use samovar_workspace::profile::Facts;

use super::words::{counted, label, percent};

const WIDTH: u32 = 760;
const LABEL_WIDTH: u32 = 150;
/// Width of a bar of 100 %, in SVG units; the labels of the bars need the rest.
const BAR_WIDTH: f64 = 520.0;
const BAR_HEIGHT: u32 = 9;
const ROW_HEIGHT: u32 = 28;
const HEAD_HEIGHT: u32 = 64;

/// Renders the histogram. Colours follow the reader's preference for light or dark.
pub(super) fn render(facts: &Facts) -> String {
    let bins = facts.sizes.histogram().bins();
    let row_count = u32::try_from(bins.len()).unwrap_or_default();
    let height = HEAD_HEIGHT + ROW_HEIGHT * row_count + 16;
    let title = format!(
        "{} by size in bytes: share of files and of bytes",
        counted(facts.sizes.files(), "file", "files")
    );
    // Writing to a `String` never fails.
    let mut svg = String::new();
    write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n<style>\
         text{{font:12px system-ui,sans-serif;fill:#1f2937}}.title{{font-size:15px;\
         font-weight:600}}.value{{font-size:10px}}.ground{{fill:#ffffff}}.files{{fill:#c2410c}}\
         .bytes{{fill:#2563eb}}@media(prefers-color-scheme:dark){{text{{fill:#e5e7eb}}\
         .ground{{fill:#0d1117}}.files{{fill:#fb923c}}.bytes{{fill:#60a5fa}}}}</style>\n\
         <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"16\" y=\"24\">{title}</text>\n\
         <rect class=\"files\" x=\"16\" y=\"38\" width=\"12\" height=\"12\"/>\
         <text x=\"34\" y=\"48\">files</text>\
         <rect class=\"bytes\" x=\"84\" y=\"38\" width=\"12\" height=\"12\"/>\
         <text x=\"102\" y=\"48\">bytes</text>\n"
    )
    .ok();
    let mut top = HEAD_HEIGHT;
    let mut lower = 0;
    for bin in bins {
        let label = label(bin, lower);
        let x = LABEL_WIDTH - 10;
        writeln!(
            svg,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"end\">{label}</text>",
            top + BAR_HEIGHT + 4
        )
        .ok();
        let files = percent(bin.files, facts.sizes.files());
        let bytes = percent(bin.bytes, facts.sizes.bytes());
        draw_bar(&mut svg, "files", top, files);
        draw_bar(&mut svg, "bytes", top + BAR_HEIGHT + 1, bytes);
        lower = bin.upper.unwrap_or(lower);
        top += ROW_HEIGHT;
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_bar(svg: &mut String, class: &str, y: u32, percent: f64) {
    let width = percent / 100.0 * BAR_WIDTH;
    writeln!(
        svg,
        "<rect class=\"{class}\" x=\"{LABEL_WIDTH}\" y=\"{y}\" width=\"{width:.1}\" \
         height=\"{BAR_HEIGHT}\"/><text class=\"value\" x=\"{:.1}\" y=\"{}\">{percent:.1} %</text>",
        f64::from(LABEL_WIDTH) + width + 4.0,
        y + BAR_HEIGHT - 1
    )
    .ok();
}
