//! File data through the whole client, against an in-process server that injects the faults of real
//! servers.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

mod random;
mod server;

use std::{sync::Arc, time::Duration};

use curt_client::{
    Caller, ClientOptions, OpenFile, OpenFlags, Superblock,
    data::DataOptions,
    ops,
    threads::BackgroundThreads,
    threads::{Background, BackgroundTask},
};
use curt_types::SetAttributes;
use curt_vfs::{Error, FaultPoint, MemoryOptions};
use rustix::io::Errno;

use random::Random;
use server::Server;

/// Runs work at once; delayed work never.
#[derive(Debug)]
struct Inline;

impl Background for Inline {
    fn spawn(&self, task: BackgroundTask) {
        task();
    }

    fn spawn_after(&self, _: Duration, _: BackgroundTask) {}
}

fn user() -> Caller {
    Caller::new(1000, 1000, &[])
}

fn behaviour() -> ClientOptions {
    let data = DataOptions {
        read_size: 16 << 10,
        write_size: 8 << 10,
        read_ahead: 64 << 10,
        cache_bytes: 64 << 10,
        keep_read: u64::MAX,
        unwritten_bytes: 128 << 10,
        ..DataOptions::default()
    };
    ClientOptions { data, ..ClientOptions::default() }
}

fn create(client: &Superblock, name: &[u8]) -> Arc<OpenFile> {
    let (_, opened) =
        ops::create(&client.op(&user()), client.root(), name, 0o644, OpenFlags::writing()).unwrap();
    opened.file
}

/// An application that writes and reads one file, and compares it with a model.
struct Program {
    client: Superblock,
    file: Arc<OpenFile>,
    model: Vec<u8>,
    random: Random,
    server: Arc<Server>,
    cuts: bool,
}

const SIZE: u64 = 100_000;

impl Program {
    fn step(&mut self) {
        match self.random.below(100) {
            0..=34 => self.write(),
            35..=69 => self.read(),
            70..=77 => self.truncate(),
            78..=83 => ops::fsync(&self.client.op(&user()), &self.file, false).unwrap(),
            84..=88 => self.reopen(),
            89..=93 => {
                let size = ops::getattr(&self.client.op(&user()), self.file.id()).unwrap().attributes.size;
                assert_eq!(size, self.model.len() as u64);
            }
            94 if self.cuts => {
                self.server.cut_in.store(1 + self.random.below(6), std::sync::atomic::Ordering::Relaxed)
            }
            95 | 96 => self.append(),
            97 => self.write_page(),
            _ => self.write(),
        }
    }

    /// Appends through another open file, as a logger does.
    fn append(&mut self) {
        let length = usize::try_from(1 + self.random.below(3000)).unwrap();
        if self.model.len() + length > usize::try_from(SIZE).unwrap() {
            return;
        }
        let flags = OpenFlags { append: true, ..OpenFlags::writing() };
        let log = ops::open(&self.client.op(&user()), self.file.id(), flags).unwrap().file;
        assert_eq!(ops::write(&self.client.op(&user()), &log, 0, &vec![9; length]), Ok(length));
        self.model.resize(self.model.len() + length, 9);
        if self.random.below(2) == 0 {
            ops::close(&self.client.op(&user()), &log).unwrap();
        } else {
            ops::release(&self.client, &log);
        }
    }

    /// Writes back a page that was changed through a mapping, by an open file with O_APPEND.
    fn write_page(&mut self) {
        let flags = OpenFlags { append: true, ..OpenFlags::writing() };
        let log = ops::open(&self.client.op(&user()), self.file.id(), flags).unwrap().file;
        let start = usize::try_from(self.random.below(SIZE) / 4096 * 4096).unwrap();
        let end = (start + 4096).min(self.model.len());
        if start < end {
            self.model[start..end].fill(77);
            let page = &self.model[start..end];
            assert_eq!(ops::write_at(&self.client.op(&user()), &log, start as u64, page), Ok(end - start));
        }
        ops::close(&self.client.op(&user()), &log).unwrap();
    }

