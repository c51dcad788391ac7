//! 1,000,000 cached names, each of an object of its own with attributes and an ACCESS result, fit
//! into 512 MiB. Measured on the process itself, with a scripted server.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use curt_client::{
    Background, BackgroundTask, Caller, ClientOptions, Clock, Environment, InodeId, LookupResult,
    MountedRoot, Superblock,
    caller::RpcSecurity,
    ops,
    protocol::{Fsinfo, Pathconf, RpcClient, v3::NfsV3},
};
use curt_policy::{AccessMode, CacheOptions, FillMode, TimeoutRange};
use curt_proto::nfs3::NfsProcedure;
use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use curt_types::FileHandle;
use rustix::io::Errno;

const NAMES: u64 = 1_000_000;
const BYTES_MAX: u64 = 512 << 20;
/// Objects that are found by number after FORGET.
const FORGOTTEN_MAX: u64 = 1 << 17;

#[derive(Debug)]
struct Stopped(Instant);

impl Clock for Stopped {
    fn now(&self) -> Instant {
        self.0
    }

    fn pause(&self, _: Duration, _: &Interrupt) {}
}

#[derive(Debug)]
struct Nobody;

impl Background for Nobody {
    fn spawn(&self, _: BackgroundTask) {}

    fn spawn_after(&self, _: Duration, _: BackgroundTask) {}
}

/// Resolves every name, to a file whose fileid is in the name. Handles have the length of those of
/// Curt's server.
struct Endless;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn fattr(kind: u32, fileid: u64) -> Vec<u8> {
    let mut out = words(&[kind, 0o644 | 0o111, 1, 1000, 1000]);
    for value in [4096_u64, 4096, 0, 7, fileid] {
        out.extend(value.to_be_bytes());
    }
    out.extend(words(&[1_700_000_001, 5, 1_700_000_002, 6, 1_700_000_003, 7]));
    out
}

impl Transport for Endless {
    fn call(&self, request: &RpcRequest<'_>, _: &Interrupt) -> Result<CallReply, CallError> {
        let mut arguments = Vec::new();
        request.copy_arguments(&mut arguments);
        let mut results = words(&[0]);
        match NfsProcedure::from_number(request.procedure).unwrap() {
            NfsProcedure::Getattr => results.extend(fattr(2, 1)),
            NfsProcedure::Lookup => {
                let handle_length = u32::from_be_bytes(*arguments.first_chunk().unwrap()) as usize;
                let name = &arguments[8 + handle_length..];
                let number: u64 = std::str::from_utf8(&name[..10]).unwrap().parse().unwrap();
                let mut handle = [0; 48];
                handle[..8].copy_from_slice(&number.to_be_bytes());
                results.extend(words(&[48]));
                results.extend(handle);
                results.extend(words(&[1]));
                results.extend(fattr(1, number));
                results.extend(words(&[1]));
                results.extend(fattr(2, 1));
            }
            NfsProcedure::Access => {
                results.extend(words(&[1]));
                let number = u64::from_be_bytes(arguments[4..12].try_into().unwrap());
                results.extend(if number == u64::MAX { fattr(2, 1) } else { fattr(1, number) });
                results.extend(words(&[0x1f]));
            }
            other => panic!("{other:?} is not asked"),
        }
        Ok(CallReply::from_results(results))
    }
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// A client of [`Endless`] whose cache does not expire during the test.
fn client() -> Superblock {
    let clock: Arc<dyn Clock> = Arc::new(Stopped(Instant::now()));
    let wire = Arc::new(RpcClient::new(Arc::new(Endless), Arc::clone(&clock)));
    let root = MountedRoot {
        handle: FileHandle::new(&[0xff; 48]).unwrap(),
        limits: Fsinfo::default(),
        path_limits: Pathconf::default(),
    };
    let environment = Environment { clock, background: Arc::new(Nobody), observer: None };
    let forever = TimeoutRange { min: Duration::from_secs(3600), max: Duration::from_secs(3600) };
    let cache = CacheOptions {
        access: AccessMode::Server,
        files: forever,
        fill: FillMode::Off,
        ..CacheOptions::default()
    };
    let behaviour = ClientOptions { cache, ..ClientOptions::default() };
    Superblock::new(&root, NfsV3::new(wire), RpcSecurity::sys(), &behaviour, &environment).unwrap()
}

// SEMANTICS: posix-7.
#[test]
fn a_million_known_names_fit_in_half_a_gibibyte() {
    let client = client();
    let me = Caller::new(1000, 1000, &[]);
    let top = client.root();
    let before = resident();
    // More names than fit: the bound holds, and entries are evicted.
    for number in 0..NAMES + 1000 {
        let name = format!("{number:010}");
        let LookupResult::Positive(found) = ops::lookup(&client.op(&me), top, name.as_bytes()).unwrap()
        else {
            panic!("{name}")
        };
        ops::access(&client.op(&me), found.id, 4).unwrap();
        // The kernel holds lookups of all inodes except the first ones, which are evicted.
        if number < 1000 {
            client.forget(found.id, 1);
        }
    }
    let (objects, present, _) = client.cached_counts();
    assert_eq!((objects as u64, present as u64), (NAMES + 1, NAMES));
    let taken = resident() - before;
    println!("{} bytes per name, {} MiB in all", taken / NAMES, taken >> 20);
    assert!(taken <= BYTES_MAX, "{} MiB for {NAMES} names", taken >> 20);
    let requests = client.counters().requests.total();
    for number in (1000..NAMES + 1000).step_by(1009) {
        let name = format!("{number:010}");
        let LookupResult::Positive(found) = ops::lookup(&client.op(&me), top, name.as_bytes()).unwrap()
        else {
            panic!("{name}")
        };
        ops::access(&client.op(&me), found.id, 4).unwrap();
        assert_eq!(ops::getattr(&client.op(&me), found.id).unwrap().attributes.fileid, number);
        client.forget(found.id, 1);
    }
    assert_eq!(client.counters().requests.total(), requests, "all of it from memory");
    // A kernel that was short of memory may still request forgotten inodes by number.
    client.set_used_by_kernel();
    for number in 0..NAMES + 1000 {
        client.forget(InodeId(InodeId::ROOT.0 + 1 + number), u64::MAX);
    }
    let taken = resident() - before;
    println!("{} bytes per name that a kernel has forgotten", taken / NAMES);
    assert!(taken <= BYTES_MAX, "{} MiB for {NAMES} names", taken >> 20);
    let by_id = |number| ops::lookup_id(&client.op(&me), InodeId(InodeId::ROOT.0 + 1 + number)).map(drop);
    let oldest = NAMES + 1000 - FORGOTTEN_MAX;
    assert_eq!((by_id(oldest), by_id(oldest - 1)), (Ok(()), Err(Errno::STALE)));
}
