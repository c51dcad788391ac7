//! The requests of single operations, each with the rule of the kernel that it follows. Whole
//! workloads are compared with a kernel's counts in curt-bench.

mod client;
mod data;
mod listings;

use core::time::Duration;

use curt_policy::{CacheOptions, LookupCache, MonotonicTime, ReaddirplusMode, TimeoutRange};
use curt_types::FileKind;

use super::lookup::LookupIntent;
use super::ranges::RANGES_MAX;
use super::{CredentialId, Linux, LinuxRequest, ObjectId, OpenId, Options, ReportedObject, Writing};

const ROOT: ObjectId = ObjectId(1);
const CREDENTIAL: CredentialId = CredentialId(7);

fn seconds(seconds: u64) -> MonotonicTime {
    MonotonicTime::from_start(Duration::from_secs(seconds))
}

fn seen(id: u64, kind: FileKind, size: u64) -> ReportedObject {
    ReportedObject { id: ObjectId(id), kind, size, stamp: 0 }
}

fn file(size: u64) -> ReportedObject {
    seen(2, FileKind::Regular, size)
}

fn linux(cache: CacheOptions) -> Linux {
    Linux::new(options(cache), directory(), MonotonicTime::default())
}

fn directory() -> ReportedObject {
    seen(1, FileKind::Directory, 4096)
}

fn options(cache: CacheOptions) -> Options {
    Options {
        cache,
        read_size: 1 << 20,
        write_size: 64 << 10,
        list_size: 1 << 20,
        handle_size: 32,
        sync: false,
    }
}

/// A client that has looked `f` up, and has all access rights.
fn with_file(cache: CacheOptions, size: u64) -> Linux {
    let mut linux = linux(cache);
    linux.look_up(CREDENTIAL, ROOT, b"f", Some(&file(size)), LookupIntent::Use, seconds(0));
    linux.check_access(CREDENTIAL, ObjectId(2), seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::Access, LinuxRequest::FirstUse, LinuxRequest::Access]);
    linux
}

fn sent(linux: &mut Linux) -> Vec<LinuxRequest> {
    linux.take_sent()
}

fn nothing() -> [LinuxRequest; 0] {
    []
}

#[test]
fn attributes_expire_after_the_least_time_and_then_after_twice_that() {
    let mut linux = with_file(CacheOptions::default(), 10);
    let mut requests = Vec::new();
    for second in 0..200 {
        linux.stat(&file(10), seconds(second));
        if !sent(&mut linux).is_empty() {
            requests.push(second);
        }
    }
    // 3, then 6, 12, 24, 48, 60 and 60 seconds.
    assert_eq!(requests, [3, 9, 21, 45, 93, 153]);
}

#[test]
fn a_change_throws_the_time_back() {
    let mut linux = with_file(CacheOptions::default(), 10);
    for second in 0..12 {
        linux.stat(&file(10), seconds(second));
    }
    sent(&mut linux);
    let changed = ReportedObject { stamp: 1, ..file(11) };
    let mut requests = Vec::new();
    for second in 21..40 {
        linux.stat(&changed, seconds(second));
        if !sent(&mut linux).is_empty() {
            requests.push(second);
        }
    }
    assert_eq!(requests, [21, 24, 30]);
}

#[test]
fn an_open_asks_each_time_unless_the_name_was_looked_up_for_it_or_nocto() {
    let mut fresh = linux(CacheOptions::default());
    fresh.look_up(CREDENTIAL, ROOT, b"f", Some(&file(10)), LookupIntent::Open, seconds(0));
    assert_eq!(sent(&mut fresh), [LinuxRequest::Access, LinuxRequest::FirstUse]);
    fresh.look_up(CREDENTIAL, ROOT, b"f", Some(&file(10)), LookupIntent::Open, seconds(0));
    assert_eq!(sent(&mut fresh), [LinuxRequest::OpenCheck]);
    let mut nocto = with_file(CacheOptions { close_to_open: false, ..CacheOptions::default() }, 10);
    nocto.look_up(CREDENTIAL, ROOT, b"f", Some(&file(10)), LookupIntent::Open, seconds(1));
    assert_eq!(sent(&mut nocto), nothing());
}

