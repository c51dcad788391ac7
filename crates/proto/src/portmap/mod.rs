//! The portmapper (RFC 1833): portmap version 2 and rpcbind versions 3 and 4, as far as a client or
//! a server of NFS uses them: look-up and registration.

mod port_lookup;
mod universal_address;

use curt_xdr::{Opaque, Xdr};

pub use port_lookup::{IpProtocol, LookupArguments, PortLookup};
pub use universal_address::{format_universal_address, parse_universal_address};

/// The RPC program number.
pub const PROGRAM: u32 = 100_000;
/// The registered port.
pub const PORT: u16 = 111;
/// The protocol number of TCP in a version 2 [`Mapping`].
pub const PROTOCOL_TCP: u32 = 6;
/// The protocol number of UDP in a version 2 [`Mapping`].
pub const PROTOCOL_UDP: u32 = 17;
/// The network identifier of TCP over IPv4.
pub const NETID_TCP: &[u8] = b"tcp";
/// The network identifier of TCP over IPv6.
pub const NETID_TCP6: &[u8] = b"tcp6";
/// The network identifier of UDP over IPv4.
pub const NETID_UDP: &[u8] = b"udp";
/// The network identifier of UDP over IPv6.
pub const NETID_UDP6: &[u8] = b"udp6";
/// Maximum length of a string in a [`Rpcb`], in bytes. The RFC sets no limit; the longest address
/// needs 47.
pub const STRING_MAX: usize = 255;

/// A version of the program. Procedures 0 to 3 have the same numbers in all three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RpcbindVersion {
    /// Portmap: IPv4 ports.
    Portmap2 = 2,
    /// Rpcbind: universal addresses.
    Rpcbind3 = 3,
    /// Rpcbind: the same for the procedures used here.
    Rpcbind4 = 4,
}

/// A procedure supported by this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortmapProcedure {
    /// Does nothing.
    Null = 0,
    /// Registers: [`Mapping`] or [`Rpcb`] in, bool out.
    Set = 1,
    /// Withdraws: [`Mapping`] or [`Rpcb`] in, bool out.
    Unset = 2,
    /// GETPORT or GETADDR: [`Mapping`] in and a port as u32 out (0: none), or [`Rpcb`] in and
    /// [`UniversalAddress`] out (empty: none).
    Lookup = 3,
}

/// A version 2 mapping. The port is ignored in a look-up, protocol and port in UNSET.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Mapping {
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// [`PROTOCOL_TCP`] or [`PROTOCOL_UDP`].
    pub protocol: u32,
    /// The port.
    pub port: u32,
}

/// A version 3 or 4 mapping (`rpcb`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Rpcb<'a> {
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The network, such as [`NETID_TCP`].
    pub netid: Opaque<'a, STRING_MAX>,
    /// The universal address; in a look-up empty, or the address at which rpcbind was reached.
    pub address: Opaque<'a, STRING_MAX>,
    /// The owner: in SET and UNSET the user's name.
    pub owner: Opaque<'a, STRING_MAX>,
}

/// GETADDR's result: a universal address, empty if there is no registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub struct UniversalAddress<'a>(pub Opaque<'a, STRING_MAX>);
