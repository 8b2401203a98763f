//! The trie finds the same route as an exhaustive search over all patterns.

use std::cmp::Reverse;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::path::Path;
use super::pattern::{Matcher, Partial, Pattern};
use super::trie::Trie;

/// Index of the matching pattern, and the text of its captures.
type Found = Option<(usize, Vec<String>)>;

fn find(patterns: &[&str], path: &str) -> Found {
    let mut trie = Trie::default();
    for (index, pattern) in patterns.iter().enumerate() {
        let place = trie.entry(&Pattern::parse(pattern).unwrap());
        place.get_or_insert(index);
    }
    let decoded = Path::new(path.as_bytes()).unwrap();
    let (found, captures) = trie.find(&decoded, |index| Some(*index))?;
    let text = decoded.into_decoded().unwrap_or_else(|| path.into());
    let texts = captures.spans().iter();
    let texts = texts.map(|span| text[span.start as usize..span.end as usize].to_owned());
    Some((found, texts.collect()))
}

/// Precedence of one matcher within a match; the lowest value wins. Kind of the matcher; for a
/// partial segment, the length of its text, the minimum length of the wildcard, the length of its
/// prefix, and the text itself; for a rest, its end.
type Step = (u8, [Reverse<usize>; 3], String, Option<String>, usize);

fn step(kind: u8, end: usize) -> Step {
    (kind, [Reverse(0); 3], String::new(), None, end)
}

/// Returns the precedence and the capture of a partial matcher for a segment; `None` if it does not
/// match.
fn partial_step(partial: &Partial, segment: &str) -> Option<(Step, String)> {
    match partial {
        Partial::Ends {
            prefix,
            suffix,
            between_len_min,
        } => {
            let rest = segment.strip_prefix(&**prefix)?;
            let between = rest.strip_suffix(&**suffix)?;
            let given_len = prefix.len() + suffix.len();
            let rank = [given_len, *between_len_min, prefix.len()].map(Reverse);
            let step = (1, rank, prefix.to_string(), Some(suffix.to_string()), 0);
            (between.len() >= *between_len_min).then(|| (step, between.to_owned()))
        }
        Partial::Contains(text) => {
            let rank = [text.len(), 0, 0].map(Reverse);
            let step = (1, rank, text.to_string(), None, 0);
            segment
                .contains(&**text)
                .then(|| (step, segment.to_owned()))
        }
    }
}

/// Returns all ways in which the matchers from `index` on match the segments.
fn ways(pattern: &Pattern, index: usize, segments: &[String]) -> Vec<(Vec<Step>, Vec<String>)> {
    let Some(matcher) = pattern.matchers.get(index) else {
        let is_end = segments.is_empty();
        return is_end.then(Default::default).into_iter().collect();
    };
    let Some(segment) = segments.first() else {
        return Vec::new();
    };
    let mut all = Vec::new();
    let mut take = |step: Step, captured: Option<String>, count: usize| {
        for (mut steps, mut texts) in ways(pattern, index + 1, &segments[count..]) {
            steps.insert(0, step.clone());
            texts.splice(0..0, captured.clone());
            all.push((steps, texts));
        }
    };
    match matcher {
        Matcher::Literal(text) if **text == **segment => take(step(0, 0), None, 1),
        Matcher::Partial(partial) => {
            if let Some((step, captured)) = partial_step(partial, segment) {
                take(step, Some(captured), 1);
            }
        }
        Matcher::One if !segment.is_empty() => take(step(2, 0), Some(segment.clone()), 1),
        Matcher::Rest if !segment.is_empty() => {
            for count in 1..=segments.len() {
                // Shorter rests precede longer ones; a rest up to the end of the path is last.
                take(step(3, count), Some(segments[..count].join("/")), count);
            }
        }
        Matcher::Literal(_) | Matcher::One | Matcher::Rest => {}
    }
    all
}

fn reference(patterns: &[&str], path: &str) -> Found {
    let patterns: Vec<Pattern> = patterns
        .iter()
        .map(|p| Pattern::parse(p).unwrap())
        .collect();
    let decode = |segment: &str| segment.replace("%2F", "/");
    let segments: Vec<String> = path[1..].split('/').map(decode).collect();
    let ways = patterns.iter().enumerate().flat_map(|(index, pattern)| {
        let ways = ways(pattern, 0, &segments);
        ways.into_iter()
            .map(move |(steps, texts)| (steps, index, texts))
    });
    let (_, index, texts) = ways.min()?;
    Some((index, texts))
}

#[track_caller]
fn check(patterns: &[&str], path: &str, expected: Option<(usize, &[&str])>) {
    let found = find(patterns, path);
    let found = found.as_ref().map(|(index, texts)| {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        (*index, texts)
    });
    assert_eq!(
        found,
        expected.map(|(index, texts)| (index, texts.to_vec())),
        "{path}"
    );
}

#[test]
fn literals_are_compared_with_the_decoded_path() {
    check(&["/"], "/", Some((0, &[])));
    check(&["/a"], "/a/", None);
    check(&["/a/"], "/a/", Some((0, &[])));
    check(&["/a/"], "/a", None);
    check(&["/ñandú"], "/%C3%B1and%C3%BA", Some((0, &[])));
    check(&["/a b"], "/a%20b", Some((0, &[])));
    check(&["/a/b"], "/a%2Fb", None);
    check(&["/a%2Fb"], "/a%2fb", Some((0, &[])));
    check(&["/"], "//", None);
}

