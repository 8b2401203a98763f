//! The figures, compared with the goals, and their renderings.

use serde_json::{Value, json};

use crate::table::{grouped, number};

/// Bound that a figure should meet.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

/// A row of the report: what is measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// Name of the goal that the row belongs to.
    group: &'static str,
    name: &'static str,
    unit: &'static str,
    goal: Option<Goal>,
}

/// Returns a row without a goal.
pub(crate) fn row(group: &'static str, name: &'static str, unit: &'static str) -> Row {
    Row {
        group,
        name,
        unit,
        goal: None,
    }
}

impl Row {
    pub(crate) fn at_most(self, bound: f64) -> Self {
        let goal = Some(Goal::AtMost(bound));
        Self { goal, ..self }
    }

    pub(crate) fn at_least(self, bound: f64) -> Self {
        let goal = Some(Goal::AtLeast(bound));
        Self { goal, ..self }
    }

    /// Formats a value with the unit. Bytes and counts are whole numbers.
    fn format(&self, value: f64) -> String {
        match self.unit {
            "" | "bytes" => {
                let digits = format!("{value:.0}");
                let text = digits.parse().map_or(digits, grouped);
                format!("{text} {}", self.unit).trim_end().to_owned()
            }
            "×" => format!("{value:.2} ×"),
            unit => format!("{} {unit}", number(value)),
        }
    }

    /// Returns whether the goal is met; `None` without a goal.
    fn is_met(&self, value: f64) -> Option<bool> {
        Some(match self.goal? {
            Goal::AtMost(bound) => value <= bound,
            Goal::AtLeast(bound) => value >= bound,
        })
    }

    fn goal_text(&self) -> String {
        match self.goal {
            None => String::new(),
            Some(Goal::AtMost(bound)) => format!("≤ {}", self.format(bound)),
            Some(Goal::AtLeast(bound)) => format!("≥ {}", self.format(bound)),
        }
    }
}

/// A row with its values, one for each round.
#[derive(Debug, Clone, PartialEq)]
struct Figure {
    row: Row,
    command: String,
    values: Vec<f64>,
}

impl Figure {
    /// Returns the median, the least and the largest value.
    fn summary(&self) -> (f64, f64, f64) {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
        (
            at(sorted.len() / 2),
            at(0),
            at(sorted.len().saturating_sub(1)),
        )
    }
}

/// All figures of a run, and the reasons for those that are missing.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    figures: Vec<Figure>,
    gaps: Vec<String>,
    /// Whether a measurement has failed.
    pub(crate) has_failed: bool,
}

impl Figures {
    /// Adds the value of a round, with the command that was measured.
    pub(crate) fn add(&mut self, row: Row, command: &str, value: f64) {
        match self.figures.iter_mut().find(|figure| figure.row == row) {
            Some(figure) => figure.values.push(value),
            None => self.figures.push(Figure {
                row,
                command: command.into(),
                values: vec![value],
            }),
        }
    }

    /// Adds the reason why something is not measured.
    pub(crate) fn gap(&mut self, what: &str, reason: &str) {
        let line = format!("Not measured: {what}: {reason}");
        if !self.gaps.contains(&line) {
            crate::progress(&line);
            self.gaps.push(line);
        }
    }

    /// Returns the figures in the order of the goals: G1 to G8, G10, and the others.
    fn sorted(&self) -> Vec<&Figure> {
        let mut sorted: Vec<&Figure> = self.figures.iter().collect();
        sorted.sort_by_key(|figure| (figure.row.group.len(), figure.row.group));
        sorted
    }

    /// Renders the report as Markdown, introduced by `machine` and `remarks`. `environment`:
    /// introduction of the commands; empty to leave them out.
    pub(crate) fn markdown(&self, machine: &str, remarks: &[String], environment: &str) -> String {
        let mut text = format!("{machine}\n");
        for remark in remarks.iter().chain(&self.gaps) {
            let line: Vec<&str> = remark.split_whitespace().collect();
            text.push_str(&format!("* {}\n", line.join(" ")));
        }
        text.push_str(
            "\n| | | median | least to largest | goal | |\n|---|---|---:|---:|---:|---|\n",
        );
        for figure in self.sorted() {
            let (row, (median, least, largest)) = (&figure.row, figure.summary());
            let range = match figure.values.len() {
                1 => String::new(),
                _ => format!("{} to {}", row.format(least), row.format(largest)),
            };
            let verdict = match row.is_met(median) {
                None => "",
                Some(true) => "met",
                Some(false) => "**missed**",
            };
            text.push_str(&format!(
                "| {} | {} | {} | {range} | {} | {verdict} |\n",
                row.group,
                row.name,
                row.format(median),
                row.goal_text(),
            ));
        }
        if environment.is_empty() {
            return text;
        }
        text.push_str(&format!("\n## Commands\n\n{environment}\n\n```sh\n"));
        let mut before = "";
        for figure in self.sorted() {
            let (row, command) = (&figure.row, &figure.command);
            text.push_str(&format!("# {}: {}\n", row.group, row.name));
            if command != before {
                text.push_str(&format!("{command}\n"));
            }
            before = command;
        }
        text + "```\n"
    }

    /// Renders the figures as a JSON document.
    pub(crate) fn json(&self, machine: &str, remarks: &[String]) -> Value {
        let figures = self.sorted().into_iter().map(|figure| {
            let (row, (median, ..)) = (&figure.row, figure.summary());
            json!({
                "group": row.group,
                "name": row.name,
                "unit": row.unit,
                "median": median,
                "values": figure.values,
                "goal": row.goal.map(|_| row.goal_text()),
                "met": row.is_met(median),
                "command": figure.command,
            })
        });
        json!({
            "machine": machine.trim_end(),
            "remarks": remarks.iter().chain(&self.gaps).collect::<Vec<_>>(),
            "figures": figures.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_up_to_its_bound() {
        let most = row("G2", "push", "s").at_most(2.0);
        assert_eq!(most.is_met(2.0), Some(true));
        assert_eq!(most.is_met(2.01), Some(false));
        let least = row("G8", "unpack", "files/s").at_least(40_000.0);
        assert_eq!(least.is_met(40_000.0), Some(true));
        assert_eq!(least.is_met(39_999.0), Some(false));
        assert_eq!(row("", "copy", "s").is_met(1.0), None);
    }

    #[test]
    fn both_renderings_have_medians_verdicts_and_commands() {
        let mut figures = Figures::default();
        for value in [1.5, 3.0, 2.5] {
            let row = row("G2", "push of the tree", "s").at_most(2.0);
            figures.add(row, "samovar push", value);
        }
        let sent = row("G6", "sent", "bytes").at_most(100_000.0);
        figures.add(sent, "samovar push", 1234.0);
        figures.gap("npm", "not\ninstalled");
        let text = figures.markdown("a machine\n", &["a remark".into()], "How.");
        for line in [
            "* Not measured: npm: not installed",
            "| G2 | push of the tree | 2.50 s | 1.50 s to 3.00 s | ≤ 2.00 s | **missed** |",
            "| G6 | sent | 1,234 bytes |  | ≤ 100,000 bytes | met |",
            "# G2: push of the tree\nsamovar push\n# G6: sent\n```",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let json = figures.json("a machine", &[]);
        assert_eq!(json["figures"][0]["median"], 2.5);
        assert_eq!(json["figures"][0]["met"], false);
        assert_eq!(json["figures"][1]["met"], true);
    }
}
