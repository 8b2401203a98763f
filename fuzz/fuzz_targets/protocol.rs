//! Messages between clients and servers. The first byte selects the message: what a reader accepts,
//! its writer writes again, byte by byte. A reason is the exception: its control characters become
//! spaces.
#![no_main]

use samovar_nix::{HashPart, NarHash};
use samovar_protocol::push::{
    Assembled, Missing, Opened, PackOutcome, PartLine, is_published, published,
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
    let written = match message % 6 {
        0 => opened(text),
        1 => pack(text),
        2 => PartLine::parse(text).ok().map(|parts| PartLine::text(&parts)),
        3 => Missing::parse(text).ok().map(|missing| Missing::text(&missing)),
        4 => Assembled::parse(text).ok().map(|assembled| assembled.text()),
        _ => is_published(text, 12).then(|| published(12)),
    };
    let Some(written) = written else { return };
    match message % 6 {
        0 | 1 => assert_eq!(spaced(&written), spaced(text)),
        _ => assert_eq!(written, text),
    }
});
