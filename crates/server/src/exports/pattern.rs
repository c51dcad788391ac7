//! Patterns of host names: `*` and `?`, which match dots too, and classes such as `[a-f0-9]` or
//! `[^x]`.

/// Whether each `[` has its `]`.
pub(super) fn is_whole(pattern: &str) -> bool {
    let mut rest = pattern.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = match first {
            b'[' => match class(after) {
                Some((_, after)) => after,
                None => return false,
            },
            _ => after,
        };
    }
    true
}

/// Whether a name matches a pattern; both are in lower case. The time is bounded by the product of
/// their lengths.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.as_bytes(), name.as_bytes());
    // The position after the last *, and how much of the name it has not matched yet.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some((b'*', after)) = pattern.split_first() {
            star = Some((after, name));
            pattern = after;
            continue;
        }
        let Some((byte, rest)) = name.split_first() else {
            return pattern.is_empty();
        };
        if let Some(after) = one(pattern, *byte) {
            (pattern, name) = (after, rest);
            continue;
        }
        let Some((after, unswallowed)) = star else {
            return false;
        };
        let Some((_, fewer)) = unswallowed.split_first() else {
            return false;
        };
        star = Some((after, fewer));
        (pattern, name) = (after, fewer);
    }
}

/// The rest of a pattern whose first element matches a byte.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (first, after) = pattern.split_first()?;
    match first {
        b'?' => Some(after),
        b'[' => {
            let (members, after) = class(after)?;
            holds(members, byte).then_some(after)
        }
        exact => (*exact == byte).then_some(after),
    }
}

/// The members of a class and the rest of the pattern. A `]` in first position is a member.
fn class(inside: &[u8]) -> Option<(&[u8], &[u8])> {
    let negated = usize::from(matches!(inside.first(), Some(b'^' | b'!')));
    let end = inside.iter().skip(negated + 1).position(|byte| *byte == b']')?;
    let end = end + negated + 1;
    Some((inside.get(..end)?, inside.get(end + 1..)?))
}

fn holds(members: &[u8], byte: u8) -> bool {
    let (negated, mut members) = match members.split_first() {
        Some((b'^' | b'!', rest)) => (true, rest),
        _ => (false, members),
    };
    let mut found = false;
    while let Some((low, rest)) = members.split_first() {
        (found, members) = match rest {
            [b'-', high, after @ ..] => (found || (low..=high).contains(&&byte), after),
            _ => (found || *low == byte, rest),
        };
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stars_match_dots_and_classes_their_members() {
        let rows = [
            ("*.example.org", "a.example.org", true),
            ("*.example.org", "a.b.example.org", true),
            ("*.example.org", "example.org", false),
            ("*.example.org", "a.example.org.evil", false),
            ("host?", "host1", true),
            ("host?", "host", false),
            ("host?", "host12", false),
            ("h[0-4x]t", "h4t", true),
            ("h[0-4x]t", "hxt", true),
            ("h[0-4x]t", "h5t", false),
            ("h[^0-9]t", "h1t", false),
            ("h[!0-9]t", "hat", true),
            ("h[]a]t", "h]t", true),
            ("h[a-]t", "h-t", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("*", "", true),
            ("", "a", false),
        ];
        for (pattern, name, expected) in rows {
            assert!(is_whole(pattern), "{pattern}");
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
        for broken in ["[", "a[", "[]", "[^]", "a[bc"] {
            assert!(!is_whole(broken), "{broken}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = "*a".repeat(100);
        assert!(!fits(&pattern, &"a".repeat(99)));
        assert!(!fits(&format!("{pattern}b"), &"a".repeat(253)));
    }

    proptest! {
        #[test]
        fn a_name_fits_itself_and_each_pattern_made_of_it(name in "[a-z.]{1,20}", at in 0usize..20, cut in 0usize..20) {
            prop_assert!(fits(&name, &name));
            let (at, cut) = (at % name.len(), cut % name.len());
            let mut one = name.clone();
            one.replace_range(at..=at, "?");
            prop_assert!(fits(&one, &name));
            let (from, to) = (at.min(cut), at.max(cut));
            let starred = format!("{}*{}", &name[..from], &name[to..]);
            prop_assert!(fits(&starred, &name));
        }
    }
}
