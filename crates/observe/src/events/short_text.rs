//! Short texts that are formatted for an event, without allocating memory: addresses, errors,
//! numbers.

use std::fmt::{self, Write as _};

use curt_proto::Operation;

/// At most [`SIZE`](Self::SIZE) bytes of a text; a longer one is truncated.
#[derive(Debug, Clone, Copy)]
pub struct ShortText {
    bytes: [u8; Self::SIZE],
    length: usize,
}

impl ShortText {
    /// An address with a port is shorter.
    pub const SIZE: usize = 64;

    /// The text as it is displayed.
    #[must_use]
    pub fn of(shown: impl fmt::Display) -> Self {
        let mut short = Self { bytes: [0; Self::SIZE], length: 0 };
        // It fails if there is no room: the text is truncated.
        let _ = write!(short, "{shown}");
        short
    }

    /// The text.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl fmt::Write for ShortText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = Self::SIZE - self.length;
        let kept = text.len().min(room);
        self.bytes[self.length..self.length + kept].copy_from_slice(&text.as_bytes()[..kept]);
        self.length += kept;
        if kept < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// The name of an operation of NFS; for other programs, the numbers of program and procedure.
#[must_use]
pub fn procedure_name(program: u32, version: u32, procedure: u32) -> ShortText {
    match Operation::of_call(program, version, procedure) {
        Some(operation @ (Operation::Nfs3(_) | Operation::Nfs4Procedure(_) | Operation::Nfs4(_))) => {
            ShortText::of(operation.name())
        }
        Some(Operation::Mount(_) | Operation::Nlm(_) | Operation::Nsm(_) | Operation::Callback(_)) | None => {
            ShortText::of(format_args!("{program}/{procedure}"))
        }
    }
}

/// The CRC-32 of a handle, which tshark and Linux's tracepoints print instead of its bytes.
#[must_use]
pub fn handle_hash(handle: &[u8]) -> u32 {
    crc32fast::hash(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_off() {
        assert_eq!(ShortText::of("a").bytes(), b"a");
        let exact = "x".repeat(ShortText::SIZE);
        assert_eq!(ShortText::of(&exact).bytes(), exact.as_bytes());
        assert_eq!(ShortText::of(format_args!("{exact}{}", 1)).bytes(), exact.as_bytes());
    }

    #[test]
    fn handles_are_hashed_as_everybody_does() {
        assert_eq!(handle_hash(b"123456789"), 0xcbf4_3926);
        assert_eq!(handle_hash(b""), 0);
        assert_eq!(handle_hash(b"The quick brown fox jumps over the lazy dog"), 0x414f_a339);
        assert_eq!(handle_hash(&[0; 64]), 0x758d_6336);
    }

    #[test]
    fn procedures_have_names() {
        assert_eq!(procedure_name(100_003, 3, 1).bytes(), b"GETATTR");
        assert_eq!(procedure_name(100_003, 3, 22).bytes(), b"100003/22");
        assert_eq!(procedure_name(100_005, 3, 1).bytes(), b"100005/1");
    }
}