#[test]
fn a_parameter_is_one_segment_and_not_empty() {
    check(&["/u/{id}"], "/u/7", Some((0, &["7"])));
    check(&["/u/{id}"], "/u/", None);
    check(&["/u/{id}"], "/u/7/", None);
    check(&["/u/{id}"], "/u/7%2F8", Some((0, &["7/8"])));
    check(&["/u/*"], "/u/7", Some((0, &["7"])));
    check(&["/{a}/x/{b}"], "/1/x/2", Some((0, &["1", "2"])));
}

#[test]
fn a_segment_may_be_given_in_part() {
    check(&["/{hash}.narinfo"], "/abc.narinfo", Some((0, &["abc"])));
    check(&["/{hash}.narinfo"], "/.narinfo", None);
    check(&["/*.narinfo"], "/.narinfo", Some((0, &[""])));
    check(&["/v{major}"], "/v12", Some((0, &["12"])));
    check(&["/v{n}.zip"], "/v1.zip", Some((0, &["1"])));
    check(&["/page_*"], "/page_7", Some((0, &["7"])));
    check(&["/page_*"], "/pag", None);
    check(&["/*cat*"], "/concatenate", Some((0, &["concatenate"])));
    check(&["/*cat*"], "/dog", None);
    // The prefix and the suffix must not overlap.
    check(&["/aba*ba"], "/aba", None);
}

#[test]
fn a_rest_is_one_or_more_segments() {
    check(&["/f/{*path}"], "/f/a", Some((0, &["a"])));
    check(&["/f/{*path}"], "/f/a/b/", Some((0, &["a/b/"])));
    check(&["/f/{*path}"], "/f/a//b", Some((0, &["a//b"])));
    check(&["/f/{*path}"], "/f/", None);
    check(&["/f/{*path}"], "/f", None);
    // A capture that is joined to a directory path must not be absolute.
    check(&["/f/{*path}"], "/f//etc/passwd", None);
    check(&["/**/edit"], "/a/b/edit", Some((0, &["a/b"])));
    check(&["/**/edit"], "/edit", None);
    check(
        &["/**/edit/{id}"],
        "/a/edit/b/edit/c",
        Some((0, &["a/edit/b", "c"])),
    );
}

#[test]
fn the_most_specific_pattern_wins_whatever_the_order() {
    let patterns = [
        "/{*all}",
        "/u/{id}",
        "/u/{id}.json",
        "/u/me",
        "/*/me",
        "/u/{id}.min.json",
    ];
    check(&patterns, "/u/me", Some((3, &[])));
    check(&patterns, "/u/7", Some((1, &["7"])));
    check(&patterns, "/u/7.json", Some((2, &["7"])));
    check(&patterns, "/u/7.min.json", Some((5, &["7"])));
    check(&patterns, "/x/me", Some((4, &["x"])));
    check(&patterns, "/x/y", Some((0, &["x/y"])));
    // The search backtracks from a dead end.
    check(
        &["/a/b/c", "/a/{x}/d", "/{*r}"],
        "/a/b/d",
        Some((1, &["b"])),
    );
    check(
        &["/a/b/c", "/a/{x}/d", "/{*r}"],
        "/a/b/e",
        Some((2, &["a/b/e"])),
    );
}

#[test]
fn a_hostile_path_takes_polynomial_time() {
    let pattern = format!("/{}nowhere", "**/x/".repeat(15));
    let path = "/x".repeat(4000);
    let started = std::time::Instant::now();
    check(&[&pattern], &path, None);
    assert!(started.elapsed() < std::time::Duration::from_secs(5));
}

/// Returns the matchers of a pattern, without names.
fn names_away(pattern: &str) -> Vec<Matcher> {
    Pattern::parse(pattern).unwrap().matchers
}

fn pattern() -> impl Strategy<Value = &'static str> {
    select(vec![
        "/",
        "/a",
        "/a/",
        "/a/b",
        "/b/a",
        "/ab",
        "/a%2Fb",
        "/*",
        "/{x}",
        "/{x}/",
        "/a/*",
        "/*/b",
        "/{x}/{y}",
        "/a/{x}",
        "/{x}/b/{y}",
        "/a*",
        "/*a",
        "/*a*",
        "/a{x}",
        "/{x}b",
        "/a*b",
        "/a{x}b",
        "/*b*",
        "/{x}.a",
        "/a*/b",
        "/**",
        "/{*r}",
        "/a/**",
        "/**/a",
        "/**/b/**",
        "/{*r}/a/b",
        "/**/a*",
        "/a/**/b",
        "/**/a/*/**/b",
        "/**/a/",
        "/**/*b*/a",
    ])
}

fn path() -> impl Strategy<Value = String> {
    let segment = select(vec![
        "", "a", "a", "b", "b", "ab", "aab", "c.a", "a%2Fb", "ba",
    ]);
    vec(segment, 1..6).prop_map(|segments| format!("/{}", segments.join("/")))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn the_trie_finds_what_the_reference_finds(patterns in vec(pattern(), 1..10), path in path()) {
        prop_assert_eq!(find(&patterns, &path), reference(&patterns, &path));
    }

    #[test]
    fn order_of_registration_is_irrelevant(patterns in vec(pattern(), 1..10), path in path()) {
        let texts = |patterns: &[&str]| {
            find(patterns, &path).map(|(index, texts)| (names_away(patterns[index]), texts))
        };
        let mut reversed = patterns.clone();
        reversed.reverse();
        prop_assert_eq!(texts(&patterns), texts(&reversed));
    }
}
