//! BIND_CONN_TO_SESSION (RFC 8881 section 18.34).
//!
//! Any connection may be used by the fore channel: without state protection, SEQUENCE associates
//! it ([`connection_association`](super::connection_association)).

use curt_proto::nfs4::{
    BindConnToSessionArgs4, BindConnToSessionOk4, ChannelDirFromClient, ChannelDirFromServer, NfsStat4,
};
use curt_xdr::{Decoder, Encode};

use super::operation_outcome::decoded;
use super::{Compound, Outcome};

pub(super) fn bind_conn_to_session<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    reply: &mut Vec<u8>,
) -> Outcome {
    let asked: BindConnToSessionArgs4 = decoded(arguments)?;
    let service = compound.request.service;
    let session = service.held.session(&asked.session)?;
    let wanted = match asked.direction {
        ChannelDirFromClient::Fore => ChannelDirFromServer::Fore,
        ChannelDirFromClient::Back => ChannelDirFromServer::Back,
        ChannelDirFromClient::ForeOrBoth | ChannelDirFromClient::BackOrBoth => ChannelDirFromServer::Both,
    };
    let backchannel = compound.request.context.backchannel();
    let direction = match (wanted, backchannel.filter(|_| session.has_callback_security())) {
        (ChannelDirFromServer::Fore, _) => ChannelDirFromServer::Fore,
        (wanted, Some(connection)) => {
            session.bind_backchannel(connection);
            wanted
        }
        (_, None) if asked.direction == ChannelDirFromClient::ForeOrBoth => ChannelDirFromServer::Fore,
        (_, None) => return Err(NfsStat4::Inval.into()),
    };
    compound.associate(&asked.session);
    BindConnToSessionOk4 { session: asked.session, direction, rdma: false }.encode(reply);
    Ok(())
}
