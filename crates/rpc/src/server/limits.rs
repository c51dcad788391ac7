//! How much the peers together, and one of them, may take.

use std::time::Duration;

/// The bounds of a server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once. When one more comes, that which was idle for longest is closed; if none is idle, the new one.
    pub connections: usize,
    /// Threads that serve at once. What is beyond waits until one is free.
    pub threads: usize,
    /// The longest record of a program that is not in `record_sizes`, in bytes.
    pub record_size: usize,
    /// The longest record, in bytes, of each program that is served.
    pub record_sizes: Vec<(u32, usize)>,
    /// Calls of one connection that are being executed at once. Beyond it nothing more is read from the connection.
    pub in_flight: usize,
    /// Bytes of replies, of all connections together, that wait for clients to take them. A connection that would exceed it
    /// is closed.
    pub unsent: usize,
    /// Bytes of incomplete records, of all parked connections together. A connection that would exceed it is closed.
    pub half_records: usize,
    /// How long a client may leave replies untaken before its connection is closed.
    pub unsent_for: Duration,
    /// How long replies that clients do not take are waited for at a shutdown.
    pub farewell: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8192,
            threads: 512,
            record_size: 4096,
            record_sizes: Vec::new(),
            in_flight: 64,
            unsent: 256 << 20,
            half_records: 256 << 20,
            unsent_for: Duration::from_secs(300),
            farewell: Duration::from_secs(5),
        }
    }
}

/// How many bytes of a call's header must be there before its program is known.
const PROGRAM_END: usize = 16;

impl Limits {
    /// How long the record that begins so may be.
    pub(super) fn record_limit(&self, beginning: &[u8]) -> usize {
        let Some(header) = beginning.first_chunk::<PROGRAM_END>() else {
            let sizes = self.record_sizes.iter().map(|(_, size)| *size);
            return sizes.max().unwrap_or(0).max(self.record_size);
        };
        let (_, program) = header.split_at(PROGRAM_END - 4);
        let known = self
            .record_sizes
            .iter()
            .find(|(number, _)| number.to_be_bytes() == *program);
        known.map_or(self.record_size, |(_, size)| *size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_bounded_by_its_program() {
        let limits = Limits {
            record_sizes: vec![(100_003, 1 << 20), (100_005, 2000)],
            ..Limits::default()
        };
        let header = |program: u32| [1u32, 0, 2, program].map(u32::to_be_bytes).concat();
        assert_eq!(limits.record_limit(&header(100_003)), 1 << 20);
        assert_eq!(limits.record_limit(&header(100_005)), 2000);
        assert_eq!(limits.record_limit(&header(1)), 4096);
        assert_eq!(limits.record_limit(&header(100_003)[..15]), 1 << 20);
    }
}
