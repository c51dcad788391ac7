//! The look-up of a program's port: PMAPPROC_GETPORT of version 2 (IPv4 only), RPCBPROC_GETADDR of
//! versions 3 and 4 (RFC 1833 sections 2.2.1 and 3.2).

use std::net::IpAddr;

use curt_xdr::{DecodeError, Encode, Opaque, decode_all};

use super::{
    Mapping, NETID_TCP, NETID_TCP6, NETID_UDP, NETID_UDP6, PORT, PROTOCOL_TCP, PROTOCOL_UDP, Rpcb,
    RpcbindVersion, UniversalAddress, format_universal_address, parse_universal_address,
};

/// How a service receives calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl IpProtocol {
    /// Its number in a [`Mapping`].
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Tcp => PROTOCOL_TCP,
            Self::Udp => PROTOCOL_UDP,
        }
    }

    /// Its network identifier for the family of `address`.
    #[must_use]
    pub const fn netid(self, address: IpAddr) -> &'static [u8] {
        match (self, address) {
            (Self::Tcp, IpAddr::V4(_)) => NETID_TCP,
            (Self::Tcp, IpAddr::V6(_)) => NETID_TCP6,
            (Self::Udp, IpAddr::V4(_)) => NETID_UDP,
            (Self::Udp, IpAddr::V6(_)) => NETID_UDP6,
        }
    }
}

/// The service whose port is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLookup {
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// How it receives calls.
    pub protocol: IpProtocol,
}

/// Encoded arguments of a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupArguments(Vec<u8>);

impl Encode for LookupArguments {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

impl PortLookup {
    /// The arguments of the look-up at the portmapper of `host`.
    #[must_use]
    pub fn arguments(self, rpcbind: RpcbindVersion, host: IpAddr) -> LookupArguments {
        let Self { program, version, protocol } = self;
        let mut out = Vec::new();
        match rpcbind {
            RpcbindVersion::Portmap2 => {
                Mapping { program, version, protocol: protocol.number(), port: 0 }.encode(&mut out);
            }
            RpcbindVersion::Rpcbind3 | RpcbindVersion::Rpcbind4 => {
                let reached = format_universal_address((host, PORT).into());
                let opaque = |bytes| Opaque::new(bytes).unwrap_or_default();
                let (netid, address) = (opaque(protocol.netid(host)), opaque(reached.as_bytes()));
                Rpcb { program, version, netid, address, owner: Opaque::default() }.encode(&mut out);
            }
        }
        LookupArguments(out)
    }

    /// The port in the results of a look-up; `None`: the service is not registered.
    ///
    /// # Errors
    /// The results are malformed.
    pub fn port(rpcbind: RpcbindVersion, results: &[u8]) -> Result<Option<u16>, DecodeError> {
        let port = match rpcbind {
            RpcbindVersion::Portmap2 => {
                let port: u32 = decode_all(results)?;
                u16::try_from(port).map_err(|_| DecodeError::BadValue { name: "a port", value: port })?
            }
            RpcbindVersion::Rpcbind3 | RpcbindVersion::Rpcbind4 => {
                let UniversalAddress(universal) = decode_all(results)?;
                if universal.is_empty() {
                    return Ok(None);
                }
                let length = u32::try_from(universal.len()).unwrap_or(u32::MAX);
                let address = parse_universal_address(universal.bytes());
                let name = "a universal address of so many bytes";
                address.ok_or(DecodeError::BadValue { name, value: length })?.port()
            }
        };
        Ok(Some(port).filter(|port| *port != 0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const LOOKUP: PortLookup = PortLookup { program: 100_021, version: 4, protocol: IpProtocol::Udp };

    fn encoded(value: &dyn Encode) -> Vec<u8> {
        let mut out = Vec::new();
        value.encode(&mut out);
        out
    }

    #[test]
    fn a_look_up_names_the_service_and_the_family_by_which_the_portmapper_is_reached() {
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let arguments = encoded(&LOOKUP.arguments(RpcbindVersion::Portmap2, here));
        let mapping = Mapping { program: 100_021, version: 4, protocol: PROTOCOL_UDP, port: 0 };
        assert_eq!(decode_all::<Mapping>(&arguments).unwrap(), mapping);
        let there = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let arguments = encoded(&LOOKUP.arguments(RpcbindVersion::Rpcbind4, there));
        let binding: Rpcb<'_> = decode_all(&arguments).unwrap();
        assert_eq!((&*binding.netid, &*binding.address), (NETID_UDP6, &b"::1.0.111"[..]));
    }

    #[test]
    fn a_port_is_decoded_and_nonsense_is_refused() {
        let port = |port: u32| PortLookup::port(RpcbindVersion::Portmap2, &encoded(&port));
        assert_eq!((port(0).unwrap(), port(2049).unwrap()), (None, Some(2049)));
        assert!(port(65_536).is_err());
        let address = |text: &[u8]| {
            let address = UniversalAddress(Opaque::new(text).unwrap());
            PortLookup::port(RpcbindVersion::Rpcbind3, &encoded(&address))
        };
        assert_eq!((address(b"").unwrap(), address(b"10.0.0.1.8.1").unwrap()), (None, Some(2049)));
        assert_eq!(address(b"::.0.0").unwrap(), None);
        assert!(address(b"10.0.0.1").is_err());
    }
}
