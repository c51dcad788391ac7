//! LINK: another name for a file.

use std::sync::Arc;

use curt_types::Fault;
use rustix::io::Errno;

use super::{NameChange, NameChangeOutcome, prove_change};
use crate::{
    api::FoundInode,
    client::{Client, OpContext},
    errno,
    identity::{Caller, InodeId},
    inode::Inode,
    protocol::v3,
};

impl Client {
    /// Gives the file `id` the further name `name` in `directory`.
    ///
    /// # Errors
    /// EEXIST, EXDEV, EMLINK, EACCES, EPERM, EROFS and the others of LINK.
    pub fn link(
        &self,
        caller: &Caller,
        id: InodeId,
        directory: InodeId,
        name: &[u8],
    ) -> Result<FoundInode, Errno> {
        let (inode, directory) = (self.find_inode(id)?, self.find_directory(directory)?);
        let asked = self.op_context(caller);
        self.check_new_name(name)?;
        let ended = self.link_at_server(&asked, &inode, &directory, name)?;
        let label = self.learn_own(&directory, name, Some(&inode), ended);
        let found = self.found(&directory, &inode, label)?;
        Ok(found)
    }

    /// Sends LINK and keeps what its reply tells of file and directory.
    pub(super) fn link_at_server(
        &self,
        asked: &OpContext,
        inode: &Arc<Inode>,
        directory: &Arc<Inode>,
        name: &[u8],
    ) -> Result<NameChangeOutcome, Errno> {
        let before = inode.attributes();
        let change = NameChange::begin(self, directory, name);
        let wire = &self.core.rpc;
        let answer = v3::link(wire, asked.rpc_caller(), inode.handle(), directory.handle(), name);
        let answer = answer.map_err(|error| {
            inode.distrust_attributes();
            errno::of_call(error)
        })?;
        let sent_at = self.core.moment(answer.sent_at);
        let ended = change.end(&answer.attributes.directory, &answer);
        match &answer.attributes.file {
            Some(after) => inode.absorb_attribute_change(after, sent_at),
            None => inode.distrust_attributes(),
        }
        match answer.outcome {
            Ok(()) => {
                prove_change(asked, directory, ended);
                Ok(ended)
            }
            Err(Fault::Exist) if self.is_own_link(asked, inode, before, directory, name, ended) => {
                prove_change(asked, directory, ended);
                Ok(ended)
            }
            Err(status) => Err(self.refused_change(asked, directory, name, status, ended)),
        }
    }
}
