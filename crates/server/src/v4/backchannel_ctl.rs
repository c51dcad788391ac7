//! BACKCHANNEL_CTL (RFC 8881 section 18.33).

use curt_proto::nfs4::{BackchannelCtlArgs4, NfsStat4};
use curt_xdr::Decoder;

use super::create_session::callback_security;
use super::operation_outcome::decoded;
use super::{Compound, Outcome};

pub(super) fn backchannel_ctl<'r>(
    compound: &mut Compound<'r, '_>,
    arguments: &mut Decoder<'r>,
    _reply: &mut Vec<u8>,
) -> Outcome {
    let asked: BackchannelCtlArgs4<'_> = decoded(arguments)?;
    let security = callback_security(&asked.callback_security).ok_or(NfsStat4::Inval)?;
    compound.slot()?.session().set_callback(asked.callback_program, security);
    Ok(())
}
