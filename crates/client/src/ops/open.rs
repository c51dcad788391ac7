//! Opening files, and the validity of copies of their data outside this client.
//!
//! Owns the actions of close-to-open consistency: policy decides, the data half transfers the data.
//!
//! When a kernel invalidates its pages it also ignores the attributes in replies to earlier
//! requests (Linux, `fuse_change_attributes`). A reply that reports a smaller size must not be
//! among these, or the kernel keeps the old size. So for each file one thread at a time requests
//! the invalidation, and copies that were dropped after they became invalid are not dropped again.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use curt_observe::{Cause, ClientCounter, scope};
use curt_policy::{
    AccessReason, AccessView, OpenDecision, OpenIntent, OpenView,
    data::{PagesDecision, PagesLabel, decide_pages, decide_written_pages},
    open::{self as rules, FileAtOpen, OpenServed, OpenTime},
};
use curt_rpc::client::Interrupt;
use curt_types::{FileKind, SetAttributes};
use rustix::io::Errno;

use crate::{
    api::{InodeId, OpenFlags, PageCacheState},
    data::{DataOwner, OpenMode},
    inode::{Inode, InodeFlag, single_flight::InodeFlight, type_state::OpenedWith},
    open_file::{OpenFile, OpenFileLocks, OpenResult},
    ops::{
        close::OpenGuard,
        getattr::{self, SiblingAttributes},
        kernel_names, permission, setattr,
        steps::open_retry,
        steps::server_open::ServerOpenGuard,
    },
    superblock::{Op, Superblock},
};

fn intent(flags: OpenFlags) -> OpenIntent {
    OpenIntent {
        read: flags.read,
        write: flags.write,
        truncate: flags.truncate,
        create: false,
        direct: flags.direct,
        sync: flags.sync,
        execute: flags.execute,
    }
}

/// Opens an existing file. Data that other clients have written and closed are visible
/// (close-to-open), unless the options disable this.
///
/// # Errors
/// EACCES, EISDIR for writing a directory, ELOOP for a symbolic link, ENXIO for other types; those
/// of GETATTR, ACCESS and, with `truncate`, SETATTR.
pub fn open(op: &Op<'_>, id: InodeId, flags: OpenFlags) -> Result<OpenResult, Errno> {
    let inode = op.sb.find_inode(id)?;
    kernel_names::check_path(op, &inode)?;
    let came_back = open_retry::take_stale_open(op);
    if let Some(held) = &came_back {
        held.note_size(&inode);
    }
    let comes_back = came_back.is_none() && op.sb.is_used_by_kernel();
    let opened = open_inode(op, &inode, flags, comes_back);
    // A kernel retries the open once after ESTALE.
    if opened.as_ref().is_err_and(|error| *error == Errno::STALE) && came_back.is_none() {
        open_retry::note_stale_open(op, None);
    }
    opened
}

/// Opens `inode`. `comes_back`: the caller's kernel looks the name up again after ESTALE. It gets
/// ESTALE if the kernel may assume a size larger than the file's: the reply to a FUSE OPEN carries
/// no size, and only a reply with attributes makes the kernel reduce its size in time. Otherwise
/// reads up to the old end would return zeros, and appended data would be placed beyond the end.
pub(crate) fn open_inode(
    op: &Op<'_>,
    inode: &Arc<Inode>,
    flags: OpenFlags,
    comes_back: bool,
) -> Result<OpenResult, Errno> {
    let opening = OpenGuard::begin(op, inode)?;
    let kind = inode.lock().attributes.newest().map(|known| known.kind);
    let is_known_file = kind == Some(FileKind::Regular);
    let known_file =
        is_known_file.then(|| ServerOpenGuard::get(op, inode, flags, open_time(op, inode, flags)));
    let known_file = known_file.transpose()?;
    decide_open(op, inode, intent(flags))?;
    match inode.lock().attributes.newest().map(|known| known.kind) {
        Some(FileKind::Regular) => {}
        Some(FileKind::Directory) => return Err(Errno::ISDIR),
        Some(FileKind::Symlink) => return Err(Errno::LOOP),
        Some(_) | None => return Err(Errno::NXIO),
    }
    // A second attempt comes by a descriptor, not by the name.
    if comes_back || !op.sb.is_used_by_kernel() {
        inode.check_name()?;
    }
    let late = || ServerOpenGuard::get(op, inode, flags, open_time(op, inode, flags));
    let at_server = known_file.map_or_else(late, Ok)?;
    if comes_back && inode.has(InodeFlag::Shrunk) && !flags.truncate {
        op.sb.count(ClientCounter::OpenDataChanged);
        let copies_invalidated = drop_copies_to_look_up(op, inode);
        if !open_retry::note_stale_open(op, Some(copies_invalidated)) {
            inode.clear(InodeFlag::Shrunk);
        }
        return Err(Errno::STALE);
    }
    if flags.truncate {
        let set = SetAttributes { size: Some(0), ..SetAttributes::default() };
        let open = flags.write.then(|| op.identity.open_context());
        setattr::set_attributes(op, inode, &set, open.as_ref())?;
    }
    Ok(opened(op, opening, at_server, flags))
}

