//! Names and paths: few, so that calls affect the same files, and with arbitrary bytes.

use curt_tests::random::Random;

/// Maximum length of a name.
const NAME_MAX: usize = 255;
/// Names that may be anywhere. They are bytes.
const NAMES: [&[u8]; 9] = [
    b"a",
    b"b",
    b"c",
    b"\xff\xfe\x80",
    b"two\nlines",
    b"with space and \\ and \"",
    b".hidden",
    b"-rf",
    "\u{e9}\u{1f980}".as_bytes(),
];

/// A path below the top directory.
pub(crate) fn path(random: &mut Random, known: &[Vec<u8>]) -> Vec<u8> {
    match random.below(100) {
        0..62 if !known.is_empty() => known[random.below(known.len())].clone(),
        62..80 if !known.is_empty() => {
            let mut path = known[random.below(known.len())].clone();
            path.push(b'/');
            path.extend(name(random));
            path
        }
        80..83 => odd(random, known),
        _ => {
            let depth = 1 + random.below(3);
            let names: Vec<_> = (0..depth).map(|_| name(random)).collect();
            names.join(&b'/')
        }
    }
}

fn name(random: &mut Random) -> Vec<u8> {
    match random.below(40) {
        0 => vec![b'l'; NAME_MAX],
        1 => vec![b'm'; NAME_MAX + 1],
        _ => NAMES[random.below(NAMES.len())].to_vec(),
    }
}

/// Paths with special rules in system calls.
fn odd(random: &mut Random, known: &[Vec<u8>]) -> Vec<u8> {
    let mut path = match known {
        [] => b"a".to_vec(),
        some => some[random.below(some.len())].clone(),
    };
    // Not "..": through a link to the top it leads out of the directory.
    match random.below(4) {
        0 => path.push(b'/'),
        1 => path.extend(b"/."),
        2 => path = b".".to_vec(),
        _ => path.clear(),
    }
    path
}

/// A readable path.
pub(crate) fn shown(path: &[u8]) -> String {
    let text = path.escape_ascii().to_string();
    match text.len() {
        0..=100 => format!("\"{text}\""),
        length => format!("\"{}...\" ({length} bytes)", &text[..40]),
    }
}
