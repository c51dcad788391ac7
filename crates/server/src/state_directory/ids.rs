//! The numbers of exports and file systems. A number is never reused.
//!
//! As text: `export N PATH` with the path's unusual bytes as `%XX`, `filesystem N IDENTITY` in
//! hexadecimal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The assigned numbers.
#[derive(Clone, Default)]
pub(super) struct PersistentIds {
    exports: BTreeMap<Vec<u8>, u32>,
    file_systems: BTreeMap<u64, u32>,
}

impl PersistentIds {
    /// The number of an export, and whether it is new.
    pub(super) fn export(&mut self, path: &[u8]) -> (u32, bool) {
        if let Some(number) = self.exports.get(path) {
            return (*number, false);
        }
        let number = next(self.exports.values());
        self.exports.insert(path.to_vec(), number);
        (number, true)
    }

    /// The number of a file system, and whether it is new.
    pub(super) fn file_system(&mut self, identity: u64) -> (u32, bool) {
        if let Some(number) = self.file_systems.get(&identity) {
            return (*number, false);
        }
        let number = next(self.file_systems.values());
        self.file_systems.insert(identity, number);
        (number, true)
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut text = String::new();
        for (path, number) in &self.exports {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "export {number} {}", escape(path));
        }
        for (identity, number) in &self.file_systems {
            let _ = writeln!(text, "filesystem {number} {identity:016x}");
        }
        text.into_bytes()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
        let mut numbers = Self::default();
        for line in text.lines() {
            numbers.take_line(line).ok_or_else(|| format!("line \"{line}\""))?;
        }
        Ok(numbers)
    }

    fn take_line(&mut self, line: &str) -> Option<()> {
        let mut words = line.splitn(3, ' ');
        let (kind, number, value) = (words.next()?, words.next()?, words.next()?);
        let number: u32 = number.parse().ok().filter(|number| *number > 0)?;
        let doubled = match kind {
            "export" => {
                let taken = self.exports.values().any(|other| *other == number);
                taken || self.exports.insert(unescape(value)?, number).is_some()
            }
            "filesystem" => {
                let taken = self.file_systems.values().any(|other| *other == number);
                taken || self.file_systems.insert(u64::from_str_radix(value, 16).ok()?, number).is_some()
            }
            _ => return None,
        };
        (!doubled).then_some(())
    }
}

fn next<'n>(given: impl Iterator<Item = &'n u32>) -> u32 {
    given.max().map_or(1, |highest| highest.checked_add(1).expect("fewer than 4 billion exports"))
}

pub(super) fn escape(path: &[u8]) -> String {
    let mut text = String::new();
    for byte in path {
        if byte.is_ascii_graphic() && *byte != b'%' {
            text.push(char::from(*byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

pub(super) fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut path = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            path.push(byte);
            continue;
        }
        let digits = [bytes.next()?, bytes.next()?];
        path.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn numbers_survive_their_text() {
        let mut numbers = PersistentIds::default();
        let path: Vec<u8> = (0..=255).collect();
        assert_eq!(numbers.export(&path), (1, true));
        assert_eq!(numbers.export(b"/srv"), (2, true));
        assert_eq!(numbers.file_system(u64::MAX), (1, true));
        let mut again = PersistentIds::from_bytes(&numbers.to_bytes()).unwrap();
        assert_eq!(again.export(&path), (1, false));
        assert_eq!(again.export(b"/srv"), (2, false));
        assert_eq!(again.file_system(u64::MAX), (1, false));
        assert_eq!(again.export(b"/new"), (3, true));
    }

    #[test]
    fn damage_is_refused_rather_than_guessed_at() {
        for text in [
            "export 1",
            "export 0 /a",
            "export x /a",
            "export 4294967296 /a",
            "export 1 /%2",
            "export 1 /%zz",
            "export 1 /a\nexport 1 /b",
            "export 1 /a\nexport 2 /a",
            "filesystem 1 xyz",
            "what 1 /a",
            "\n",
        ] {
            assert!(PersistentIds::from_bytes(text.as_bytes()).is_err(), "{text}");
        }
        assert!(PersistentIds::from_bytes(b"export 1 /\xff").is_err());
        assert!(PersistentIds::from_bytes(b"").is_ok());
    }
}