/// Registers a granted open.
pub(crate) fn opened(
    op: &Op<'_>,
    opening: OpenGuard<'_>,
    at_server: ServerOpenGuard<'_>,
    flags: OpenFlags,
) -> OpenResult {
    let was_read = at_server.keep();
    let inode = opening.inode();
    let data = check_page_cache(op.sb, inode);
    if data == PageCacheState::Changed {
        op.sb.count(ClientCounter::OpenDataChanged);
    }
    let copies_invalidated = opening.complete(|file| {
        if flags.write {
            file.write_opens += 1;
        }
        match file.opened_ahead.take().filter(|_| !flags.write) {
            Some(OpenedWith::Lookup) => {
                op.sb.core.speculations(|benefits| benefits.lookup_opens.record_use());
                op.sb.count(ClientCounter::LookupOpenUsed);
            }
            Some(OpenedWith::Sibling) => {
                op.sb.core.speculations(|benefits| benefits.sibling_opens.record_use());
                op.sb.count(ClientCounter::SiblingOpenUsed);
            }
            None => {}
        }
        file.first_user.get_or_insert(op.identity.number);
        file.copies_invalidated
    });
    let mode = OpenMode { direct: flags.direct, synchronous: flags.sync };
    let context = Arc::new(op.identity.open_context());
    let open_data = op.sb.core.data.open(inode.data(), context, mode);
    let file = OpenFile {
        inode: Arc::clone(inode),
        owner: Arc::clone(inode) as Arc<dyn DataOwner>,
        identity: Arc::clone(&op.identity),
        flags,
        data: open_data,
        copies_invalidated: AtomicU32::new(copies_invalidated),
        released: AtomicBool::new(false),
        read_at_open: AtomicBool::new(was_read),
        locks: OpenFileLocks::default(),
    };
    OpenResult { file: Arc::new(file), data }
}

/// Sends requests until the open is granted or refused.
pub(crate) fn decide_open(op: &Op<'_>, inode: &Arc<Inode>, intent: OpenIntent) -> Result<(), Errno> {
    op.sb.count(ClientCounter::OpenTotal);
    let mut why: Option<AccessReason> = None;
    for _ in op.rounds() {
        match open_decision(op, inode, intent) {
            OpenDecision::Serve(served) => {
                permission::count_allowed(op, inode, intent.needs(), why);
                inode.note_use();
                match served {
                    OpenServed::Confirmed => {}
                    OpenServed::Delegated => {
                        inode.lock().note_delegation_use();
                        op.sb.count(ClientCounter::OpenDelegated);
                    }
                    OpenServed::WithoutCloseToOpen => op.sb.count(ClientCounter::OpenNocto),
                    OpenServed::Sloppy => op.sb.count(ClientCounter::OpenCtoSloppy),
                }
                return Ok(());
            }
            OpenDecision::Revalidate => {
                op.sb.count(ClientCounter::OpenCtoGetattr);
                let _why = scope::with_cause(Cause::OpenCheck);
                // With strict close-to-open no other open can use attributes fetched by this one.
                let is_strict = op.options.close_to_open && op.options.sloppy_window().is_zero();
                let siblings =
                    if is_strict { SiblingAttributes::Nothing } else { SiblingAttributes::IfExpected };
                getattr::revalidate_with(op, inode, siblings)?;
            }
            OpenDecision::Ask(reason) => {
                permission::send_access(op, inode, reason)?;
                why = Some(reason);
            }
            OpenDecision::Deny => {
                permission::count_denied(op.sb, why);
                return Err(Errno::ACCESS);
            }
        }
    }
    Err(Errno::IO)
}

/// When the server learns of the open.
fn open_time(op: &Op<'_>, inode: &Inode, flags: OpenFlags) -> OpenTime {
    let is_written = inode.lock().by_type.file_if_any().is_some_and(|file| file.write_opens > 0);
    let file = FileAtOpen {
        size: inode.attributes().map_or(0, |known| known.size),
        read_max: op.sb.core.data.options().read_size,
        has_data: inode
            .data_if_any()
            .is_some_and(|data| data.pages_since().is_some() || data.has_unwritten()),
        is_delegated_by_open: !is_written
            && op.options.uses_delegations()
            && op.protocol().expects_delegations(),
    };
    let (intent, decision) = (intent(flags), open_decision(op, inode, intent(flags)));
    op.sb
        .core
        .speculations(|benefits| rules::decide_open_time(decision, intent, file, &mut benefits.open_reads))
}

