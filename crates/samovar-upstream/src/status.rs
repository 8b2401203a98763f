//! [`verdict`]: what the status of an upstream's response says about the file that was requested.

/// What a status says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The response may contain the file.
    Answer,
    /// The upstream lacks the file.
    Absent,
    /// A fault of the upstream, which counts for its circuit.
    Down,
    /// The upstream refuses this server.
    Refused,
    /// Nothing that counts for this file.
    Unusable,
}

/// Returns what a status says. `is_bucket`: the upstream is a bucket, which answers 403 for a file
/// that it lacks if the client may not list the files.
#[must_use]
pub fn verdict(status: u16, is_bucket: bool) -> Verdict {
    match status {
        200..=299 => Verdict::Answer,
        404 | 410 => Verdict::Absent,
        403 if is_bucket => Verdict::Absent,
        401 | 403 => Verdict::Refused,
        408 | 429 | 500.. => Verdict::Down,
        _ => Verdict::Unusable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bucket_says_absent_with_403() {
        let all = [
            (200, Verdict::Answer),
            (206, Verdict::Answer),
            (304, Verdict::Unusable),
            (401, Verdict::Refused),
            (403, Verdict::Refused),
            (404, Verdict::Absent),
            (408, Verdict::Down),
            (410, Verdict::Absent),
            (429, Verdict::Down),
            (451, Verdict::Unusable),
            (500, Verdict::Down),
            (599, Verdict::Down),
        ];
        for (status, expected) in all {
            assert_eq!(verdict(status, false), expected, "{status}");
            let of_bucket = match status {
                403 => Verdict::Absent,
                _ => expected,
            };
            assert_eq!(verdict(status, true), of_bucket, "{status}");
        }
    }
}
