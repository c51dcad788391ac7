//! Reading an open file: whether cached data may be served, and on whose behalf the rest is
//! requested.

use std::sync::Arc;

use curt_types::Access;
use rustix::io::Errno;

use super::OpenFile;
use crate::{
    client::{Client, OpContext},
    data::{DataError, ReadBytes, ReadTarget},
    identity::Caller,
    inode::Inode,
};

impl Client {
    /// Reads up to `count` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// EBADF if it was not opened for reading; those of READ; EINTR.
    pub fn read(
        &self,
        caller: &Caller,
        file: &OpenFile,
        offset: u64,
        count: usize,
    ) -> Result<ReadBytes, Errno> {
        let asked = self.begin_read(caller, file)?;
        let plane = &self.core.data;
        let result = plane.read(&file.owner, &file.data, offset, count, &asked.interrupt);
        result.map_err(|error| self.read_error(&asked, file, error))
    }

    /// As [`Client::read`], but has `target` given the bytes, perhaps on another thread. Those of
    /// large files may go there as they are received, and are kept nowhere else. It may return some
    /// 20 ms after the target was given them: meanwhile this thread receives what others read and
    /// gives it to their targets.
    ///
    /// # Errors
    /// As [`Client::read`]; the target may have been given the bytes of a read that ended with
    /// EINTR.
    pub fn read_to(
        &self,
        caller: &Caller,
        file: &OpenFile,
        offset: u64,
        count: usize,
        target: &Arc<dyn ReadTarget>,
    ) -> Result<(), Errno> {
        let asked = self.begin_read(caller, file)?;
        let plane = &self.core.data;
        let result = plane.read_to(&file.owner, &file.data, offset, count, &asked.interrupt, target);
        result.map_err(|error| self.read_error(&asked, file, error))
    }

    fn begin_read(&self, caller: &Caller, file: &OpenFile) -> Result<OpContext, Errno> {
        if !(file.flags.read || file.flags.execute || file.flags.write) {
            return Err(Errno::BADF);
        }
        let asked = self.op_context(caller);
        if !file.flags.direct {
            self.refresh_for_read(&asked, &file.inode)?;
        }
        Ok(asked)
    }

    fn read_error(&self, asked: &OpContext, file: &OpenFile, error: DataError) -> Errno {
        if let DataError::Status(status) = error {
            // READ is sent with the opener's credential.
            let identity = Arc::clone(&file.identity);
            let opener = OpContext::new(identity, asked.interrupt.clone(), asked.began);
            self.note_refusal(&opener, &file.inode, status, Access::READ, asked.began);
        }
        self.data_error(&file.inode, error)
    }

    /// Cached data of a file that stays open are trusted as long as its attributes are.
    fn refresh_for_read(&self, asked: &OpContext, inode: &Arc<Inode>) -> Result<(), Errno> {
        let Some(data) = inode.data_if_any() else {
            return Ok(());
        };
        if data.pages_since().is_none() || data.has_unsent() {
            return Ok(());
        }
        let now = self.core.now();
        let options = self.core.options();
        if inode.facts().can_be_served(asked, now, &options) {
            return Ok(());
        }
        self.revalidate(asked, inode)
    }
}
