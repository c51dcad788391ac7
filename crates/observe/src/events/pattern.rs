//! Patterns of names: `*` stands for any bytes, `?` for one.

use thiserror::Error;

use super::event::Event;

/// A pattern that matches no event's name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown event {0}; see 'curt trace --list'")]
pub struct NoSuchEvent(pub String);

/// Whether `pattern` matches all of `text`. The time is bounded by the product of their lengths.
#[must_use]
pub fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    // The position of the last star, and the text that it has matched so far.
    let mut star: Option<(usize, usize)> = None;
    while read < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[read] => {
                at += 1;
                read += 1;
            }
            _ => {
                let Some((place, covered)) = star else {
                    return false;
                };
                star = Some((place, covered + 1));
                at = place + 1;
                read = covered + 1;
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// The events whose names match one of these patterns, which are separated by commas.
///
/// # Errors
/// The first pattern that matches none.
pub fn select(patterns: &str) -> Result<Vec<Event>, NoSuchEvent> {
    let mut selected = Vec::new();
    for pattern in patterns.split(',').map(str::trim) {
        let before = selected.len();
        let fitting = Event::ALL.iter().filter(|event| fits(pattern.as_bytes(), event.name().as_bytes()));
        selected.extend(fitting);
        if selected.len() == before {
            return Err(NoSuchEvent(pattern.to_owned()));
        }
    }
    selected.sort_unstable();
    selected.dedup();
    Ok(selected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_stand_for_what_they_should() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*b*b*", "abcabc", true),
            ("*b*b*b*", "abcabc", false),
            ("a*b*c", "a-b-b-c", true),
            ("?", "", false),
            ("**a", "a", true),
        ] {
            assert_eq!(fits(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        // No exponential time.
        assert!(!fits(&b"*a".repeat(500), &[b'b'; 5000]));
    }

    #[test]
    fn events_are_selected_once_and_in_order() {
        assert_eq!(select("*").as_deref(), Ok(Event::ALL));
        assert_eq!(
            select("rpc_reply,rpc_c*ll, rpc_call").as_deref(),
            Ok(&[Event::RpcCall, Event::RpcReply][..])
        );
        assert_eq!(select("rpc_call,x*"), Err(NoSuchEvent("x*".to_owned())));
        assert_eq!(select(""), Err(NoSuchEvent(String::new())));
    }
}
