//! Reading: small amounts are copied from the page cache, large ones are returned as a range of the
//! file for sendfile(2).
//!
//! The attributes of a result are read before the data. If the file changes in between, the reader
//! has newer data with an older time, and will notice; in the other order it would not. A read that
//! must not wait checks whether the data are in memory (`RWF_NOWAIT`, cachestat(2)); a file system
//! without support for this is recorded, and counts as slow.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use curt_observe::stages::{self, RequestStage};
use curt_types::Attributes;
use rustix::io::Errno;

use super::LocalVfs;
use super::data::{OFFSET_MAX, OpenAccess};
use super::file_cache::{DescriptorRequest, OpenLocalFile};
use super::open::{OpenDescriptor, OpenFailure};
use super::sys::{cached_pages, read_append, read_append_cached};
use crate::MayBlock;
use crate::caller::FsCred;
use crate::error::Error;
use crate::handle::NodeHandle;
use crate::result::{FetchOptions, FetchResult, FileRange, PostOpResult, ReadResult};

/// Minimum size in bytes for which a range is cheaper than a copy.
const PIECE_MIN: u64 = 16 << 10;

/// The methods that show whether data are in memory.
#[derive(Debug)]
pub(super) struct ReadSupport {
    /// Page size in bytes: read when a tree is opened, because the seccomp filter of serving
    /// threads forbids it.
    page: u64,
    /// The file system does not support RWF_NOWAIT. Relaxed, like the others: a thread that sees it
    /// late tries once more.
    without_nowait: AtomicBool,
    /// The kernel has no cachestat(2).
    without_cachestat: AtomicBool,
    /// A range of a file could not be sent.
    pub(super) without_ranges: Arc<AtomicBool>,
}

impl ReadSupport {
    pub(super) fn new() -> Self {
        Self {
            page: u64::try_from(rustix::param::page_size()).unwrap_or(4096),
            without_nowait: AtomicBool::new(false),
            without_cachestat: AtomicBool::new(false),
            without_ranges: Arc::default(),
        }
    }
}

/// The range of a read, and whether it reaches the end of the file.
struct ReadRange {
    offset: u64,
    count: u32,
    eof: bool,
}

impl ReadRange {
    fn of(offset: u64, count: u32, size: u64) -> Self {
        let left = size.saturating_sub(offset);
        Self {
            offset,
            count: u32::try_from(left).map_or(count, |left| left.min(count)),
            eof: left <= u64::from(count),
        }
    }
}

impl LocalVfs {
    pub(super) fn fetch_data(
        &self,
        caller: &FsCred<'_>,
        handle: &NodeHandle,
        offset: u64,
        count: u32,
        how: FetchOptions,
        data: &mut Vec<u8>,
    ) -> Option<PostOpResult<FetchResult>> {
        let opened = if how.wait {
            self.open_file(DescriptorRequest::new(caller, handle, OpenAccess::Read))
        } else {
            self.open_file_nowait(DescriptorRequest::new(caller, handle, OpenAccess::Read))?
        };
        let PostOpResult { attributes, value } = answer(opened, |file, attributes| {
            self.fetch_open(file, attributes.size, offset, count, how, data)
        });
        value.transpose().map(|value| PostOpResult { attributes, value })
    }

    /// Reads from an open file that had `size` bytes just before.
    fn fetch_open(
        &self,
        file: &OpenLocalFile,
        size: u64,
        offset: u64,
        count: u32,
        how: FetchOptions,
        data: &mut Vec<u8>,
    ) -> Result<Option<FetchResult>, Error> {
        let span = ReadRange::of(offset, count, size);
        let wait = how.wait || self.write_latency.may_block == MayBlock::Never;
        let as_range = how.sendfile
            && u64::from(span.count) >= PIECE_MIN
            && !self.read_support.without_ranges.load(Ordering::Relaxed);
        if as_range {
            if !wait && !self.all_cached(file.as_fd(), &span) {
                return Ok(None);
            }
            return Ok(Some(FetchResult::FileRange(FileRange {
                file: file.descriptor(),
                read: ReadResult { count: span.count, eof: span.eof },
                failed: Arc::clone(&self.read_support.without_ranges),
            })));
        }
        if wait || span.count == 0 {
            return read_open(file.as_fd(), size, offset, count, data)
                .map(|read| Some(FetchResult::Copied(read)));
        }
        self.read_cached(file.as_fd(), &span, data)
    }

    /// Reads from the page cache; `None` if any of the data are not there.
    fn read_cached(
        &self,
        file: BorrowedFd<'_>,
        span: &ReadRange,
        data: &mut Vec<u8>,
    ) -> Result<Option<FetchResult>, Error> {
        if self.read_support.without_nowait.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let wanted = usize::try_from(span.count).map_err(|_| Errno::INVAL)?;
        let start = data.len();
        let _stage = stages::enter(RequestStage::FileSystem, "preadv2");
        match read_append_cached(file, span.offset, wanted, data) {
            Ok(got) if got == wanted => {
                Ok(Some(FetchResult::Copied(ReadResult { count: span.count, eof: span.eof })))
            }
            Ok(_) => {
                data.truncate(start);
                Ok(None)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.read_support.without_nowait.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether all pages of a range are in the page cache, as far as known.
    fn all_cached(&self, file: BorrowedFd<'_>, span: &ReadRange) -> bool {
        if self.read_support.without_cachestat.load(Ordering::Relaxed) {
            return false;
        }
        let page = self.read_support.page;
        let end = span.offset + u64::from(span.count);
        match cached_pages(file, span.offset, end - span.offset) {
            Ok(pages) => pages >= end.div_ceil(page) - span.offset / page,
            Err(Errno::NOSYS) => {
                self.read_support.without_cachestat.store(true, Ordering::Relaxed);
                false
            }
            Err(_) => false,
        }
    }
}

fn answer<T>(
    opened: Result<OpenDescriptor, OpenFailure>,
    read: impl FnOnce(&OpenLocalFile, &Attributes) -> Result<T, Error>,
) -> PostOpResult<T> {
    match opened {
        Ok(OpenDescriptor { file, attributes }) => {
            PostOpResult { attributes: Some(attributes), value: read(&file, &attributes) }
        }
        Err(OpenFailure { attributes, error }) => PostOpResult { attributes, value: Err(error) },
    }
}

/// Reads from an open file that had `size` bytes just before.
fn read_open(
    file: BorrowedFd<'_>,
    size: u64,
    offset: u64,
    count: u32,
    data: &mut Vec<u8>,
) -> Result<ReadResult, Error> {
    if offset.saturating_add(u64::from(count)) > OFFSET_MAX && offset >= size {
        return Ok(ReadResult { count: 0, eof: true });
    }
    let wanted = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    let _stage = stages::enter(RequestStage::FileSystem, "pread");
    let got = read_append(file, offset, wanted, data)?;
    // The file has grown if more was read than its previous size; nothing is read if nothing was
    // requested.
    let end = got < wanted || offset + got as u64 == size || (wanted == 0 && offset > size);
    Ok(ReadResult { count: u32::try_from(got).unwrap_or(count), eof: end })
}
