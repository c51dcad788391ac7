//! Names and paths to try: few enough that calls meet each other's files, odd enough that nobody
//! can take a name for text.

use curt_tests::random::Random;

/// The longest name that a file may have.
const NAME_MAX: usize = 255;
/// Names that may be anywhere. They are bytes, as names are.
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

/// A path below a world's top.
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

/// What system calls treat by rules of its own.
fn odd(random: &mut Random, known: &[Vec<u8>]) -> Vec<u8> {
    let mut path = match known {
        [] => b"a".to_vec(),
        some => some[random.below(some.len())].clone(),
    };
    // Not "..": through a link to the top it leads out of the world.
    match random.below(4) {
        0 => path.push(b'/'),
        1 => path.extend(b"/."),
        2 => path = b".".to_vec(),
        _ => path.clear(),
    }
    path
}

/// A path for people.
pub(crate) fn shown(path: &[u8]) -> String {
    let text = path.escape_ascii().to_string();
    match text.len() {
        0..=100 => format!("\"{text}\""),
        length => format!("\"{}...\" ({length} bytes)", &text[..40]),
    }
}
