//! How much the peers together, and one of them, may take.

/// The bounds of a server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once. When there are more, the one that was idle for longest is closed.
    pub connections: usize,
    /// Threads that serve at once.
    pub threads: usize,
    /// The longest record of a program that is not in `record_sizes`, in bytes.
    pub record_size: usize,
    /// The longest record, in bytes, for each program that is served.
    pub record_sizes: Vec<(u32, usize)>,
    /// Calls of one connection that are being executed at once.
    pub in_flight: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8192,
            threads: 512,
            record_size: 4096,
            record_sizes: Vec::new(),
            in_flight: 64,
        }
    }
}
