//! The text of a statement as PostgreSQL reads it.

/// Writes the parameters `?1`, `?2` … of a statement as `$1`, `$2` …, except in texts and quoted
/// names.
pub(super) fn numbered(sql: &str) -> String {
    let mut out = String::with_capacity(sql.len());
    let mut quote = None;
    let mut rest = sql.chars().peekable();
    while let Some(symbol) = rest.next() {
        match (symbol, quote) {
            ('\'' | '"', None) => quote = Some(symbol),
            (_, Some(open)) if symbol == open => quote = None,
            _ => {}
        }
        let is_parameter =
            symbol == '?' && quote.is_none() && rest.peek().is_some_and(char::is_ascii_digit);
        out.push(if is_parameter { '$' } else { symbol });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_renamed_outside_of_quotes() {
        let check = |sql: &str, expected: &str| assert_eq!(numbered(sql), expected);
        check("a = ?1 and b = ?12", "a = $1 and b = $12");
        check("a = '?1' and \"?2\" = ?3", "a = '?1' and \"?2\" = $3");
        check("a = 'it''s ?1' || ?2", "a = 'it''s ?1' || $2");
        check("a ? b", "a ? b");
    }
}
