//! One call of version 3 as a test's client makes it.

use curt_rpc::auth::{Credential, Groups, MachineName, SysCredential};
use curt_rpc::client::{Interrupt, Request, Transport};
use curt_xdr::Encode;

/// What the server answers to a call of a user and group, which has to succeed; at most 4 KiB.
pub(crate) fn call(
    transport: &dyn Transport,
    (uid, gid): (u32, u32),
    (program, procedure): (u32, u32),
    arguments: &(dyn Encode + Sync),
) -> Vec<u8> {
    let credential = Credential::Sys(SysCredential {
        machine_name: MachineName::new(b"test"),
        uid,
        gid,
        groups: Groups::first_of(&[]),
    });
    let request = Request {
        program,
        version: 3,
        procedure,
        credential: &credential,
        arguments,
        bulk: &[],
        results_max: 4096,
    };
    let reply = transport.call(&request, &Interrupt::never());
    reply.unwrap().results().to_vec()
}
