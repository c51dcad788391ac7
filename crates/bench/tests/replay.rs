//! The recorded workloads through the client library against the server in one process, with a
//! scripted clock: the exact numbers of requests of each procedure.
//!
//! The script: the mount is a second old and the tree an hour when the replay begins; each request
//! takes 200 µs; page waits 20 µs before each operation and 1 s between two views, build spreads
//! its operations evenly over 3 s. The caller is not root, and more than one user is allowed, as
//! with a mount by root. If these numbers change, Curt's requests have changed: update the table if
//! this is intended, and say why in the commit.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod in_process;

use std::time::Duration;

use curt_bench::library::replay;
use curt_bench::trace::TraceOperation;
use curt_bench::workload::Workload;
use curt_client::{Caller, ClientOptions};
use curt_observe::CallCounts;
use curt_policy::{AccessMode, CacheOptions, FillMode, MountUsers};
use curt_proto::nfs3::NfsProcedure;

use in_process::{InProcessMount, InProcessServer};

const REQUEST: Duration = Duration::from_micros(200);
const VIEW_PAUSE: Duration = Duration::from_secs(1);
const OPERATION_PAUSE: Duration = Duration::from_micros(20);
const BUILD_LENGTH: Duration = Duration::from_secs(3);

/// The requests, by operation, in the protocol's order.
fn list(sent: &CallCounts) -> Vec<(&'static str, u64)> {
    let sent = sent.iter().filter(|(_, count)| *count > 0);
    sent.map(|(operation, count)| (operation.name(), count)).collect()
}

/// Replays without a wrong result and returns the requests since mounting.
#[track_caller]
fn sent(workload: Workload, cache: CacheOptions) -> CallCounts {
    let world = InProcessServer::new(&workload.tree()).unwrap();
    let behaviour = ClientOptions { cache, ..ClientOptions::default() };
    let mounted = world.mount(&behaviour, REQUEST, None).unwrap();
    replay_script(workload, &world, &mounted);
    let sent = mounted.requests();
    // The client's own counters equal the server's.
    assert_eq!(list(&mounted.client.counters().requests), list(&sent));
    sent
}

/// Whether the server grants delegations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delegations {
    None,
    Granted,
}

/// The requests of a replay over NFSv4.1, with those that mount and those that close what is open
/// at the end.
#[track_caller]
fn sent_v4(workload: Workload, cache: CacheOptions, delegations: Delegations) -> CallCounts {
    let world = InProcessServer::new(&workload.tree()).unwrap();
    if delegations == Delegations::Granted {
        world.delegate().unwrap();
    }
    let behaviour = ClientOptions { cache, ..ClientOptions::default() };
    let mounted = world.mount_v4(&behaviour, REQUEST).unwrap();
    replay_script(workload, &world, &mounted);
    world.clock().advance(VIEW_PAUSE);
    mounted.run_delayed();
    let sent = mounted.client.counters().requests;
    assert_eq!(sent.total(), mounted.compounds(), "the server has received as many");
    sent
}

/// Replays without a wrong result.
#[track_caller]
fn replay_script(workload: Workload, world: &InProcessServer, mounted: &InProcessMount) {
    let (tree, trace) = (workload.tree(), workload.trace());
    let caller = Caller::new(1000, 1000, &[]);
    let clock = world.clock();
    clock.advance(Duration::from_secs(1));
    let start = clock.passed();
    let total = u32::try_from(trace.operations_count()).unwrap();
    let mut done = 0;
    let outcome =
        replay(&mounted.client, &caller, &**clock, &trace, &tree, &mut |operation| match workload {
            Workload::Page => match operation {
                // There is no pause before the first view.
                TraceOperation::Page if done == 0 => {}
                TraceOperation::Page => {
                    clock.advance(VIEW_PAUSE);
                    mounted.run_delayed();
                }
                _ => {
                    clock.advance(OPERATION_PAUSE);
                    done += 1;
                }
            },
            Workload::Build => {
                clock.advance_to(start + BUILD_LENGTH * done / total);
                done += u32::try_from(operation.operations()).unwrap();
            }
        });
    assert_eq!(outcome.wrong, 0, "{:?}", outcome.described);
    assert_eq!(outcome.operations, trace.operations_count());
}

/// The options of a `mount` by root without options.
fn default() -> CacheOptions {
    CacheOptions { users: MountUsers::Many, ..CacheOptions::default() }
}

fn noaccesscheck() -> CacheOptions {
    CacheOptions { access: AccessMode::ModeBits, ..default() }
}

fn noaccesscheck_sloppycto() -> CacheOptions {
    CacheOptions { sloppy_open: Duration::from_secs(3), ..noaccesscheck() }
}

fn nonegnamecache() -> CacheOptions {
    CacheOptions { missing_name_lifetime: Duration::ZERO, ..noaccesscheck_sloppycto() }
}

/// The options with each name requested separately.
fn off(cache: CacheOptions) -> CacheOptions {
    CacheOptions { fill: FillMode::Off, ..cache }
}

