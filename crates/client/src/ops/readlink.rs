//! READLINK: the target of a symbolic link, cached while the link's attributes are valid.

use std::sync::Arc;

use curt_observe::ClientCounter;
use curt_types::FileKind;
use rustix::io::Errno;

use crate::{
    errno,
    identity::InodeId,
    inode::{
        Inode,
        type_state::{CachedLinkText, TypeState},
    },
    op::Op,
    ops::getattr,
};

/// The target of a symbolic link, from the cache while the link's attributes are valid.
///
/// # Errors
/// EINVAL if the object is not a symbolic link; those of READLINK and GETATTR.
pub fn readlink(op: &Op<'_>, id: InodeId) -> Result<Box<[u8]>, Errno> {
    let inode = op.sb.find_inode(id)?;
    if let Some(text) = cached_link_text(op, &inode)? {
        return Ok(text);
    }
    let answer = op.protocol().readlink(op.rpc_caller(), inode.handle()).map_err(errno::of_call)?;
    let sent_at = op.sb.core.moment(answer.sent_at);
    let adopted =
        answer.attributes.as_ref().is_some_and(|attributes| inode.absorb(attributes, sent_at).adopted);
    let text = answer.outcome.map_err(|status| inode.note_failed_status(status))?;
    let mut facts = inode.facts();
    let is_link = facts.state.facts().is_some_and(|known| known.kind == FileKind::Symlink);
    if let (true, true, Some(epoch)) = (is_link, adopted, facts.contents()) {
        facts.by_type = TypeState::Link(Box::new(CachedLinkText { text: text.clone(), epoch }));
    }
    Ok(text)
}

fn cached_link_text(op: &Op<'_>, inode: &Arc<Inode>) -> Result<Option<Box<[u8]>>, Errno> {
    if !matches!(inode.facts().by_type, TypeState::Link(_)) {
        return Ok(None);
    }
    let is_believed = || inode.facts().can_be_served(op.time(), &op.options);
    if is_believed() {
        op.sb.count(ClientCounter::AttrHit);
    } else {
        getattr::revalidate(op, inode)?;
    }
    let facts = inode.facts();
    let TypeState::Link(link) = &facts.by_type else {
        return Ok(None);
    };
    Ok((facts.contents() == Some(link.epoch)).then(|| link.text.clone()))
}
