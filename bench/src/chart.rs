//! Draws the bar chart of server CPU time, with a bar per row and server, as SVG.
//!
//! The scale is logarithmic, because servers differ by a factor of a hundred; every bar is labelled
//! with its number. Colours follow the reader's preference for light or dark, and the font is the
//! reader's.

use std::fmt::Write as _;

use crate::figures::{Gap, Part, Quantity, Results, Row, Section, to_f64};
use crate::table::number;

const WIDTH: f64 = 860.0;
const LABEL_WIDTH: f64 = 270.0;
/// Width reserved for the number beside the longest bar, in SVG units.
const VALUE_WIDTH: f64 = 60.0;
const BAR_HEIGHT: f64 = 12.0;
const ROW_GAP: f64 = 12.0;
const HEAD_HEIGHT: f64 = 74.0;
const PANEL_HEAD_HEIGHT: f64 = 46.0;

/// Fill colours of the servers' bars, each for a light and for a dark background. Ours, the first,
/// is the most prominent.
const COLOURS: [(&str, &str); 6] = [
    ("#c2410c", "#fb923c"),
    ("#2563eb", "#60a5fa"),
    ("#7c3aed", "#a78bfa"),
    ("#0f766e", "#2dd4bf"),
    ("#a16207", "#facc15"),
    ("#be185d", "#f472b6"),
];

/// nginx is the reference and no competitor, so its bars are grey.
const ANCHOR_COLOUR: (&str, &str) = ("#9ca3af", "#6b7280");

/// A part of the chart: rows with the same quantity, drawn on one scale.
struct Panel<'row> {
    title: &'static str,
    quantity: Quantity,
    rows: Vec<&'row Row>,
}

/// The bars of one server in the chart: its index, name and colour class.
struct Series<'name> {
    server: usize,
    name: &'name str,
    class: usize,
}