#[test]
fn names_are_valid_while_their_directory_is_valid_and_unchanged() {
    let mut linux = with_file(CacheOptions::default(), 10);
    linux.look_up(CREDENTIAL, ROOT, b"no", None, LookupIntent::Use, seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::FirstUse]);
    for second in [1, 29] {
        linux.look_up(CREDENTIAL, ROOT, b"no", None, LookupIntent::Use, seconds(second));
        linux.look_up(CREDENTIAL, ROOT, b"f", Some(&file(10)), LookupIntent::Use, seconds(second));
        assert_eq!(sent(&mut linux), nothing(), "{second}");
    }
    // The directory's 30 seconds have passed; one request revalidates its access rights and both
    // names.
    linux.look_up(CREDENTIAL, ROOT, b"no", None, LookupIntent::Use, seconds(30));
    linux.look_up(CREDENTIAL, ROOT, b"f", Some(&file(10)), LookupIntent::Use, seconds(30));
    assert_eq!(sent(&mut linux), [LinuxRequest::AttributesExpired]);
    // Another client changes it: access rights and names are requested again once this is seen.
    linux.see(&ReportedObject { stamp: 1, ..directory() });
    linux.look_up(CREDENTIAL, ROOT, b"f", Some(&file(10)), LookupIntent::Use, seconds(200));
    linux.look_up(CREDENTIAL, ROOT, b"no", None, LookupIntent::Use, seconds(200));
    assert_eq!(
        sent(&mut linux),
        [
            LinuxRequest::AttributesExpired,
            LinuxRequest::Access,
            LinuxRequest::NameAgain,
            LinuxRequest::NameAgain
        ]
    );
}

#[test]
fn lookupcache_decides_which_names_are_valid() {
    for (names, missing, present) in
        [(LookupCache::All, 0, 0), (LookupCache::Positive, 1, 0), (LookupCache::None, 1, 1)]
    {
        let mut linux = with_file(CacheOptions { names, ..CacheOptions::default() }, 10);
        linux.look_up(CREDENTIAL, ROOT, b"no", None, LookupIntent::Use, seconds(0));
        sent(&mut linux);
        linux.look_up(CREDENTIAL, ROOT, b"no", None, LookupIntent::Use, seconds(0));
        assert_eq!(sent(&mut linux).len(), missing, "{names:?}");
        linux.look_up(CREDENTIAL, ROOT, b"f", Some(&file(10)), LookupIntent::Use, seconds(0));
        assert_eq!(sent(&mut linux).len(), present, "{names:?}");
    }
}

#[test]
fn noac_asks_each_time() {
    let mut linux = with_file(CacheOptions { attribute_cache: false, ..CacheOptions::default() }, 10);
    linux.stat(&file(10), seconds(0));
    linux.stat(&file(10), seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::AttributesExpired; 2]);
}

#[test]
fn refused_requests_are_counted() {
    let mut linux = with_file(CacheOptions::default(), 10);
    linux.refused(LinuxRequest::RemoveDirectory, ROOT, Some(b"d"), seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::RemoveDirectory]);
    linux.look_up(CREDENTIAL, ROOT, b"f", Some(&file(10)), LookupIntent::Use, seconds(1));
    assert_eq!(sent(&mut linux), nothing(), "nothing has changed");
    for again in [LinuxRequest::FirstUse; 2] {
        linux.look_up(CREDENTIAL, ROOT, b"new", None, LookupIntent::OpenOrMake, seconds(1));
        linux.refused(LinuxRequest::CreateFile, ROOT, Some(b"new"), seconds(1));
        assert_eq!(sent(&mut linux), [again, LinuxRequest::CreateFile]);
    }
    linux.write(ObjectId(2), 0, 100_000, Writing::default(), seconds(1));
    linux.fail_to_write(ObjectId(2), seconds(1));
    assert_eq!(sent(&mut linux), [LinuxRequest::Write; 2], "there is nothing to commit");
}

#[test]
fn what_is_made_exclusively_has_its_times_set() {
    let mut linux = linux(CacheOptions::default());
    linux.look_up(CREDENTIAL, ROOT, b"new", None, LookupIntent::Make, seconds(0));
    linux.make(LinuxRequest::CreateFile, ROOT, b"new", &file(0), true, seconds(0));
    assert_eq!(
        sent(&mut linux),
        [LinuxRequest::Access, LinuxRequest::CreateFile, LinuxRequest::SetAttributes]
    );
}