#[test]
fn page_by_default_costs_less_than_linux() {
    let sent = sent(Workload::Page, default());
    assert!(sent.total() <= 9_000);
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 4445),
            ("LOOKUP", 268),
            ("ACCESS", 1124),
            ("READ", 1124),
            ("READDIRPLUS", 149),
            ("FSINFO", 1),
            ("PATHCONF", 1)
        ]
    );
}

#[test]
fn page_by_default_costs_less_than_linux_without_dirfill() {
    let sent = sent(Workload::Page, off(default()));
    assert!(sent.total() <= 9_700);
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 4447),
            ("LOOKUP", 1408),
            ("ACCESS", 1124),
            ("READ", 1124),
            ("FSINFO", 1),
            ("PATHCONF", 1)
        ]
    );
}

#[test]
fn page_with_noaccesscheck_sends_no_access() {
    let sent = sent(Workload::Page, noaccesscheck());
    assert_eq!(sent.value(NfsProcedure::Access), 0);
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 5556),
            ("LOOKUP", 233),
            ("READ", 1124),
            ("READDIRPLUS", 163),
            ("FSINFO", 1),
            ("PATHCONF", 1)
        ]
    );
}

#[test]
fn page_with_noaccesscheck_sends_no_access_without_dirfill() {
    let sent = sent(Workload::Page, off(noaccesscheck()));
    assert_eq!(sent.value(NfsProcedure::Access), 0);
    assert_eq!(
        list(&sent),
        [("GETATTR", 5558), ("LOOKUP", 1408), ("READ", 1124), ("FSINFO", 1), ("PATHCONF", 1)]
    );
}

#[test]
fn page_with_noaccesscheck_and_sloppycto_has_directories_answer_for_their_names() {
    let sent = sent(Workload::Page, noaccesscheck_sloppycto());
    assert_eq!(sent.value(NfsProcedure::Access), 0);
    assert!(sent.total() <= 1_800);
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 58),
            ("LOOKUP", 233),
            ("READ", 1124),
            ("READDIRPLUS", 301),
            ("FSINFO", 1),
            ("PATHCONF", 1)
        ]
    );
}

#[test]
fn page_without_dirfill_asks_about_files_when_they_expire() {
    let sent = sent(Workload::Page, off(noaccesscheck_sloppycto()));
    assert_eq!(sent.value(NfsProcedure::Access), 0);
    assert!(sent.total() <= 3_750);
    assert_eq!(
        list(&sent),
        [("GETATTR", 1119), ("LOOKUP", 1408), ("READ", 1124), ("FSINFO", 1), ("PATHCONF", 1)]
    );
}

#[test]
fn page_with_nonegnamecache_asks_for_each_missing_name_again() {
    let sent = sent(Workload::Page, nonegnamecache());
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 58),
            ("LOOKUP", 598),
            ("READ", 1124),
            ("READDIRPLUS", 301),
            ("FSINFO", 1),
            ("PATHCONF", 1)
        ]
    );
}

#[test]
fn page_with_nonegnamecache_asks_for_each_missing_name_again_without_dirfill() {
    let sent = sent(Workload::Page, off(nonegnamecache()));
    assert_eq!(
        list(&sent),
        [("GETATTR", 1119), ("LOOKUP", 1756), ("READ", 1124), ("FSINFO", 1), ("PATHCONF", 1)]
    );
}

#[test]
fn build_by_default_costs_less_than_linux() {
    let sent = sent(Workload::Build, default());
    assert!(sent.total() <= 24_200);
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 16992),
            ("LOOKUP", 5),
            ("ACCESS", 1481),
            ("READ", 1491),
            ("READDIRPLUS", 58),
            ("FSINFO", 1),
            ("PATHCONF", 1)
        ]
    );
}

#[test]
fn build_by_default_costs_less_than_linux_without_dirfill() {
    let sent = sent(Workload::Build, off(default()));
    assert!(sent.total() <= 24_200);
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 17133),
            ("LOOKUP", 1174),
            ("ACCESS", 1481),
            ("READ", 1491),
            ("READDIRPLUS", 57),
            ("FSINFO", 1),
            ("PATHCONF", 1)
        ]
    );
}

#[test]
fn build_with_noaccesscheck_and_sloppycto_looks_hardly_any_name_up() {
    let sent = sent(Workload::Build, noaccesscheck_sloppycto());
    assert_eq!(sent.value(NfsProcedure::Access), 0);
    assert!(sent.total() <= 1_800);
    assert!(sent.value(NfsProcedure::Lookup) <= 1_200);
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 179),
            ("LOOKUP", 5),
            ("READ", 1491),
            ("READDIRPLUS", 57),
            ("FSINFO", 1),
            ("PATHCONF", 1)
        ]
    );
}

