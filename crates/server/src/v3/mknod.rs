//! MKNOD (RFC 1813 section 3.3.11).

use curt_proto::nfs3::{CreateOk, MknodArguments, MknodData, NfsResult, NfsStat3, Sattr, SpecData, WccData};
use curt_types::Device;
use curt_vfs::SpecialFile;

use crate::attributes::set_from_wire;
use crate::name::{NamePurpose, check};
use crate::request::{NfsRequest, Refusal};

pub(super) fn run(
    request: &mut NfsRequest<'_, '_>,
    arguments: &MknodArguments<'_>,
) -> Result<NfsResult<CreateOk, WccData>, Refusal> {
    let directory = request.resolve(&arguments.place.directory)?;
    let wanted = directory.writable().and_then(|()| {
        let name = check(arguments.place.name, NamePurpose::Create)?;
        let (special, set) = special(&arguments.what)?;
        let set = set_from_wire(set)?;
        Ok((name, special, set))
    });
    let (name, special, set) = match wanted {
        Ok(wanted) => wanted,
        Err(status) => return super::not_begun(&directory, status),
    };
    request.may_block(&directory);
    let changed = directory
        .vfs()
        .make_special(&directory.caller(), &directory.node, name, special, &set);
    Ok(super::created(&directory, name, changed))
}

/// The bits of a major and of a minor device number that Linux has.
const NUMBER_BITS: (u32, u32) = (12, 20);

/// What to make and with which attributes. A type that has a procedure of its own, or is unknown,
/// is refused, and so are numbers that would name another device.
fn special(what: &MknodData) -> Result<(SpecialFile, &Sattr), NfsStat3> {
    Ok(match what {
        MknodData::BlockDevice(set, device) => (SpecialFile::BlockDevice(numbers(*device)?), set),
        MknodData::CharacterDevice(set, device) => (SpecialFile::CharacterDevice(numbers(*device)?), set),
        MknodData::Socket(set) => (SpecialFile::Socket, set),
        MknodData::Fifo(set) => (SpecialFile::Fifo, set),
        MknodData::Other(_) => return Err(NfsStat3::Badtype),
    })
}

fn numbers(numbers: SpecData) -> Result<Device, NfsStat3> {
    if numbers.major >> NUMBER_BITS.0 != 0 || numbers.minor >> NUMBER_BITS.1 != 0 {
        return Err(NfsStat3::Inval);
    }
    Ok(numbers.into())
}
