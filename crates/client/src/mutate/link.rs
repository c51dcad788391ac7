//! LINK: another name for a file.

use std::sync::Arc;

use curt_proto::nfs3::Status;
use rustix::io::Errno;

use super::{Ended, NameChange, prove_change};
use crate::{
    api::Found,
    client::{Asked, Client},
    errno,
    identity::{Caller, InodeId},
    inode::Inode,
    plan::v3,
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
    ) -> Result<Found, Errno> {
        let (inode, directory) = (self.held(id)?, self.held_directory(directory)?);
        let asked = self.asked(caller);
        self.check_new_name(name)?;
        let ended = self.link_at_server(&asked, &inode, (&directory, name))?;
        let label = self.learn_own(&directory, name, Some(&inode), ended);
        let found = self.found(&directory, &inode, label)?;
        Ok(found)
    }

    /// Sends LINK and keeps what its reply tells of file and directory.
    pub(super) fn link_at_server(
        &self,
        asked: &Asked,
        inode: &Arc<Inode>,
        (directory, name): (&Arc<Inode>, &[u8]),
    ) -> Result<Ended, Errno> {
        let before = inode.attributes();
        let change = NameChange::begin(self, directory, name);
        let wire = &self.core.wire;
        let answer = v3::link(wire, asked.asker(), inode.handle(), directory.handle(), name);
        let answer = answer.map_err(|error| {
            inode.doubt();
            errno::of_call(error)
        })?;
        let sent_at = self.core.moment(answer.sent_at);
        let ended = change.end(&answer.about.directory, &answer);
        match &answer.about.file {
            Some(after) => inode.absorb_attribute_change(after, sent_at),
            None => inode.doubt(),
        }
        match answer.outcome {
            Ok(()) => {
                prove_change(asked, directory, ended);
                Ok(ended)
            }
            Err(Status::Exist) if self.is_own_link(asked, inode, before, directory, name, ended) => {
                prove_change(asked, directory, ended);
                Ok(ended)
            }
            Err(status) => Err(self.refused_change(asked, (directory, name), status, ended)),
        }
    }
}
