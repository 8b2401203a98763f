//! Formats a number of bytes for people.

/// Formats a number of bytes with a binary unit, such as MiB.
#[must_use]
pub fn human(len: u64) -> String {
    let mut whole = len;
    let mut rest = 0;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if whole < 1024 {
            break;
        }
        (rest, whole) = (whole % 1024 * 10 / 1024, whole / 1024);
        unit = next;
    }
    match unit {
        "B" => format!("{whole} B"),
        _ => format!("{whole}.{rest} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_units() {
        for (len, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (10 << 20, "10.0 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(human(len), text);
        }
    }
}
