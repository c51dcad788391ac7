//! Universal addresses: an IP address in text form and the port as two decimal bytes (RFC 5665
//! section 5.2.3).

use std::net::{IpAddr, SocketAddr};

/// `127.0.0.1` and port 2049 as `127.0.0.1.8.1`.
#[must_use]
pub fn format_universal_address(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

/// The reverse of [`format_universal_address`]; `None` for invalid text.
#[must_use]
pub fn parse_universal_address(text: &[u8]) -> Option<SocketAddr> {
    let text = core::str::from_utf8(text).ok()?;
    let (rest, low) = text.rsplit_once('.')?;
    let (ip, high) = rest.rsplit_once('.')?;
    let ip: IpAddr = ip.parse().ok()?;
    let port = u16::from_be_bytes([high.parse().ok()?, low.parse().ok()?]);
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn addresses_survive_both_families() {
        for (text, address) in [
            ("127.0.0.1.8.1", "127.0.0.1:2049"),
            ("0.0.0.0.0.111", "0.0.0.0:111"),
            ("::1.8.1", "[::1]:2049"),
            ("fe80::1:2.255.255", "[fe80::1:2]:65535"),
        ] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(format_universal_address(address), text);
            assert_eq!(parse_universal_address(text.as_bytes()), Some(address));
        }
    }

    #[test]
    fn what_is_no_address_is_none() {
        for text in [
            "",
            "1.2",
            "127.0.0.1",
            "127.0.0.1.8",
            "127.0.0.1.8.256",
            "127.0.0.1.-8.1",
            "::1.8.1.",
            "a.b.c.d.1.2",
        ] {
            assert_eq!(parse_universal_address(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_universal_address(b"\xff.1.2"), None);
    }
}
