//! Renders the results as Markdown tables, with a section for each kind of row.

use std::fmt::Write as _;

use crate::figures::{About, Cell, Gap, Part, Quantity, Results, Row, SECTIONS};

/// Renders all sections that have rows, with figures or with the reasons why there are none.
pub(crate) fn render(results: &Results) -> String {
    let sections = SECTIONS.iter();
    sections
        .map(|about| render_section(results, about))
        .collect()
}

fn render_section(results: &Results, about: &About) -> String {
    let (asked, not_asked): (Vec<&Row>, Vec<&Row>) = results
        .rows
        .iter()
        .filter(|row| row.section == about.section)
        .partition(|row| row.cells.iter().any(|cell| !is_not_asked(cell)));
    if asked.is_empty() && not_asked.is_empty() {
        return String::new();
    }
    let mut text = format!("### {}\n\n{}\n\n", about.title, about.remark);
    let mut reasons = Vec::new();
    for &quantity in about.quantities {
        text.push_str(&table(results, &asked, quantity, &mut reasons));
    }
    // Writing to a `String` never fails.
    for (index, reason) in reasons.iter().enumerate() {
        writeln!(text, "* <sup>{}</sup> {reason}", index + 1).ok();
    }
    for row in &not_asked {
        let gap = row.cells.iter().find_map(|cell| cell.gap.as_ref());
        let why = gap.map_or("no server", why);
        writeln!(text, "* Not measured: {} ({why}).", row.name).ok();
    }
    if !reasons.is_empty() || !not_asked.is_empty() {
        text.push('\n');
    }
    text
}

fn is_not_asked(cell: &Cell) -> bool {
    matches!(cell.gap, Some(Gap::NotAsked(_)))
}

fn why(gap: &Gap) -> &str {
    match gap {
        Gap::NotAsked(why) | Gap::Failed(why) => why,
    }
}

/// Renders a table of one quantity with a line per row and a column per server. Each figure is
/// followed by its ratio to the first nginx, in parentheses. Returns an empty text if no server has
/// the quantity.
fn table(
    results: &Results,
    rows: &[&Row],
    quantity: Quantity,
    reasons: &mut Vec<String>,
) -> String {
    let has_any = |row: &&&Row| row.cells.iter().any(|cell| cell.median(quantity).is_some());
    let lines: Vec<&&Row> = rows.iter().filter(has_any).collect();
    if lines.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = results
        .servers
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    let reference = results.first(Part::Anchor);
    let mut text = format!(
        "**{}**\n\n| | {} |\n|---|{}\n",
        quantity.texts()[0],
        names.join(" | "),
        "---:|".repeat(names.len())
    );
    for row in lines {
        let anchor = reference
            .and_then(|at| row.cells.get(at))
            .and_then(|cell| cell.median(quantity))
            .filter(|&anchor| anchor > 0.0);
        write!(text, "| {} |", row.name).ok();
        for (at, cell) in row.cells.iter().enumerate() {
            match (cell.median(quantity), &cell.gap) {
                (Some(value), _) => {
                    write!(text, " {}", number(value)).ok();
                    if let Some(anchor) = anchor.filter(|_| Some(at) != reference) {
                        write!(text, " ({:.2}x)", value / anchor).ok();
                    }
                }
                (None, Some(gap)) => text.push_str(&mark(gap, reasons)),
                (None, None) => text.push_str(" –"),
            }
            text.push_str(" |");
        }
        text.push('\n');
    }
    text.push('\n');
    text
}

/// Returns the text that stands in place of a missing figure, with a footnote number for the
/// reason.
fn mark(gap: &Gap, reasons: &mut Vec<String>) -> String {
    let sign = match gap {
        Gap::NotAsked(_) => "–",
        Gap::Failed(_) => "failed",
    };
    // A line break or vertical bar in a reason would break the table.
    let reason = one_line(why(gap));
    let known = reasons.iter().position(|known| *known == reason);
    let at = known.unwrap_or_else(|| {
        reasons.push(reason);
        reasons.len() - 1
    });
    format!(" {sign}<sup>{}</sup>", at + 1)
}

fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace('|', "\\|").replace('<', "&lt;")
}

/// Formats a number with three significant digits and thousands separators.
pub(crate) fn number(value: f64) -> String {
    if value < 0.0995 && value > 0.0 {
        return format!("{value:.3}");
    }
    if value < 9.995 {
        return format!("{value:.2}");
    }
    if value < 99.95 {
        return format!("{value:.1}");
    }
    group(&format!("{value:.0}"))
}

/// Formats a count with thousands separators.
pub(crate) fn grouped(count: u64) -> String {
    group(&count.to_string())
}

fn group(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::with_gaps;

    #[test]
    fn numbers_have_three_significant_digits() {
        let numbers = [0.0, 0.0461, 0.345, 9.99, 12.34, 99.96, 1234.5, 1_234_567.0].map(number);
        assert_eq!(
            numbers,
            [
                "0.00",
                "0.046",
                "0.34",
                "9.99",
                "12.3",
                "100",
                "1,234",
                "1,234,567"
            ]
        );
        assert_eq!(grouped(1_000_000), "1,000,000");
    }

    #[test]
    fn a_missing_figure_has_a_reason() {
        let text = render(&with_gaps());
        for expected in [
            "| narinfo c64 | 5.00 (0.62x) | 50.0 (6.25x) | 8.00 |",
            "| signed c64 | 6.00 | 4.00 | –<sup>1</sup> |",
            // A ratio to zero is undefined, so it is omitted.
            "| absent c64 | failed<sup>2</sup> | 4.00 | 0.00 |",
            "| tree | 0.50 | failed<sup>1</sup> | –<sup>2</sup> |",
            "<sup>1</sup> no command with {key}",
            "status 500 & &lt;worse>",
            "Not measured: nobody (no command with {key}).",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}