    fn write(&mut self) {
        let start = self.random.below(SIZE - 20_000);
        let most = if self.random.below(4) == 0 { 20_000 } else { 900 };
        let length = usize::try_from(1 + self.random.below(most)).unwrap();
        let value = u8::try_from(self.random.below(256)).unwrap();
        let bytes: Vec<u8> =
            (0..length).map(|at| value.wrapping_add(u8::try_from(at % 251).unwrap())).collect();
        assert_eq!(ops::write(&self.client.op(&user()), &self.file, start, &bytes), Ok(length));
        let start = usize::try_from(start).unwrap();
        self.model.resize(self.model.len().max(start + length), 0);
        self.model[start..start + length].copy_from_slice(&bytes);
    }

    fn read(&mut self) {
        let start = self.random.below(SIZE);
        let length = usize::try_from(self.random.below(30_000)).unwrap();
        let bytes = ops::read(&self.client.op(&user()), &self.file, start, length).unwrap().to_vec();
        let start = usize::try_from(start).unwrap().min(self.model.len());
        assert_eq!(bytes, self.model[start..(start + length).min(self.model.len())]);
    }

    fn truncate(&mut self) {
        let size = self.random.below(SIZE);
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        let stat = ops::setattr(&self.client.op(&user()), self.file.id(), &set).unwrap();
        assert_eq!(stat.attributes.size, size);
        self.model.resize(usize::try_from(size).unwrap(), 0);
    }

    fn reopen(&mut self) {
        ops::close(&self.client.op(&user()), &self.file).unwrap();
        let flags = OpenFlags {
            direct: self.random.below(8) == 0,
            sync: self.random.below(8) == 0,
            ..OpenFlags::writing()
        };
        self.file = ops::open(&self.client.op(&user()), self.file.id(), flags).unwrap().file;
    }

    /// Compares the contents that another client reads after the last close.
    fn check_from_outside(self) {
        ops::close(&self.client.op(&user()), &self.file).unwrap();
        let other = self.server.mount(&behaviour(), Arc::new(Inline));
        let curt_client::LookupResult::Positive(found) =
            ops::lookup(&other.op(&user()), other.root(), b"file").unwrap()
        else {
            panic!("the file is there");
        };
        let open = ops::open(&other.op(&user()), found.id, OpenFlags::reading()).unwrap().file;
        let length = usize::try_from(SIZE).unwrap();
        assert_eq!(ops::read(&other.op(&user()), &open, 0, length).unwrap().to_vec(), self.model);
    }
}

