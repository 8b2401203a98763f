//! Formats names, sizes, counts and dates for pages.

use std::time::{SystemTime, UNIX_EPOCH};

use maud::{Markup, Render, html};
use samovar_nix::StorePath;
use samovar_text::counted;
use time::OffsetDateTime;

use super::url::Base;

/// A file name or link target, which may contain any bytes. Invisible characters, bidirectional
/// control characters and invalid UTF-8 are shown as escapes, in a style that no name can imitate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name<'a>(pub(crate) &'a [u8]);

impl Render for Name<'_> {
    fn render(&self) -> Markup {
        html! {
            // `bdi` isolates right-to-left text from its surroundings.
            bdi {
                @for chunk in self.0.utf8_chunks() {
                    (Visible(chunk.valid()))
                    @for byte in chunk.invalid() {
                        span.odd { (format!("\\x{byte:02x}")) }
                    }
                }
            }
        }
    }
}

struct Visible<'a>(&'a str);

impl Render for Visible<'_> {
    fn render(&self) -> Markup {
        html! {
            @for part in self.0.split_inclusive(is_unseen) {
                @let end = part.chars().next_back().filter(|last| is_unseen(*last));
                @match end {
                    Some(last) => {
                        (part.strip_suffix(last).unwrap_or(part))
                        span.odd { (last.escape_default()) }
                    }
                    None => (part),
                }
            }
        }
    }
}

