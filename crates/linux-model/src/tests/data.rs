//! Reading and writing.

use super::*;

#[test]
fn a_small_file_is_one_read_and_then_none() {
    let mut linux = with_file(CacheOptions::default(), 10_000);
    for _ in 0..3 {
        linux.read(OpenId(1), &file(10_000), 0, 65_536, seconds(0));
    }
    assert_eq!(sent(&mut linux), [LinuxRequest::DataRead]);
}

#[test]
fn a_sequential_reader_has_windows_up_to_128_kib() {
    let size = 1 << 20;
    let mut linux = with_file(CacheOptions::default(), size);
    for block in 0..256 {
        linux.read(OpenId(1), &file(size), block * 4096, 4096, seconds(0));
    }
    let requests = sent(&mut linux);
    let ahead = requests.iter().filter(|request| **request == LinuxRequest::ReadAhead).count();
    // 16 KiB, then 32 and 64, then 128 KiB each.
    assert_eq!((requests.len(), ahead), (11, 10), "{requests:?}");
    // A large request is sent as it is.
    let mut linux = with_file(CacheOptions::default(), size);
    linux.read(OpenId(1), &file(size), 0, size, seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::DataRead]);
}

#[test]
fn any_reads_bring_each_page_once() {
    for step in [1, 3, 7, 13, 64] {
        for count in [1, 5, 40] {
            let size = 200 * 4096;
            let mut linux = with_file(CacheOptions::default(), size);
            for block in (0..200).map(|block| block * step % 200) {
                linux.read(OpenId(1), &file(size), block * 4096, count * 4096, seconds(0));
            }
            sent(&mut linux);
            linux.read(OpenId(2), &file(size), 0, size, seconds(0));
            let again = sent(&mut linux);
            assert!(step % 2 == 0 || again.is_empty(), "step {step}, count {count}: {again:?}");
        }
    }
}

#[test]
fn after_its_attributes_were_set_a_file_is_read_again() {
    let size = 24 * 4096;
    let mut linux = with_file(CacheOptions::default(), size);
    linux.read(OpenId(1), &file(size), 0, size, seconds(0));
    linux.read(OpenId(2), &file(size), 0, size, seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::DataRead]);
    linux.set_attributes(&file(size), true, seconds(1));
    linux.read(OpenId(3), &file(size), 0, size, seconds(1));
    linux.read(OpenId(4), &file(size), 0, size, seconds(1));
    assert_eq!(sent(&mut linux), [LinuxRequest::SetAttributes, LinuxRequest::DataRead]);
}

#[test]
fn what_is_written_goes_at_close_and_is_committed_if_it_takes_more_than_one_write() {
    let mut linux = linux(CacheOptions::default());
    linux.look_up(CREDENTIAL, ROOT, b"new", None, LookupIntent::OpenOrMake, seconds(0));
    linux.make(LinuxRequest::CreateFile, ROOT, b"new", &file(0), false, seconds(0));
    linux.write(ObjectId(2), 0, 100, Writing::default(), seconds(0));
    linux.write(ObjectId(2), 100, 5000, Writing::default(), seconds(0));
    linux.make_durable(ObjectId(2), seconds(0));
    linux.make_durable(ObjectId(2), seconds(0));
    assert_eq!(
        sent(&mut linux),
        [LinuxRequest::Access, LinuxRequest::FirstUse, LinuxRequest::CreateFile, LinuxRequest::Write]
    );
    linux.write(ObjectId(2), 0, 200_000, Writing::default(), seconds(0));
    linux.make_durable(ObjectId(2), seconds(0));
    assert_eq!(
        sent(&mut linux),
        [
            LinuxRequest::Write,
            LinuxRequest::Write,
            LinuxRequest::Write,
            LinuxRequest::Write,
            LinuxRequest::Commit
        ]
    );
    // Own changes leave all cached state valid.
    linux.stat(&file(200_000), seconds(1));
    assert_eq!(sent(&mut linux), nothing());
}

