//! Messages between clients and servers. The first byte selects the message: what a reader accepts,
//! its writer writes again, byte by byte. A reason is the exception: its control characters become
//! spaces.
#![no_main]

use samovar_nix::{HashPart, NarHash};
use samovar_protocol::oidc::{Exchange, Exchanged};
use samovar_protocol::pins::{
    Generations, Newest, Pinned, Put, Tags, Weak, parse_removed, removed,
};
use samovar_protocol::push::{
    AssembleQuery, Assembled, JoinQuery, Missing, Opened, PackOutcome, PartLine, PartQuery, Target,
    is_published, published,
};

/// Returns the second words of the lines.
fn second_words(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.split(' ').nth(1))
}

/// Returns the text without the control characters that a reason may have.
fn spaced(text: &str) -> String {
    text.split('\n')
        .map(|line| line.replace(char::is_control, " ") + "\n")
        .collect()
}

fn opened(text: &str) -> Option<String> {
    let asked: Vec<HashPart> = second_words(text)
        .filter_map(|word| HashPart::parse(word.as_bytes()).ok())
        .collect();
    let opened = Opened::parse(text, asked.iter().copied()).ok()??;
    Some(opened.text(asked))
}

/// Reads the URL of a request of a push, and writes it again.
fn url(text: &str) -> Option<String> {
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    let target = Target::parse(path.as_bytes())?;
    assert_eq!(target.to_string(), path);
    let query = query.as_bytes();
    Some(match target {
        Target::Part(..) => format!("{target}?{}", PartQuery::parse(query).ok()?),
        Target::Join(..) => format!("{target}?{}", JoinQuery::parse(query).ok()?),
        Target::Assemble(_) => format!("{target}?{}", AssembleQuery::parse(query).ok()?),
        _ => path.to_owned(),
    })
}

/// Reads a text of which there are several forms, such as a percent-encoded one, and writes it
/// again. The second form is what must not change.
fn rewritten(kind: u8, text: &str) -> Option<String> {
    match kind {
        0 => Some(Generations::parse(text).ok()?.text()),
        1 => Some(Newest::text(&Newest::parse(text).ok()?)),
        2 => Some(Put::parse(text.as_bytes()).ok()?.text()),
        3 => Some(Pinned::parse(text).ok()?.text()),
        4 => Some(removed(parse_removed(text).ok()?.try_into().ok()?)),
        // No list without a tag is written.
        5 => match Tags::parse(text.as_bytes(), Weak::AreStrong)? {
            Tags::Listed(none) if none.is_empty() => None,
            tags => Some(tags.text()),
        },
        _ => url(text),
    }
}

fn pack(text: &str) -> Option<String> {
    let asked: Vec<NarHash> = second_words(text)
        .filter_map(|word| NarHash::parse_nixbase32(word.as_bytes()).ok())
        .collect();
    Some(PackOutcome::text(&PackOutcome::parse(text, &asked).ok()?))
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((message, text)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    if let Some(kind) = (message % 15).checked_sub(8) {
        let written = rewritten(kind, text);
        let again = written.as_deref().and_then(|text| rewritten(kind, text));
        return assert_eq!(again, written);
    }
    let written = match message % 15 {
        0 => opened(text),
        1 => pack(text),
        2 => PartLine::parse(text).ok().map(|parts| PartLine::text(&parts)),
        3 => Missing::parse(text).ok().map(|missing| Missing::text(&missing)),
        4 => Assembled::parse(text).ok().map(|assembled| assembled.text()),
        6 => Exchange::parse(text.as_bytes()).ok().map(|exchange| exchange.text()),
        7 => Exchanged::parse(text).ok().map(|exchanged| exchanged.text()),
        _ => is_published(text, 12).then(|| published(12)),
    };
    let Some(written) = written else { return };
    match message % 15 {
        0 | 1 => assert_eq!(spaced(&written), spaced(text)),
        _ => assert_eq!(written, text),
    }
});
