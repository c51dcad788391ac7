//! Checks files that stay open, whose cached data the kernel serves without asking us.
//!
//! Owns the GETATTR that such a reader would have caused. The Linux client checks a file on a read
//! after its attributes have expired. A kernel that reads from its own pages does not tell us of
//! it, so each open file is checked as its attributes expire.

use curt_rpc::client::Interrupt;
use curt_trace::{Cause, scope};
use rustix::io::Errno;

use crate::{
    client::{Client, OpContext},
    open::OpenFile,
};

impl Client {
    /// Asks for the attributes of a file that stays open, if copies of its data may be kept
    /// elsewhere and what is known of it has expired; whether it asked. A change is told to the
    /// [`crate::Observer`]. Files opened to be executed are left alone: they are not read but
    /// mapped, which no client looks at again.
    ///
    /// # Errors
    /// Those of GETATTR; EINTR.
    pub fn revalidate_open_file(&self, file: &OpenFile, interrupt: &Interrupt) -> Result<bool, Errno> {
        let options = self.core.options();
        let flags = file.flags();
        let is_read = flags.read && !flags.execute && !flags.direct;
        // Without an attribute cache the reader itself asks each time.
        if !is_read || !options.attribute_cache {
            return Ok(false);
        }
        let inode = &file.inode;
        let has_copies = inode
            .data_if_any()
            .is_some_and(|data| data.may_be_copied() && !data.has_unsent());
        let asked = OpContext::new(&self.core, file.opener(), interrupt.clone(), self.core.now());
        if !has_copies || inode.facts().can_be_served(&asked, asked.began, &options) {
            return Ok(false);
        }
        let _about = scope::for_object(inode.id().0);
        let _why = scope::with_cause(Cause::Recheck);
        self.revalidate(&asked, inode)?;
        Ok(true)
    }
}