/// Renders the chart; `None` if there is nothing to draw.
pub(crate) fn render(results: &Results) -> Option<String> {
    let panels: Vec<Panel<'_>> = panels(results)
        .into_iter()
        .filter(|panel| !panel.rows.is_empty())
        .collect();
    if panels.is_empty() {
        return None;
    }
    let series = series(results);
    let row_height = BAR_HEIGHT * to_f64(series.len() as u64) + ROW_GAP;
    let heights = panels
        .iter()
        .map(|panel| PANEL_HEAD_HEIGHT + row_height * to_f64(panel.rows.len() as u64));
    let height = HEAD_HEIGHT + heights.sum::<f64>() + ROW_GAP;
    let mut svg = head(height, &series);
    let mut top = HEAD_HEIGHT;
    for panel in &panels {
        top = draw_panel(&mut svg, panel, &series, top, row_height);
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// Selects the rows of each panel. Of several connection counts only 64 is drawn, the most
/// informative.
fn panels(results: &Results) -> [Panel<'_>; 2] {
    let has_64 = results.rows.iter().any(|row| row.name.ends_with(" c64"));
    let rows = |sections: &[Section], quantity: Quantity| -> Vec<&Row> {
        results
            .rows
            .iter()
            .filter(|row| sections.contains(&row.section))
            .filter(|row| {
                let is_small = row.section == Section::Requests;
                !is_small || !has_64 || row.name.ends_with(" c64")
            })
            .filter(|row| row.cells.iter().any(|cell| cell.median(quantity).is_some()))
            .collect()
    };
    [
        Panel {
            title: "µs of server CPU per answer",
            quantity: Quantity::ServerCpuUs,
            rows: rows(&[Section::Requests, Section::Once], Quantity::ServerCpuUs),
        },
        Panel {
            title: "seconds of server CPU per GB of NAR",
            quantity: Quantity::ServerCpuPerGb,
            rows: rows(&[Section::Bulk], Quantity::ServerCpuPerGb),
        },
    ]
}

/// Returns the servers whose bars are drawn. Of the nginx variants, only the first is among them.
fn series(results: &Results) -> Vec<Series<'_>> {
    let anchor = results.first(Part::Anchor);
    let mut coloured = 0;
    let mut all = Vec::new();
    for (server, (name, part)) in results.servers.iter().enumerate() {
        let class = if *part == Part::Anchor {
            COLOURS.len()
        } else {
            coloured += 1;
            (coloured - 1) % COLOURS.len()
        };
        if *part != Part::Anchor || Some(server) == anchor {
            all.push(Series {
                server,
                name,
                class,
            });
        }
    }
    all
}

fn head(height: f64, series: &[Series<'_>]) -> String {
    let colours = || COLOURS.iter().chain([&ANCHOR_COLOUR]).enumerate();
    let light: String = colours()
        .map(|(class, (light, _))| format!(".s{class}{{fill:{light}}}"))
        .collect();
    let dark: String = colours()
        .map(|(class, (_, dark))| format!(".s{class}{{fill:{dark}}}"))
        .collect();
    // Writing to a `String` never fails.
    let mut svg = String::new();
    write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         aria-label=\"Server CPU of binary cache servers, shorter is better\">\n<style>\
         text{{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1f2937}}\
         .title{{font-size:16px;font-weight:600}}.panel{{font-weight:600}}\
         .soft{{fill:#6b7280;font-size:11px}}.value{{font-size:10px}}\
         .ground{{fill:#ffffff}}.line{{stroke:#e5e7eb}}{light}\
         @media(prefers-color-scheme:dark){{text{{fill:#e5e7eb}}.soft{{fill:#9ca3af}}\
         .ground{{fill:#0d1117}}.line{{stroke:#30363d}}{dark}}}</style>\n\
         <rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"16\" y=\"26\">Server CPU: shorter is better</text>\n"
    )
    .ok();
    let mut left = 16.0;
    for Series { name, class, .. } in series {
        writeln!(
            svg,
            "<rect class=\"s{class}\" x=\"{left}\" y=\"42\" width=\"12\" height=\"12\" rx=\"2\"/>\
             <text x=\"{}\" y=\"52\">{}</text>",
            left + 18.0,
            escape(name)
        )
        .ok();
        left += 18.0 + 8.0 * to_f64(name.chars().count() as u64) + 24.0;
    }
    svg
}

/// Draws a panel. Returns the vertical position at which the next one starts.
fn draw_panel(
    svg: &mut String,
    panel: &Panel<'_>,
    series: &[Series<'_>],
    top: f64,
    row_height: f64,
) -> f64 {
    let values = panel
        .rows
        .iter()
        .flat_map(|row| &row.cells)
        .filter_map(|cell| cell.median(panel.quantity));
    let scale = Scale::of(values);
    let rows_top = top + PANEL_HEAD_HEIGHT;
    let bottom = rows_top + row_height * to_f64(panel.rows.len() as u64);
    writeln!(
        svg,
        "<text class=\"panel\" x=\"16\" y=\"{}\">{}, logarithmic</text>",
        top + 20.0,
        panel.title
    )
    .ok();
    for (value, x) in scale.ticks() {
        writeln!(
            svg,
            "<line class=\"line\" x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>\
             <text class=\"soft\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            rows_top - 6.0,
            bottom - ROW_GAP / 2.0,
            rows_top - 10.0,
            tick(value)
        )
        .ok();
    }
    let mut row_top = rows_top;
    for row in &panel.rows {
        draw_row(svg, row, panel.quantity, series, &scale, row_top);
        row_top += row_height;
    }
    bottom
}

fn draw_row(
    svg: &mut String,
    row: &Row,
    quantity: Quantity,
    series: &[Series<'_>],
    scale: &Scale,
    top: f64,
) {
    let middle = top + BAR_HEIGHT * to_f64(series.len() as u64) / 2.0;
    writeln!(
        svg,
        "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        LABEL_WIDTH - 10.0,
        middle + 4.0,
        escape(&row.name)
    )
    .ok();
    for (index, Series { server, class, .. }) in series.iter().enumerate() {
        let y = top + BAR_HEIGHT * to_f64(index as u64);
        let Some(cell) = row.cells.get(*server) else {
            continue;
        };
        let (end, label) = match (cell.median(quantity), &cell.gap) {
            (Some(value), _) => {
                let end = scale.x(value);
                writeln!(
                    svg,
                    "<rect class=\"s{class}\" x=\"{LABEL_WIDTH}\" y=\"{:.1}\" width=\"{:.1}\" \
                     height=\"{:.1}\" rx=\"1\"/>",
                    y + 1.0,
                    end - LABEL_WIDTH,
                    BAR_HEIGHT - 2.0
                )
                .ok();
                (end, number(value))
            }
            (None, Some(Gap::Failed(_))) => (LABEL_WIDTH, "failed".into()),
            (None, _) => (LABEL_WIDTH, "–".into()),
        };
        writeln!(
            svg,
            "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
            end + 4.0,
            y + BAR_HEIGHT - 2.5
        )
        .ok();
    }
}

/// A logarithmic scale, from the power of ten below the smallest value to the one above the
/// largest.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Scale {
    least_exponent: i32,
    largest_exponent: i32,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut least = f64::INFINITY;
        let mut largest = 0.0_f64;
        for value in values.filter(|&value| value > 0.0) {
            least = least.min(value);
            largest = largest.max(value);
        }
        let exponent = |value: f64, round: fn(f64) -> f64| {
            // These exponents cover every value that a benchmark can measure.
            (-9..=9).find(|&exponent| f64::from(exponent) >= round(value.log10()))
        };
        let least_exponent = exponent(least, f64::floor).unwrap_or(0);
        let largest_exponent = exponent(largest, f64::ceil).unwrap_or(1);
        Self {
            least_exponent,
            largest_exponent: largest_exponent.max(least_exponent + 1),
        }
    }

    /// Returns the horizontal end of a value's bar; bars of values that are not positive are empty.
    fn x(&self, value: f64) -> f64 {
        let part = if value > 0.0 {
            (value.log10() - f64::from(self.least_exponent))
                / f64::from(self.largest_exponent - self.least_exponent)
        } else {
            0.0
        };
        LABEL_WIDTH + part.clamp(0.0, 1.0) * (WIDTH - LABEL_WIDTH - VALUE_WIDTH)
    }

    fn ticks(&self) -> impl Iterator<Item = (f64, f64)> {
        (self.least_exponent..=self.largest_exponent).map(|exponent| {
            let value = 10_f64.powi(exponent);
            (value, self.x(value))
        })
    }
}

fn tick(value: f64) -> String {
    if value < 1.0 {
        format!("{value}")
    } else {
        number(value).replace(".00", "").replace(".0", "")
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::with_gaps;

    #[test]
    fn missing_values_and_odd_names_are_drawn() {
        let svg = render(&with_gaps()).unwrap();
        for expected in ["other&lt;1&gt;", ">failed<", ">–<", ">50.0<", ">0.50<"] {
            assert!(svg.contains(expected), "{expected}: {svg}");
        }
        // Every number is finite, and no bar has a negative width.
        for wrong in ["\"NaN", "\"inf", "width=\"-"] {
            assert!(!svg.contains(wrong), "{wrong}: {svg}");
        }
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }

    #[test]
    fn there_is_no_chart_without_figures() {
        let mut results = with_gaps();
        results.rows.retain(|row| row.name == "nobody");
        assert_eq!(render(&results), None);
    }

    #[test]
    fn the_scale_contains_all_values() {
        let scale = Scale::of([4.2, 518.0].into_iter());
        assert_eq!((scale.least_exponent, scale.largest_exponent), (0, 3));
        assert_eq!(scale.x(1.0), LABEL_WIDTH);
        assert_eq!(scale.x(1000.0), WIDTH - VALUE_WIDTH);
        assert_eq!(scale.x(0.0), LABEL_WIDTH);
        let one = Scale::of([1.0].into_iter());
        assert_eq!((one.least_exponent, one.largest_exponent), (0, 1));
        assert_eq!(Scale::of([].into_iter()).ticks().count(), 2);
    }
}
