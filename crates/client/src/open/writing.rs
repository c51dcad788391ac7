//! Writing an open file, and making what was written durable.

use std::sync::Arc;

use rustix::io::Errno;

use super::OpenFile;
use crate::{
    client::{Client, OpContext},
    data::{DataError, WritePosition},
    identity::Caller,
    inode::Inode,
    protocol::v3,
};

impl Client {
    /// Writes `bytes` at `offset`, or at the file's end if it was opened with `append`. Returns how
    /// many were taken; they are on the server's disk after [`Client::flush`] or [`Client::fsync`].
    ///
    /// # Errors
    /// EBADF if it was not opened for writing; a failure of an earlier write that was not told yet;
    /// EINTR; EFBIG.
    pub fn write(&self, caller: &Caller, file: &OpenFile, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        if !file.flags.write {
            return Err(Errno::BADF);
        }
        if !file.flags.append {
            return self.write_at(caller, file, offset, bytes);
        }
        let asked = self.op_context(caller);
        let size = || self.size_now(&asked, &file.inode);
        let interrupt = &asked.interrupt;
        let taken = self.core.data.write(
            &file.owner,
            &file.data,
            WritePosition::End(&size),
            bytes,
            interrupt,
        );
        let taken = taken.map_err(|error| self.data_error(&file.inode, error))?;
        if taken.offset != offset
            && let Some(observer) = &self.core.observer
        {
            // A kernel has put its copy where it thought that the end was.
            observer.contents_changed(file.id(), None);
        }
        Ok(taken.count)
    }

    /// Writes `bytes` at `offset` whatever the file was opened with: pages that were changed
    /// through a mapping go back to where they belong by any open file.
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_at(
        &self,
        caller: &Caller,
        file: &OpenFile,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        if !file.flags.write {
            return Err(Errno::BADF);
        }
        let position = WritePosition::At(offset);
        let taken = self
            .core
            .data
            .write(&file.owner, &file.data, position, bytes, &caller.interrupt);
        taken
            .map(|taken| taken.count)
            .map_err(|error| self.data_error(&file.inode, error))
    }

    /// The server's size of the file, asked for now.
    fn size_now(&self, asked: &OpContext, inode: &Arc<Inode>) -> Result<u64, DataError> {
        let wire = &self.core.rpc;
        let answer = v3::getattr(wire, asked.rpc_caller(), inode.handle())?;
        let attributes = answer.outcome.map_err(DataError::Status)?;
        let _ = inode.absorb(&attributes, self.core.moment(answer.sent_at));
        Ok(inode
            .facts()
            .state
            .facts()
            .map_or(attributes.size, |known| known.size))
    }

    /// close(2) by one of those who share the open file: has its bytes on the server's disk, or
    /// says why not.
    ///
    /// # Errors
    /// A failure of a write that this open file was not told of; EINTR (the bytes are still written
    /// behind).
    pub fn flush(&self, caller: &Caller, file: &OpenFile) -> Result<(), Errno> {
        if !file.flags.write {
            return Ok(());
        }
        let result = self.core.data.flush(&file.owner, &file.data, &caller.interrupt);
        result.map_err(|error| self.data_error(&file.inode, error))
    }

    /// fsync(2) and fdatasync(2): has all bytes written so far on the server's disk, or says why
    /// not. `datasync` changes nothing: NFSv3 keeps a file's size and times with its data.
    ///
    /// # Errors
    /// As [`Client::flush`].
    pub fn fsync(&self, caller: &Caller, file: &OpenFile, datasync: bool) -> Result<(), Errno> {
        let _ = datasync;
        self.flush(caller, file)
    }
}
