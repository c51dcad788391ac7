//! From an inode back to a name: for log lines alone, as it looks at every name.

use super::DentryCache;
use crate::identity::InodeId;

impl DentryCache {
    /// A directory and the name in it that leads to `child`; `None` if no such name is kept.
    pub(crate) fn origin(&self, child: InodeId) -> Option<(InodeId, Vec<u8>)> {
        let table = self.table.lock();
        table.index.iter().find_map(|index| {
            let slot = table.slab.slot(*index);
            let leads = slot.child.as_ref().is_some_and(|inode| inode.id() == child);
            leads.then(|| (slot.directory, slot.name.as_bytes().to_vec()))
        })
    }
}
