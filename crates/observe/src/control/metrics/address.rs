//! The address for metrics.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// Prefix of an address that other machines can reach.
const PUBLIC: &str = "public:";

/// A unix socket, or an address and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// A socket in the file system, which only its owner may use.
    Socket(PathBuf),
    /// A port of an address. A non-local address needs the prefix `public:`.
    Port(SocketAddr),
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(Self::Socket(path))
            } else {
                Err("a socket needs an absolute path, such as unix:/run/curt/metrics.socket".to_owned())
            };
        }
        let (address, is_public) = match text.strip_prefix(PUBLIC) {
            Some(address) => (address, true),
            None => (text, false),
        };
        let address = match address.parse::<u16>() {
            Ok(port) if !is_public => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port),
            _ => address.parse().map_err(|_| {
                "takes a port of this machine, ADDRESS:PORT, or unix:/PATH, such as 9049 or 127.0.0.1:9049"
                    .to_owned()
            })?,
        };
        if !is_public && !address.ip().is_loopback() {
            return Err(format!(
                "others can reach {address}, and figures name paths: use an address of this machine alone, such as 127.0.0.1, or say {PUBLIC}{address}"
            ));
        }
        Ok(Self::Port(address))
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
            Self::Port(address) if address.ip().is_loopback() => address.fmt(f),
            Self::Port(address) => write!(f, "{PUBLIC}{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MetricsAddress;

    #[test]
    fn an_address_that_others_can_reach_must_be_allowed_explicitly() {
        let shown = |text: &str| text.parse::<MetricsAddress>().map(|address| address.to_string());
        assert_eq!(shown("9049").as_deref(), Ok("127.0.0.1:9049"));
        assert_eq!(shown("[::1]:9049").as_deref(), Ok("[::1]:9049"));
        assert_eq!(shown("unix:/run/x.socket").as_deref(), Ok("unix:/run/x.socket"));
        assert_eq!(shown("public:0.0.0.0:9049").as_deref(), Ok("public:0.0.0.0:9049"));
        for refused in ["0.0.0.0:9049", "10.1.2.3:9049", "[::]:9049"] {
            let why = shown(refused).err().unwrap_or_default();
            assert!(why.contains(&format!("public:{refused}")), "{refused}: {why}");
        }
        for nonsense in ["", "unix:", "unix:x", "localhost:1", "70000", "public:9049", "127.0.0.1"] {
            assert!(shown(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn what_is_shown_is_the_same_place_again() {
        for text in ["9049", "public:10.1.2.3:1", "unix:/a b", "127.0.0.2:9"] {
            let address = text.parse::<MetricsAddress>();
            let again = address.clone().map(|address| address.to_string().parse::<MetricsAddress>());
            assert_eq!(again, Ok(address));
        }
    }
}
