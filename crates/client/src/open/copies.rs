//! Copies of a file's data that others keep, a kernel above all, and their end.
//!
//! A kernel that is told to drop what it has also ignores the attributes in all replies to what it
//! asked before (Linux, `fuse_change_attributes`). A reply that tells it a smaller size must not be
//! among these, or it takes the file for as large as before. So of each file one thread at a time
//! has copies dropped, and not again what was dropped since it became void.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use curt_rpc::client::Interrupt;

use super::OpenFile;
use crate::{
    client::{Client, OpContext},
    identity::Caller,
    inode::{InFlightCall, Inode},
};

impl Client {
    /// Whoever keeps copies of the file's data has dropped them, as [`crate::DataState::Changed`]
    /// had demanded of this open. Until then every open is told so.
    pub fn copies_dropped(&self, file: &OpenFile) {
        note_dropped(&file.inode, file.copies_invalidated.load(Relaxed));
    }

    /// Calls `drop_copies`, which has those copies dropped that were void when `file` was opened,
    /// unless another open has had that done meanwhile. `anyway`: there are others.
    pub fn drop_copies(&self, caller: &Caller, file: &OpenFile, anyway: bool, drop_copies: impl FnOnce()) {
        let is_needed = |void: u32, dropped: u32| anyway || void != dropped;
        self.drop_copies_of(&file.inode, &caller.interrupt, is_needed, drop_copies);
    }

    /// Has copies dropped before a kernel looks `inode` up because it may take it for larger than
    /// it is; how often copies had become void by then.
    pub(super) fn drop_copies_to_look_up(&self, asked: &OpContext, inode: &Arc<Inode>) -> u32 {
        let drop_copies = || {
            if let Some(observer) = &self.core.observer {
                let size = inode.attributes().map_or(0, |known| known.size);
                observer.copies_void(inode.id(), size);
            }
        };
        let is_needed = |void, dropped| void != dropped;
        self.drop_copies_of(inode, &asked.interrupt, is_needed, drop_copies)
    }

    fn drop_copies_of(
        &self,
        inode: &Arc<Inode>,
        interrupt: &Interrupt,
        is_needed: impl FnOnce(u32, u32) -> bool,
        drop_copies: impl FnOnce(),
    ) -> u32 {
        let wait = |other: Arc<InFlightCall>| other.wait(interrupt).is_some();
        // Who is interrupted does it beside the other.
        let turn = loop {
            match self.drops.join(inode.id()) {
                Err(turn) => break Some(turn),
                Ok(other) if wait(Arc::clone(&other)) => {}
                Ok(_) => break None,
            }
        };
        let (void, dropped) = {
            let mut facts = inode.facts();
            let file = facts.by_type.file();
            (file.copies_invalidated, file.copies_dropped)
        };
        if is_needed(void, dropped) {
            drop_copies();
            note_dropped(inode, void);
        }
        drop(turn);
        void
    }
}

/// Copies that had become void by the time that [`crate::inode::OpenState::copies_invalidated`] was
/// `seen` are dropped.
fn note_dropped(inode: &Inode, seen: u32) {
    let mut facts = inode.facts();
    let file = facts.by_type.file();
    // Serial numbers: the later of the two, across the wrap.
    if seen.wrapping_sub(file.copies_dropped) <= u32::MAX / 2 {
        file.copies_dropped = seen;
    }
}
