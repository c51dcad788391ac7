//! MKNOD (RFC 1813 section 3.3.11).

use curt_proto::nfs3::{Created, Device, MknodArguments, MknodData, Outcome, Sattr, Status, WccData};
use curt_vfs::Special;

use crate::attributes::set_from_wire;
use crate::name::{Purpose, check};
use crate::request::{Refusal, Request, os};
use crate::status;

pub(super) fn run(
    request: &mut Request<'_, '_>,
    arguments: &MknodArguments<'_>,
) -> Result<Outcome<Created, WccData>, Refusal> {
    let directory = request.resolve(&arguments.place.directory)?;
    let wanted = directory.writable().and_then(|()| {
        let name = check(arguments.place.name, Purpose::Make)?;
        let (special, set) = special(&arguments.what).ok_or(Status::Badtype)?;
        let set = set_from_wire(set).map_err(|errno| status::of_error(os(errno)))?;
        Ok((name, special, set))
    });
    let (name, special, set) = match wanted {
        Ok(wanted) => wanted,
        Err(status) => return super::not_begun(&directory, status),
    };
    request.may_wait(&directory);
    let changed = directory
        .vfs()
        .make_special(&directory.caller(), &directory.node, name, special, &set);
    Ok(super::created(&directory, name, changed))
}

/// What to make and with which attributes; none for a type that has a procedure of its own, or is unknown.
const fn special(what: &MknodData) -> Option<(Special, &Sattr)> {
    Some(match what {
        MknodData::BlockDevice(set, device) => (Special::BlockDevice(numbers(*device)), set),
        MknodData::CharacterDevice(set, device) => (Special::CharacterDevice(numbers(*device)), set),
        MknodData::Socket(set) => (Special::Socket, set),
        MknodData::Fifo(set) => (Special::Fifo, set),
        MknodData::Other(_) => return None,
    })
}

const fn numbers(device: Device) -> curt_vfs::Device {
    curt_vfs::Device {
        major: device.major,
        minor: device.minor,
    }
}