/// Whether a character is a control or format character, such as a line break, a direction mark, a
/// joiner or a tag.
/// tags.
fn is_unseen(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// A number of bytes, shown with a unit; the exact number is the tooltip.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size(pub(crate) u64);

impl Render for Size {
    fn render(&self) -> Markup {
        html! { data value=(self.0) title={ (Count(self.0)) " bytes" } { (self.brief()) } }
    }
}

impl Size {
    #[expect(clippy::cast_precision_loss, reason = "three digits of it are shown")]
    pub(crate) fn brief(self) -> String {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return format!("{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        // A value that would round to 1024 is shown in the next unit.
        while value >= 1023.5 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let decimals = usize::from(value < 99.95);
        format!("{value:.decimals$} {}", UNITS[unit])
    }
}

/// A number with groups of thousands, as in the book: 1,200.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Count(pub(crate) u64);

impl Render for Count {
    fn render(&self) -> Markup {
        html! { (self.grouped()) }
    }
}

impl Count {
    /// Formats the number with a noun, given in the singular.
    pub(crate) fn of(self, noun: &str) -> String {
        counted(self.grouped(), noun)
    }

    pub(crate) fn grouped(self) -> String {
        let digits = self.0.to_string();
        let mut grouped = String::new();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        grouped
    }
}

/// A Unix time in seconds, shown in UTC. Times outside the years 0 to 9999 are shown as 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Date(pub(crate) i64);

impl Date {
    /// Formats the time to the minute.
    fn text(self) -> String {
        let (date, clock, _) = self.parts();
        format!("{date} {clock} UTC")
    }

    /// Returns date, time to the minute, and seconds.
    fn parts(self) -> (String, String, u8) {
        let time = OffsetDateTime::from_unix_timestamp(self.0);
        let time = time.ok().filter(|time| time.year() >= 0);
        let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let (year, month, day) = time.to_calendar_date();
        let date = format!("{year:04}-{:02}-{day:02}", u8::from(month));
        let clock = format!("{:02}:{:02}", time.hour(), time.minute());
        (date, clock, time.second())
    }
}

impl Render for Date {
    fn render(&self) -> Markup {
        let (date, clock, second) = self.parts();
        let exact = format!("{date}T{clock}:{second:02}Z");
        html! { time datetime=(exact) { (self.text()) } }
    }
}

/// The time since a Unix time, with the time itself as the tooltip.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Age {
    /// The time, in seconds since 1970.
    time: i64,
    now: i64,
}

impl Age {
    pub(crate) fn of(time: i64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
        let now = now.and_then(|now| i64::try_from(now.as_secs()).ok());
        Self {
            time,
            now: now.unwrap_or_default(),
        }
    }
}

impl Render for Age {
    fn render(&self) -> Markup {
        // The clock of the machine that registered the path may be ahead.
        let age = self.now.saturating_sub(self.time).max(0);
        let (count, unit) = match age {
            0..60 => (age, "second"),
            60..3600 => (age / 60, "minute"),
            3600..86_400 => (age / 3600, "hour"),
            86_400..63_072_000 => (age / 86_400, "day"),
            _ => (age / 31_536_000, "year"),
        };
        let count = Count(count.unsigned_abs()).of(unit);
        html! { span title=(Date(self.time).text()) { (count) " ago" } }
    }
}

/// A number of days since 1970, shown as a date.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Day(pub(crate) i64);

impl Render for Day {
    fn render(&self) -> Markup {
        let time = OffsetDateTime::from_unix_timestamp(self.0.saturating_mul(86_400));
        let time = time.ok().filter(|time| time.year() >= 0);
        let (year, month, day) = time
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
            .to_calendar_date();
        let date = format!("{year:04}-{:02}-{day:02}", u8::from(month));
        html! { time datetime=(date) { (date) } }
    }
}

/// Renders the name of a path, with a link to its page if it may be read.
pub(super) fn path_name(base: Base, path: &StorePath, is_linked: bool) -> Markup {
    html! {
        @if is_linked {
            @let url = base.to_path(path.hash_part());
            a href=(url) title=(path.base_name()) { (path.name()) }
        } @else {
            span title=(path.base_name()) { (path.name()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_name(name: &[u8], expected: &str) {
        assert_eq!(
            Name(name).render().into_string(),
            format!("<bdi>{expected}</bdi>")
        );
    }

    #[test]
    fn names_are_escaped() {
        check_name(b"plain.txt", "plain.txt");
        check_name("käse ü".as_bytes(), "käse ü");
        check_name(
            b"<script>alert(\"&\")</script>",
            "&lt;script&gt;alert(&quot;&amp;&quot;)&lt;/script&gt;",
        );
        check_name(b"a\nb", "a<span class=\"odd\">\\n</span>b");
        check_name(b"\xffx", "<span class=\"odd\">\\xff</span>x");
        check_name(
            "exe.\u{202e}txt".as_bytes(),
            "exe.<span class=\"odd\">\\u{202e}</span>txt",
        );
        check_name(b"{{name}}\\x41", "{{name}}\\x41");
    }

    #[track_caller]
    fn check_size(size: u64, expected: &str) {
        assert_eq!(Size(size).brief(), expected);
    }

    #[test]
    fn sizes_are_shown_with_binary_units() {
        check_size(0, "0 B");
        check_size(1023, "1023 B");
        check_size(1024, "1.0 KiB");
        check_size(102_400, "100 KiB");
        check_size((1 << 20) - 1, "1.0 MiB");
        check_size(5 << 30, "5.0 GiB");
        check_size(u64::MAX, "16.0 EiB");
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(Count(0).grouped(), "0");
        assert_eq!(Count(999).grouped(), "999");
        assert_eq!(Count(1000).grouped(), "1,000");
        assert_eq!(Count(1_234_567).grouped(), "1,234,567");
    }

    #[track_caller]
    fn check_date(seconds: i64, expected: &str) {
        let rendered = Date(seconds).render().into_string();
        assert!(rendered.contains(expected), "{rendered}");
    }

    #[test]
    fn ages_are_shown_with_one_unit() {
        let check = |age: i64, expected: &str| {
            let now = 2_000_000_000;
            let shown = Age {
                time: now - age,
                now,
            }
            .render()
            .into_string();
            assert!(shown.contains(&format!(">{expected} ago<")), "{shown}");
        };
        check(-5, "0 seconds");
        check(1, "1 second");
        check(59, "59 seconds");
        check(60, "1 minute");
        check(3599, "59 minutes");
        check(3600, "1 hour");
        check(86_399, "23 hours");
        check(86_400, "1 day");
        check(63_071_999, "729 days");
        check(63_072_000, "2 years");
        let shown = Age { time: 0, now: 1 }.render().into_string();
        assert!(shown.contains("title=\"1970-01-01 00:00 UTC\""), "{shown}");
    }

    #[test]
    fn dates_are_shown_in_utc() {
        check_date(0, "1970-01-01 00:00 UTC");
        check_date(951_868_799, "2000-02-29 23:59 UTC");
        check_date(951_868_800, "2000-03-01 00:00 UTC");
        check_date(1_780_000_000, "datetime=\"2026-05-28T20:26:40Z\"");
        check_date(-1, "1969-12-31 23:59 UTC");
        check_date(i64::MAX, "UTC");
        check_date(i64::MIN, "UTC");
    }
}
