//! The list of known flaky tests.

use anyhow::{Result, bail};

/// Path of the list in the repository. `xtask tidy` checks it.
pub(super) const LIST: &str = "xtask/flaky.txt";

/// A line of the list: `DATE PROGRAM TEST: CAUSE`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Day on which the test was found to be flaky, `YYYY-MM-DD`.
    pub(crate) date: String,
    /// Name of the program, as the runner prints it: the package's folder and the target.
    pub(crate) program: String,
    /// Path of the test in its program; `*` for the whole program.
    pub(crate) test: String,
    pub(crate) cause: String,
}

/// Parses the list. Fails at a line that is no comment and has another form.
pub(crate) fn parse_known(list: &str) -> Result<Vec<Known>> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.filter(|line| !line.is_empty()).map(parse).collect()
}

fn parse(line: &str) -> Result<Known> {
    let parts = line.split_once(": ").and_then(|(head, cause)| {
        let mut words = head.split(' ');
        let (date, program, test) = (words.next()?, words.next()?, words.next()?);
        (words.next().is_none() && is_date(date) && !cause.is_empty())
            .then_some((date, program, test, cause))
    });
    let Some((date, program, test, cause)) = parts else {
        bail!("{line:?} is not `YYYY-MM-DD PROGRAM TEST: CAUSE`");
    };
    Ok(Known {
        date: date.to_owned(),
        program: program.to_owned(),
        test: test.to_owned(),
        cause: cause.to_owned(),
    })
}

fn is_date(text: &str) -> bool {
    let is_digit_or_dash = |(index, byte): (usize, u8)| match index {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    text.len() == 10 && text.bytes().enumerate().all(is_digit_or_dash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_date_program_test_and_cause() {
        let known = parse_known("# why\n2026-11-29 http/tls a::test: a port: it is taken\n");
        let expected = Known {
            date: "2026-11-29".into(),
            program: "http/tls".into(),
            test: "a::test".into(),
            cause: "a port: it is taken".into(),
        };
        assert_eq!(known.unwrap(), [expected]);
        for wrong in [
            "2026-11-29 http/tls a_test",
            "2026-11-29 http/tls a_test: ",
            "2026-11-29 http/tls: a cause",
            "yesterday http/tls a_test: a cause",
            "2026-11-29 http/tls a_test another: a cause",
        ] {
            assert!(parse_known(wrong).is_err(), "{wrong}");
        }
    }
}