pub(crate) fn open_decision(op: &Op<'_>, inode: &Inode, intent: OpenIntent) -> OpenDecision {
    let now = op.now();
    let written_here = inode.data_if_any().is_some_and(|data| data.has_unsent() || data.has_unwritten());
    let locked = inode.lock();
    let file = locked.by_type.file_if_any();
    let sent_at = locked.attributes.sent_at();
    let is_foreign = (intent.read || intent.execute)
        && file.is_some_and(|file| file.first_user.is_some_and(|first| first != op.identity.number));
    let closed_at = file.and_then(|file| file.closed_after_writing);
    let view = OpenView {
        kind: locked.attributes.newest().map(|known| known.kind),
        attributes: locked.freshness(op.time(), &op.options),
        age: sent_at.map_or(std::time::Duration::MAX, |sent_at| now.since(sent_at)),
        written_here: written_here || file.is_some_and(|file| file.write_opens > 0),
        closed_after_writing: closed_at.is_some_and(|closed| sent_at.is_none_or(|sent_at| sent_at < closed)),
        locking: locked.locking(now),
        access: AccessView { foreign_data: is_foreign, ..inode.access_view(&locked, &op.identity, now) },
    };
    drop(locked);
    rules::decide_open(&view, intent, &op.options)
}

/// Whether copies of the file's data, in this client and outside it, are still valid.
fn check_page_cache(sb: &Superblock, inode: &Inode) -> PageCacheState {
    let options = sb.core.options();
    let clock = sb.core.clocks.of(inode.fsid().unwrap_or(0));
    let since = inode.data_if_any().and_then(|data| data.pages_since());
    let mut locked = inode.lock();
    let pages = match (since, locked.contents()) {
        (None, _) if inode.data_if_any().is_some() => decide_written_pages(&options),
        (None, _) => PagesDecision::Keep,
        (Some(_), None) => PagesDecision::Drop,
        (Some(since), Some(epoch)) => {
            let label = PagesLabel { epoch, sent_at: sb.core.moment(since) };
            decide_pages(Some(label), &locked.attributes, locked.locking(sb.core.now()), &clock, &options)
        }
    };
    if pages == PagesDecision::Drop {
        locked.invalidate_copies();
        if let Some(data) = inode.data_if_any() {
            data.invalidate();
        }
    }
    let invalidated =
        locked.by_type.file_if_any().is_some_and(|file| file.copies_invalidated != file.copies_dropped);
    if !invalidated { PageCacheState::Same } else { PageCacheState::Changed }
}

/// Records that the copies of the file's data outside this client were dropped, as
/// [`crate::PageCacheState::Changed`] required of this open. Until then every open of the file gets
/// `Changed`.
pub fn copies_dropped(file: &OpenFile) {
    note_dropped(&file.inode, file.copies_invalidated.load(Relaxed));
}

/// Calls `drop_copies` to drop the copies that were invalid when `file` was opened, unless another
/// open has done so in the meantime. `anyway`: calls it in any case, because of other copies.
pub fn drop_copies(op: &Op<'_>, file: &OpenFile, anyway: bool, drop_copies: impl FnOnce()) {
    let is_needed = |invalidated: u32, dropped: u32| anyway || invalidated != dropped;
    drop_copies_of(op.sb, &file.inode, op.interrupt(), is_needed, drop_copies);
}

/// Drops copies before a kernel looks `inode` up again because it may assume a size larger than the
/// file's. Returns the count of invalidations at that time.
pub(crate) fn drop_copies_to_look_up(op: &Op<'_>, inode: &Arc<Inode>) -> u32 {
    let drop_copies = || {
        if let Some(observer) = &op.sb.core.observer {
            let size = inode.attributes().map_or(0, |known| known.size);
            observer.invalidate_pages(inode.id(), size);
        }
    };
    let is_needed = |invalidated, dropped| invalidated != dropped;
    drop_copies_of(op.sb, inode, op.interrupt(), is_needed, drop_copies)
}

fn drop_copies_of(
    sb: &Superblock,
    inode: &Arc<Inode>,
    interrupt: &Interrupt,
    is_needed: impl FnOnce(u32, u32) -> bool,
    drop_copies: impl FnOnce(),
) -> u32 {
    let wait = |other: Arc<InodeFlight>| other.wait(interrupt).is_some();
    // An interrupted thread does not wait for the others: it drops the copies concurrently.
    let owner = loop {
        match sb.drops.join(inode.id()) {
            Err(owner) => break Some(owner),
            Ok(other) if wait(Arc::clone(&other)) => {}
            Ok(_) => break None,
        }
    };
    let (invalidated, dropped) = {
        let mut locked = inode.lock();
        let file = locked.by_type.file();
        (file.copies_invalidated, file.copies_dropped)
    };
    if is_needed(invalidated, dropped) {
        drop_copies();
        note_dropped(inode, invalidated);
    }
    drop(owner);
    invalidated
}

/// Records that the copies invalidated up to the value `seen` of
/// [`crate::inode::type_state::LocalOpens::copies_invalidated`] are dropped.
fn note_dropped(inode: &Inode, seen: u32) {
    let mut locked = inode.lock();
    let file = locked.by_type.file();
    // Serial number arithmetic: the later of the two, across the wrap.
    if seen.wrapping_sub(file.copies_dropped) <= u32::MAX / 2 {
        file.copies_dropped = seen;
    }
}
