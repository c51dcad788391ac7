//! A random writer against a model: an application sees the same contents as of a local file,
//! whatever a correct server does.

use super::{Rig, pattern, random::Random, server::Misbehaviour, small};
use crate::data::{
    options::DataOptions,
    plane::{OpenData, OpenMode},
};

/// Maximum size of the file in bytes.
const SIZE: u64 = 40_000;

struct Writer {
    rig: Rig,
    open: OpenData,
    model: Vec<u8>,
    random: Random,
    /// The contents that fsync acknowledged.
    durable: Vec<u8>,
}

impl Writer {
    fn step(&mut self, operation: u64) {
        match operation % 100 {
            0..=34 => self.write(),
            35..=74 => self.read(),
            75..=84 => self.truncate(),
            85..=89 => self.flush(),
            90..=93 => self.reopen(),
            94..=95 => self.rig.file.data.invalidate(),
            96..=97 => self.append(),
            98 => {
                *self.rig.clock.0.lock() += small().write_behind;
                self.rig.inline.run_delayed();
            }
            _ => self.rig.plane.flush_unsent(&self.rig.owner, &curt_rpc::client::Interrupt::never()).unwrap(),
        }
        let size = self.rig.server.state().memory.len() as u64;
        assert_eq!(self.rig.file.data.local_size(size), self.model.len() as u64);
        assert!(self.rig.plane.unwritten_bytes() <= 32 << 10);
        assert!(self.rig.plane.cached_bytes() <= 16 << 10);
    }

    fn write(&mut self) {
        let start = self.random.below(SIZE - 9000);
        let most = if self.random.below(4) == 0 { 9000 } else { 600 };
        let length = 1 + self.random.below(most);
        let bytes = self.bytes(length);
        assert_eq!(self.rig.write(&self.open, start, &bytes), Ok(bytes.len()));
        self.put(start, &bytes);
    }

    fn append(&mut self) {
        let length = (1 + self.random.below(500)).min(SIZE - self.model.len() as u64);
        let bytes = self.bytes(length);
        assert_eq!(self.rig.append(&self.open, &bytes), Ok(bytes.len()));
        self.put(self.model.len() as u64, &bytes);
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        let from = usize::try_from(self.random.below(5000)).unwrap();
        let length = usize::try_from(length).unwrap();
        pattern(from + length)[from..].to_vec()
    }

    fn put(&mut self, start: u64, bytes: &[u8]) {
        let start = usize::try_from(start).unwrap();
        let end = start + bytes.len();
        self.model.resize(self.model.len().max(end), 0);
        self.model[start..end].copy_from_slice(bytes);
    }

    fn read(&mut self) {
        let start = self.random.below(SIZE);
        let length = usize::try_from(self.random.below(12_000)).unwrap();
        let read = self.rig.read(&self.open, start, length).unwrap();
        let start = usize::try_from(start).unwrap().min(self.model.len());
        let end = (start + length).min(self.model.len());
        assert_eq!(read, self.model[start..end]);
    }

    fn truncate(&mut self) {
        let size = self.random.below(SIZE);
        self.rig.plane.flush_unsent(&self.rig.owner, &curt_rpc::client::Interrupt::never()).unwrap();
        let length = usize::try_from(size).unwrap();
        {
            // SETATTR belongs to the metadata half. Its effect on the server's file is this; it is
            // on stable storage at once.
            let mut state = self.rig.server.state();
            state.memory.resize(length, 0);
            state.disk.resize(length, 0);
        }
        *self.rig.file.believed.lock() = Some(size);
        self.rig.file.data.truncated(size);
        self.model.resize(length, 0);
    }

    fn flush(&mut self) {
        self.rig.flush(&self.open).unwrap();
        assert_eq!(self.rig.server.state().disk, self.model);
        assert!(!self.rig.file.data.has_unwritten());
        self.durable.clone_from(&self.model);
    }

    fn reopen(&mut self) {
        self.flush();
        let mode = OpenMode { direct: self.random.below(8) == 0, synchronous: self.random.below(8) == 0 };
        self.open = self.rig.open_as(1000, mode);
    }
}

/// Restarts lose only what is in the server's memory. The file's size between a restart and the
/// repeated WRITEs is undefined, so sizes are taken from the attributes of replies only.
fn run(seed: u64, operations: u64, faults: bool) {
    let options = DataOptions { cache_bytes: 16 << 10, unwritten_bytes: 32 << 10, ..small() };
    let rig = Rig::inline(&[], options);
    let open = rig.open();
    if faults {
        let mut script = Random::new(seed + 77);
        rig.server.script(move |_| match script.below(20) {
            0 => Some(Misbehaviour::Short(1 + u32::try_from(script.below(4000)).unwrap())),
            1 => Some(Misbehaviour::Status(10_008)),
            _ => None,
        });
    }
    let mut writer = Writer { rig, open, model: Vec::new(), random: Random::new(seed), durable: Vec::new() };
    for _ in 0..operations {
        let operation = writer.random.below(100);
        writer.step(operation);
    }
    writer.flush();
}

#[test]
fn a_hundred_thousand_random_operations_equal_the_model() {
    for seed in 0..10 {
        run(seed, 10_000, false);
    }
}

#[test]
fn they_do_with_a_server_that_is_short_and_busy() {
    for seed in 100..105 {
        run(seed, 4000, true);
    }
}
