//! The function of each operation.

use curt_proto::nfs4::{Nfs4Operation, NfsStat4};
use curt_xdr::Decoder;

use super::{Compound, Outcome};

/// Executes an operation: decodes its arguments and appends the body of its result, without its
/// number and status. What it appends before it fails with
/// [`OpFailure::Status`](super::OpFailure::Status) is dropped.
pub(crate) type OperationFn =
    for<'r, 'c> fn(&mut Compound<'r, 'c>, &mut Decoder<'r>, &mut Vec<u8>) -> Outcome;

/// The function of an operation. The dispatcher calls those of supported ones only.
pub(super) const fn function(operation: Nfs4Operation) -> OperationFn {
    match operation {
        Nfs4Operation::Access => super::access::access,
        Nfs4Operation::BackchannelCtl => super::backchannel_ctl::backchannel_ctl,
        Nfs4Operation::BindConnToSession => super::bind_conn_to_session::bind_conn_to_session,
        Nfs4Operation::Close => super::close::close,
        Nfs4Operation::Commit => super::commit::commit,
        Nfs4Operation::Create => super::create::create,
        Nfs4Operation::CreateSession => super::create_session::create_session,
        Nfs4Operation::Delegreturn => super::delegreturn::delegreturn,
        Nfs4Operation::DestroyClientid => super::destroy_clientid::destroy_clientid,
        Nfs4Operation::DestroySession => super::destroy_session::destroy_session,
        Nfs4Operation::ExchangeId => super::exchange_id::exchange_id,
        Nfs4Operation::FreeStateid => super::free_stateid::free_stateid,
        Nfs4Operation::GetDirDelegation => super::get_dir_delegation::get_dir_delegation,
        Nfs4Operation::Getattr => super::getattr::getattr,
        Nfs4Operation::Getfh => super::getfh::getfh,
        Nfs4Operation::Link => super::link::link,
        Nfs4Operation::Lock => super::lock::lock,
        Nfs4Operation::Lockt => super::lock::lockt,
        Nfs4Operation::Locku => super::lock::locku,
        Nfs4Operation::Lookup => super::lookup::lookup,
        Nfs4Operation::Lookupp => super::lookup::lookupp,
        Nfs4Operation::Nverify => super::verify::nverify,
        Nfs4Operation::Open => super::open::open,
        Nfs4Operation::OpenDowngrade => super::close::open_downgrade,
        Nfs4Operation::Putfh => super::putfh::putfh,
        Nfs4Operation::Putpubfh => super::putfh::putrootfh,
        Nfs4Operation::Putrootfh => super::putfh::putrootfh,
        Nfs4Operation::Read => super::read::read,
        Nfs4Operation::Readdir => super::readdir::readdir,
        Nfs4Operation::Readlink => super::readlink::readlink,
        Nfs4Operation::ReclaimComplete => super::reclaim_complete::reclaim_complete,
        Nfs4Operation::Remove => super::remove::remove,
        Nfs4Operation::Rename => super::rename::rename,
        Nfs4Operation::Restorefh => super::savefh::restorefh,
        Nfs4Operation::Savefh => super::savefh::savefh,
        Nfs4Operation::Secinfo => super::secinfo::secinfo,
        Nfs4Operation::SecinfoNoName => super::secinfo::secinfo_no_name,
        Nfs4Operation::Sequence => super::sequence::sequence,
        Nfs4Operation::SetSsv => super::set_ssv::set_ssv,
        Nfs4Operation::Setattr => super::setattr::setattr,
        Nfs4Operation::TestStateid => super::test_stateid::test_stateid,
        Nfs4Operation::Verify => super::verify::verify,
        Nfs4Operation::Write => super::write::write,
        _ => not_supported,
    }
}

/// Size of a stateid in a result, in bytes.
const STATEID: usize = 16;
/// Size of `change_info4`.
const CHANGE: usize = 20;
/// Maximum size of the set of attributes that were set, which has up to three words.
const ATTRIBUTES_SET: usize = 16;

/// The most bytes of the body of the result of an operation that changes something. It is executed
/// only if the reply has room for them, because a change that is made must be reported.
pub(super) const fn result_max(operation: Nfs4Operation) -> usize {
    match operation {
        Nfs4Operation::Close | Nfs4Operation::OpenDowngrade | Nfs4Operation::Locku => STATEID,
        // A lock that conflicts, with an owner without a name.
        Nfs4Operation::Lock => 32,
        Nfs4Operation::Commit => 8,
        Nfs4Operation::Write => 16,
        Nfs4Operation::Setattr => ATTRIBUTES_SET,
        Nfs4Operation::Link | Nfs4Operation::Remove => CHANGE,
        Nfs4Operation::Rename => 2 * CHANGE,
        Nfs4Operation::Create => CHANGE + ATTRIBUTES_SET,
        // With a delegation, whose ACL entry names nobody.
        Nfs4Operation::Open => STATEID + CHANGE + 4 + ATTRIBUTES_SET + 40,
        // With three empty sets of notifications and attributes.
        Nfs4Operation::GetDirDelegation => 12 + STATEID + 12,
        // Two channels.
        Nfs4Operation::CreateSession => 24 + 2 * 28,
        // A session, the direction, and whether there is RDMA.
        Nfs4Operation::BindConnToSession => 24,
        // With the names of this server and its implementation.
        Nfs4Operation::ExchangeId => 128,
        // They have none, or change nothing.
        _ => 0,
    }
}

fn not_supported<'r>(_: &mut Compound<'r, '_>, _: &mut Decoder<'r>, _: &mut Vec<u8>) -> Outcome {
    Err(NfsStat4::Notsupp.into())
}