#[test]
fn build_without_dirfill_looks_each_name_up_once() {
    let sent = sent(Workload::Build, off(noaccesscheck_sloppycto()));
    assert_eq!(sent.value(NfsProcedure::Access), 0);
    assert!(sent.total() <= 3_000);
    assert!(sent.value(NfsProcedure::Lookup) <= 1_200);
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 179),
            ("LOOKUP", 1174),
            ("READ", 1491),
            ("READDIRPLUS", 57),
            ("FSINFO", 1),
            ("PATHCONF", 1)
        ]
    );
}

#[test]
fn build_with_nonegnamecache_asks_for_each_missing_name_again() {
    let sent = sent(Workload::Build, nonegnamecache());
    assert!(sent.total() > 100_000);
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 202),
            ("LOOKUP", 148294),
            ("READ", 1491),
            ("READDIRPLUS", 125),
            ("FSINFO", 1),
            ("PATHCONF", 1)
        ]
    );
}

#[test]
fn build_with_nonegnamecache_asks_for_each_missing_name_again_without_dirfill() {
    let sent = sent(Workload::Build, off(nonegnamecache()));
    assert!(sent.total() > 100_000);
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 2178),
            ("LOOKUP", 148699),
            ("READ", 1491),
            ("READDIRPLUS", 57),
            ("FSINFO", 1),
            ("PATHCONF", 1)
        ]
    );
}

#[test]
fn page_over_v4_opens_and_reads_a_file_in_one_request() {
    let sent = sent_v4(Workload::Page, default(), Delegations::None);
    assert!(sent.total() <= 7_000);
    assert_eq!(
        list(&sent),
        [
            ("ACCESS", 13),
            ("GETATTR", 4433),
            ("LOOKUP", 269),
            ("OPEN", 1124),
            ("READDIR", 149),
            ("EXCHANGE_ID", 1),
            ("CREATE_SESSION", 1),
            ("SEQUENCE", 1),
            ("RECLAIM_COMPLETE", 1)
        ]
    );
}

#[test]
fn page_over_v4_with_noaccesscheck_and_sloppycto_opens_nothing_but_what_it_reads() {
    let sent = sent_v4(Workload::Page, noaccesscheck_sloppycto(), Delegations::None);
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 59),
            ("LOOKUP", 234),
            ("READ", 978),
            ("READDIR", 301),
            ("EXCHANGE_ID", 1),
            ("CREATE_SESSION", 1),
            ("SEQUENCE", 1),
            ("RECLAIM_COMPLETE", 1)
        ]
    );
    assert!(sent.total() <= 1_600);
}

#[test]
fn build_over_v4_with_noaccesscheck_and_sloppycto_opens_nothing_but_what_it_reads() {
    let sent = sent_v4(Workload::Build, noaccesscheck_sloppycto(), Delegations::None);
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 125),
            ("LOOKUP", 6),
            ("READ", 1489),
            ("READDIR", 58),
            ("EXCHANGE_ID", 1),
            ("CREATE_SESSION", 1),
            ("SEQUENCE", 2),
            ("RECLAIM_COMPLETE", 1)
        ]
    );
    assert!(sent.total() <= 1_800);
}

#[test]
fn page_with_delegations_asks_about_each_file_once() {
    let sent = sent_v4(Workload::Page, default(), Delegations::Granted);
    assert_eq!(
        list(&sent),
        [
            ("ACCESS", 1),
            ("GETATTR", 2),
            ("LOOKUP", 1111),
            ("OPEN", 151),
            ("READ", 16),
            ("READDIR", 31),
            ("EXCHANGE_ID", 1),
            ("CREATE_SESSION", 1),
            ("RECLAIM_COMPLETE", 1)
        ]
    );
    assert!(sent.total() <= 1_450);
}

#[test]
fn build_with_delegations_asks_about_each_file_once() {
    let sent = sent_v4(Workload::Build, default(), Delegations::Granted);
    // Of 177 directories that are listed, each is asked about as close-to-open requires: 53 with
    // their first names. 1,394 files are opened, most of them in the order of their directory.
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 125),
            ("LOOKUP", 11),
            ("OPEN", 408),
            ("READ", 5),
            ("READDIR", 58),
            ("EXCHANGE_ID", 1),
            ("CREATE_SESSION", 1),
            ("RECLAIM_COMPLETE", 1)
        ]
    );
    assert!(sent.total() <= 1_600);
}

/// An open that need not ask is sent with its READ all the same: the delegation, and the siblings
/// that are opened by the same request, save a READ of each.
#[test]
fn build_with_delegations_noaccesscheck_and_sloppycto_asks_about_each_file_once() {
    let sent = sent_v4(Workload::Build, noaccesscheck_sloppycto(), Delegations::Granted);
    assert_eq!(
        list(&sent),
        [
            ("GETATTR", 125),
            ("LOOKUP", 11),
            ("OPEN", 406),
            ("READ", 5),
            ("READDIR", 58),
            ("EXCHANGE_ID", 1),
            ("CREATE_SESSION", 1),
            ("RECLAIM_COMPLETE", 1)
        ]
    );
}