#[test]
fn a_removed_file_that_is_open_is_moved_aside_until_its_last_close() {
    let mut linux = with_file(CacheOptions::default(), 10);
    linux.opened(ObjectId(2), seconds(0));
    linux.unlink(ROOT, b"f", seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::FirstUse, LinuxRequest::Rename]);
    linux.closed(OpenId(1), ObjectId(2), seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::Remove]);
    linux.look_up(CREDENTIAL, ROOT, b"f", None, LookupIntent::Use, seconds(0));
    assert_eq!(sent(&mut linux), nothing(), "the name is known to be missing");
}

#[test]
fn a_moved_file_is_looked_at_again() {
    let mut linux = with_file(CacheOptions::default(), 10);
    linux.rename(ROOT, b"f", ROOT, b"g", seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::Rename]);
    linux.look_up(CREDENTIAL, ROOT, b"g", Some(&file(10)), LookupIntent::Use, seconds(0));
    linux.stat(&file(10), seconds(0));
    linux.look_up(CREDENTIAL, ROOT, b"f", None, LookupIntent::Use, seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::AttributesExpired]);
}

#[test]
fn changed_rights_are_checked_again() {
    let mut linux = with_file(CacheOptions::default(), 10);
    linux.set_attributes(&file(10), true, seconds(0));
    linux.check_access(CREDENTIAL, ObjectId(2), seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::SetAttributes, LinuxRequest::Access]);
    linux.set_attributes(&file(10), false, seconds(0));
    linux.check_access(CREDENTIAL, ObjectId(2), seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::SetAttributes]);
}

#[test]
fn a_link_is_read_once() {
    let mut linux = linux(CacheOptions::default());
    let link = seen(3, FileKind::Symlink, 4);
    linux.look_up(CREDENTIAL, ROOT, b"l", Some(&link), LookupIntent::Use, seconds(0));
    sent(&mut linux);
    linux.read_link(&link, seconds(0));
    linux.read_link(&link, seconds(1));
    assert_eq!(sent(&mut linux), [LinuxRequest::LinkTarget]);
}

#[test]
fn actimeo_holds_for_files_and_directories() {
    let ten = TimeoutRange { min: Duration::from_secs(10), max: Duration::from_secs(10) };
    let mut linux = with_file(CacheOptions { files: ten, directories: ten, ..CacheOptions::default() }, 10);
    for second in 0..10 {
        linux.look_up(CREDENTIAL, ROOT, b"f", Some(&file(10)), LookupIntent::Use, seconds(second));
        linux.stat(&file(10), seconds(second));
    }
    assert_eq!(sent(&mut linux), nothing());
    linux.look_up(CREDENTIAL, ROOT, b"f", Some(&file(10)), LookupIntent::Use, seconds(10));
    linux.stat(&file(10), seconds(10));
    assert_eq!(sent(&mut linux), [LinuxRequest::AttributesExpired; 2]);
}

#[test]
fn memory_is_bounded_and_its_use_is_reported() {
    const ENTRIES_MAX: usize = 100;
    let mut linux = linux(CacheOptions::default());
    linux.room = ENTRIES_MAX;
    let look = |linux: &mut Linux, number: usize| {
        let object = seen(number as u64 + 10, FileKind::Regular, 1);
        let name = number.to_string();
        linux.look_up(CREDENTIAL, ROOT, name.as_bytes(), Some(&object), LookupIntent::Use, seconds(0));
    };
    // The root is one of the objects.
    (0..ENTRIES_MAX - 1).for_each(|number| look(&mut linux, number));
    assert_eq!((linux.objects.len(), linux.forgotten()), (ENTRIES_MAX, 0));
    look(&mut linux, ENTRIES_MAX);
    assert_eq!((linux.objects.len(), linux.forgotten()), (2, 1));
    for number in 0..10 * ENTRIES_MAX {
        linux.look_up(CREDENTIAL, ROOT, number.to_string().as_bytes(), None, LookupIntent::Use, seconds(0));
        assert!(linux.names.len() <= ENTRIES_MAX && linux.objects.len() <= ENTRIES_MAX);
    }
    (0..10 * ENTRIES_MAX).for_each(|number| look(&mut linux, number));
    assert!(linux.forgotten() > 5);
}