#[test]
fn what_has_to_be_durable_goes_with_each_write() {
    let durable = Writing { durable: true, ..Writing::default() };
    let mut linux = with_file(CacheOptions::default(), 0);
    linux.write(ObjectId(2), 0, 100, durable, seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::Write]);
    linux.write(ObjectId(2), 100, 100_000, durable, seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::Write, LinuxRequest::Write, LinuxRequest::Commit]);
    linux.make_durable(ObjectId(2), seconds(0));
    assert_eq!(sent(&mut linux), nothing(), "nothing is left for close(2)");
    linux.options.sync = true;
    linux.write(ObjectId(2), 0, 100, Writing::default(), seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::Write], "as with the option sync");
}

#[test]
fn direct_reads_and_writes_go_past_the_page_cache() {
    let direct = Writing { direct: true, ..Writing::default() };
    let mut linux = with_file(CacheOptions::default(), 0);
    linux.write(ObjectId(2), 0, 10, Writing::default(), seconds(0));
    linux.write(ObjectId(2), 4096, 64 << 10, direct, seconds(0));
    assert_eq!(
        sent(&mut linux),
        [LinuxRequest::Write, LinuxRequest::Write],
        "what was written before goes first"
    );
    linux.write(ObjectId(2), 0, 65 << 10, direct, seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::Write, LinuxRequest::Write, LinuxRequest::Commit]);
    for _ in 0..2 {
        linux.read_direct(&file(3 << 20), 0, 2 << 20, seconds(0));
        assert_eq!(sent(&mut linux), [LinuxRequest::DataRead; 2]);
    }
    linux.read_direct(&file(3 << 20), 2 << 20, 2 << 20, seconds(0));
    assert_eq!(sent(&mut linux), [LinuxRequest::DataRead; 2], "and one to find the end");
    linux.read_direct(&file(3 << 20), 4 << 20, 4096, seconds(0));
    assert_eq!(sent(&mut linux), nothing(), "which is counted already");
}

#[test]
fn a_page_that_is_written_in_part_is_read_before_where_the_file_is_open_to_be_read() {
    let both = Writing { reads: true, ..Writing::default() };
    for (range, how, reads) in [
        ((10, 20), both, 1),
        ((10, 20), Writing::default(), 0),
        ((0, 4096), both, 0),
        // It covers all bytes of the last page.
        ((8192, 808), both, 0),
        ((8192, 807), both, 1),
        ((9000, 10), both, 1),
        ((20_000, 10), both, 0),
        ((100, 8100), both, 2),
    ] {
        let mut linux = with_file(CacheOptions::default(), 9000);
        linux.write(ObjectId(2), range.0, range.1, how, seconds(0));
        assert_eq!(sent(&mut linux), vec![LinuxRequest::DataRead; reads], "{range:?}");
        linux.write(ObjectId(2), range.0, range.1, how, seconds(0));
        assert_eq!(sent(&mut linux), nothing(), "{range:?} is kept");
    }
}

#[test]
fn pages_here_and_there_are_forgotten_beyond_the_limit() {
    const PAGE: u64 = 4096;
    const STRIDE: u64 = 1000;
    let limit = RANGES_MAX as u64;
    let size = (limit + 2) * STRIDE * PAGE;
    let mut linux = with_file(CacheOptions::default(), size);
    let read = |linux: &mut Linux, number: u64| {
        linux.read(OpenId(1), &file(size), number * STRIDE * PAGE, PAGE, seconds(0));
        linux.forgotten()
    };
    for number in 1..=limit {
        assert_eq!(read(&mut linux, number), 0, "{number}");
    }
    sent(&mut linux);
    assert_eq!((read(&mut linux, 1), sent(&mut linux)), (0, vec![]));
    assert_eq!(read(&mut linux, limit + 1), 1);
    // The last read pages remain, between two gaps.
    assert_eq!(linux.objects[&ObjectId(2)].pages.gaps(0, size / PAGE).len(), 2);
    for number in 0..=limit {
        linux.write(ObjectId(2), number * STRIDE * PAGE, PAGE, Writing::default(), seconds(0));
    }
    assert!(linux.objects[&ObjectId(2)].dirty.is_empty());
    let writes = sent(&mut linux).iter().filter(|one| **one == LinuxRequest::Write).count();
    assert_eq!(writes, RANGES_MAX + 1);
}
