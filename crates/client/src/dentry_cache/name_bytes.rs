//! A name's bytes: in place where they are few, as most are.
//!
//! Owns storage only. There are as many of these as known names, and an allocation of its own costs
//! a name 32 bytes at least.

/// Bytes that are kept in place.
const SHORT_MAX: usize = 22;

/// The bytes of a name.
#[derive(Debug)]
pub(super) enum NameBytes {
    Short(u8, [u8; SHORT_MAX]),
    Long(Box<[u8]>),
}

impl NameBytes {
    pub(super) fn new(name: &[u8]) -> Self {
        match u8::try_from(name.len()) {
            Ok(length) if name.len() <= SHORT_MAX => {
                let mut bytes = [0; SHORT_MAX];
                bytes[..name.len()].copy_from_slice(name);
                Self::Short(length, bytes)
            }
            Ok(_) | Err(_) => Self::Long(name.into()),
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short(length, bytes) => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_are_kept_whole() {
        for length in [0, 1, SHORT_MAX - 1, SHORT_MAX, SHORT_MAX + 1, 255, 256, 300] {
            let name = vec![b'n'; length];
            assert_eq!(NameBytes::new(&name).as_bytes(), name, "{length}");
        }
        assert_eq!(size_of::<NameBytes>(), 24);
    }
}