fn run(seed: u64, operations: u64, cuts: bool, background: Arc<dyn Background>) -> u64 {
    let server = Server::new(MemoryOptions::default());
    let client = server.mount(&behaviour(), background);
    let file = create(&client, b"file");
    let mut program = Program {
        client,
        file,
        model: Vec::new(),
        random: Random::new(seed),
        server: Arc::clone(&server),
        cuts,
    };
    for _ in 0..operations {
        program.step();
    }
    program.check_from_outside();
    server.cuts.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn a_hundred_thousand_random_operations_equal_the_model() {
    for seed in 0..5 {
        run(seed, 20_000, false, Arc::new(Inline));
    }
}

#[test]
fn they_do_with_work_behind_on_threads() {
    run(50, 5000, false, Arc::new(BackgroundThreads::new(8)));
}

#[test]
fn power_cuts_of_the_server_lose_nothing() {
    let mut cuts = 0;
    for seed in 100..105 {
        cuts += run(seed, 5000, true, Arc::new(Inline));
    }
    assert!(cuts > 100, "{cuts}");
    run(200, 5000, true, Arc::new(BackgroundThreads::new(8)));
}

// SEMANTICS: write-3.
#[test]
fn a_power_cut_between_write_and_commit_has_the_bytes_sent_again() {
    let server = Server::new(MemoryOptions::default());
    let client = server.mount(&behaviour(), Arc::new(Inline));
    let file = create(&client, b"file");
    let bytes = vec![7; 50_000];
    assert_eq!(ops::write(&client.op(&user()), &file, 0, &bytes), Ok(50_000));
    server.take_seen();
    server.power_cut();
    ops::fsync(&client.op(&user()), &file, false).unwrap();
    let seen = server.take_seen();
    assert!(seen.iter().filter(|procedure| **procedure == 7).count() >= 7, "{seen:?}");
    server.power_cut();
    assert_eq!(ops::read(&client.op(&user()), &file, 0, 60_000).unwrap().to_vec(), bytes);
    let other = server.mount(&behaviour(), Arc::new(Inline));
    let curt_client::LookupResult::Positive(found) =
        ops::lookup(&other.op(&user()), other.root(), b"file").unwrap()
    else {
        panic!("the file is there");
    };
    assert_eq!(found.attributes.size, 50_000);
}

// SEMANTICS: write-6.
#[test]
fn failures_at_the_server_reach_the_program_once() {
    let cases = [
        (FaultPoint::Write, Errno::NOSPC),
        (FaultPoint::Write, Errno::DQUOT),
        (FaultPoint::Write, Errno::ROFS),
        (FaultPoint::Write, Errno::IO),
        (FaultPoint::Commit, Errno::IO),
    ];
    for (point, errno) in cases {
        let server = Server::new(MemoryOptions::default());
        let client = server.mount(&behaviour(), Arc::new(Inline));
        let file = create(&client, b"file");
        server.vfs.fail_next(point, Error::Os(errno), 1);
        let wrote = ops::write(&client.op(&user()), &file, 0, &[1; 20_000]);
        let synced = ops::fsync(&client.op(&user()), &file, false);
        let closed = ops::close(&client.op(&user()), &file);
        let failures = [wrote.map(drop), synced, closed].into_iter().filter_map(Result::err);
        assert_eq!(failures.collect::<Vec<_>>(), [errno], "{point:?}");
        let again = ops::open(&client.op(&user()), file.id(), OpenFlags::writing()).unwrap().file;
        assert_eq!(ops::write(&client.op(&user()), &again, 0, &[2; 20_000]), Ok(20_000));
        assert_eq!(ops::close(&client.op(&user()), &again), Ok(()), "later writes are not lost with it");
    }
}

// SEMANTICS: write-6.
#[test]
fn a_full_disk_is_reported_at_close_at_the_latest() {
    let server = Server::new(MemoryOptions { bytes_max: 100_000, ..MemoryOptions::default() });
    let client = server.mount(&behaviour(), Arc::new(Inline));
    let file = create(&client, b"file");
    let mut results = Vec::new();
    for number in 0..30 {
        results.push(ops::write(&client.op(&user()), &file, number * 10_000, &[1; 10_000]).map(drop));
    }
    results.push(ops::close(&client.op(&user()), &file));
    assert!(results.contains(&Err(Errno::NOSPC)), "{results:?}");
    assert!(client.data_plane().unwritten_bytes() == 0);
}

#[test]
fn own_writes_are_no_change_by_others() {
    let server = Server::new(MemoryOptions::default());
    let client = server.mount(&behaviour(), Arc::new(Inline));
    let file = create(&client, b"file");
    ops::write(&client.op(&user()), &file, 0, &[1; 40_000]).unwrap();
    ops::close(&client.op(&user()), &file).unwrap();
    server.take_seen();
    let again = ops::open(&client.op(&user()), file.id(), OpenFlags::reading()).unwrap();
    assert_eq!(ops::read(&client.op(&user()), &again.file, 0, 40_000).unwrap().to_vec(), vec![1; 40_000]);
    let seen = server.take_seen();
    assert!(!seen.contains(&6), "no READ of what was written here: {seen:?}");
}

#[test]
fn a_file_that_is_written_small_and_closed_costs_one_write() {
    let server = Server::new(MemoryOptions::default());
    let client = server.mount(&behaviour(), Arc::new(Inline));
    let file = create(&client, b"file");
    server.take_seen();
    for number in 0..10 {
        ops::write(&client.op(&user()), &file, number * 100, &[1; 100]).unwrap();
    }
    ops::close(&client.op(&user()), &file).unwrap();
    assert_eq!(server.take_seen(), [7]);
}
