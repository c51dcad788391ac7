//! The values of options: numbers with ranges, names from a list, sizes.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A whole number within a range.
pub(super) fn number<T>(text: &str, range: RangeInclusive<T>, unit: &str) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display + Copy,
{
    text.parse()
        .ok()
        .filter(|value| range.contains(value))
        .ok_or_else(|| format!("takes a whole number from {} to {}{unit}", range.start(), range.end()))
}

/// Seconds, for the attribute timers.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    number(text, 0..=u32::MAX, " (seconds)").map(|seconds| Duration::from_secs(u64::from(seconds)))
}

/// Seconds with a fraction, of at most a minute.
pub(super) fn short_time(text: &str) -> Result<Duration, String> {
    const SECONDS_MAX: f64 = 60.0;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse()
        .ok()
        .filter(|seconds| is_plain && (0.0..=SECONDS_MAX).contains(seconds))
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("takes a number from 0 to {SECONDS_MAX} (seconds), such as 0.5"))
}

/// A TCP port; 0: from the portmapper, as in nfs(5).
pub(super) fn port(text: &str) -> Result<Option<u16>, String> {
    Ok(Some(number(text, 0..=u16::MAX, "")?).filter(|&port| port != 0))
}

/// Size of a READ or WRITE: rounded down to a multiple of 4096, from 4096 to 1 MiB (0: the server's
/// preference).
pub(super) fn transfer(text: &str) -> Result<Option<u32>, String> {
    let bytes: u32 = number(text, 0..=u32::MAX, " (bytes)")?;
    Ok(Some(bytes).filter(|&bytes| bytes != 0).map(|bytes| (bytes / 4096 * 4096).clamp(4096, 1 << 20)))
}

/// A size in bytes, with an optional suffix K, M or G (powers of 1024), of at least `least`.
pub(super) fn size(text: &str, least: u64) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|value| value.checked_mul(1 << shift))
        .filter(|&value| value >= least)
        .ok_or_else(|| {
            format!("takes a number of bytes of at least {least}, with an optional suffix K, M or G")
        })
}

/// One word of a list.
pub(super) fn one_of<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    words.iter().find(|(word, _)| *word == text).map(|&(_, value)| value).ok_or_else(|| {
        let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        format!("takes one of {}", names.join(", "))
    })
}

/// The first word of a value.
pub(super) fn word_of<T: PartialEq>(value: &T, words: &[(&'static str, T)]) -> &'static str {
    words.iter().find(|(_, of)| of == value).map_or("", |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{one_of, port, short_time, size, transfer};

    #[test]
    fn transfers_are_multiples_of_4096_up_to_a_mebibyte() {
        assert_eq!(transfer("0"), Ok(None));
        assert_eq!(transfer("1"), Ok(Some(4096)));
        assert_eq!(transfer("10000"), Ok(Some(8192)));
        assert_eq!(transfer("4194304"), Ok(Some(1 << 20)));
        assert!(transfer("-1").is_err());
    }

    #[test]
    fn sizes_have_suffixes_and_a_least_value() {
        assert_eq!(size("64K", 1), Ok(65536));
        assert_eq!(size("2G", 1), Ok(2 << 30));
        assert!(size("99999999999999999999", 1).is_err());
        assert!(size("17179869184G", 1).is_err());
        assert!(size("1", 4096).is_err());
    }

    #[test]
    fn short_times_have_fractions_and_a_largest_value() {
        for (text, milliseconds) in [("0", 0), ("1", 1000), ("0.25", 250), (".5", 500), ("60", 60_000)] {
            assert_eq!(short_time(text), Ok(Duration::from_millis(milliseconds)));
        }
        for text in ["", ".", "-1", "60.1", "nan", "inf", "1e1", "+1", "1s"] {
            assert!(short_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ports_and_keywords_name_the_values_they_accept() {
        assert_eq!(port("0"), Ok(None));
        assert_eq!(port("65536").err().as_deref(), Some("takes a whole number from 0 to 65535"));
        assert_eq!(one_of("c", &[("a", 1), ("b", 2)]).err().as_deref(), Some("takes one of a, b"));
    }
}
