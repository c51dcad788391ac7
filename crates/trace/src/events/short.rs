//! Short texts that are made for an event alone, without memory: addresses, errors, numbers.

use std::fmt::{self, Write as _};

/// At most [`SIZE`](Self::SIZE) bytes of a text; what is longer is cut off.
#[derive(Debug, Clone, Copy)]
pub struct Short {
    bytes: [u8; Self::SIZE],
    length: usize,
}

impl Short {
    /// An address with a port is shorter.
    pub const SIZE: usize = 64;

    /// What is shown as.
    #[must_use]
    pub fn of(shown: impl fmt::Display) -> Self {
        let mut short = Self {
            bytes: [0; Self::SIZE],
            length: 0,
        };
        // It fails where there is no room: the rest is left out.
        let _ = write!(short, "{shown}");
        short
    }

    /// The text.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl fmt::Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = Self::SIZE - self.length;
        let kept = text.len().min(room);
        self.bytes[self.length..self.length + kept].copy_from_slice(&text.as_bytes()[..kept]);
        self.length += kept;
        if kept < text.len() {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}

/// The name of a procedure of NFSv3; of another program its number and the procedure's.
#[must_use]
pub fn procedure_name(program: u32, procedure: u32) -> Short {
    /// RFC 1813, section 2.2.
    const NFS: u32 = 100_003;
    let index = usize::try_from(procedure).unwrap_or(usize::MAX);
    match crate::PROCEDURES.get(index).filter(|_| program == NFS) {
        Some(name) => Short::of(name),
        None => Short::of(format_args!("{program}/{procedure}")),
    }
}

/// The CRC-32 of a handle: what tshark and Linux's tracepoints show instead of its bytes.
#[must_use]
pub fn handle_hash(handle: &[u8]) -> u32 {
    /// The polynomial of Ethernet, bits reversed.
    const POLYNOMIAL: u32 = 0xedb8_8320;
    let step = |rest: u32| {
        if rest & 1 == 0 {
            rest >> 1
        } else {
            rest >> 1 ^ POLYNOMIAL
        }
    };
    let byte = |rest: u32, byte: &u8| (0..8).fold(rest ^ u32::from(*byte), |rest, _| step(rest));
    !handle.iter().fold(!0, byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_off() {
        assert_eq!(Short::of("a").bytes(), b"a");
        let exact = "x".repeat(Short::SIZE);
        assert_eq!(Short::of(&exact).bytes(), exact.as_bytes());
        assert_eq!(Short::of(format_args!("{exact}{}", 1)).bytes(), exact.as_bytes());
    }

    #[test]
    fn handles_are_hashed_as_everybody_does() {
        assert_eq!(handle_hash(b"123456789"), 0xcbf4_3926);
        assert_eq!(handle_hash(b""), 0);
    }

    #[test]
    fn procedures_have_names() {
        assert_eq!(procedure_name(100_003, 1).bytes(), b"GETATTR");
        assert_eq!(procedure_name(100_003, 22).bytes(), b"100003/22");
        assert_eq!(procedure_name(100_005, 1).bytes(), b"100005/1");
    }
}
