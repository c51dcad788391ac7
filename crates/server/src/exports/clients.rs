//! The five kinds of clients in exports(5), and their precedence.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::pattern;

/// The machines that a client entry of exports(5) names. The order is that of precedence where
/// several match one machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientSpec {
    /// One machine by its address.
    Address(IpAddr),
    /// One machine by its name, in lower case.
    Host(String),
    /// A network.
    Network(IpNetwork),
    /// All machines whose names match a pattern with `*`, `?` or `[...]`, in lower case.
    Pattern(String),
    /// The machines of a netgroup (`@group`).
    Netgroup(String),
    /// All clients (`*`).
    Anyone,
}

/// A range of addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IpNetwork {
    address: IpAddr,
    bits: u8,
}

/// The kinds of clients, in order of precedence; a host's name and its address are one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientSpecKind {
    /// A machine by name or address.
    Host,
    /// A network.
    Network,
    /// A pattern of names.
    Pattern,
    /// A netgroup.
    Netgroup,
    /// All clients.
    Anyone,
}

impl fmt::Display for ClientSpecKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Host => "host",
            Self::Network => "network",
            Self::Pattern => "pattern of names",
            Self::Netgroup => "netgroup",
            Self::Anyone => "everybody",
        })
    }
}

/// Why a word is not a valid client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientSpecError {
    /// A network's address or mask is wrong.
    #[error("not a network: {0} (write 192.168.1.0/24, 192.168.1.0/255.255.255.0 or fd00::/64)")]
    Network(&'static str),
    /// A pattern of addresses.
    #[error("* and ? match names, not addresses: write a network, such as 192.168.1.0/24")]
    PatternOfAddresses,
    /// A class of characters without its end.
    #[error("missing ]")]
    Class,
    /// A lone `@`.
    #[error("a netgroup needs a name: @name")]
    Netgroup,
    /// Not a valid name of a netgroup.
    #[error("not a netgroup: {0:?} is not allowed in its name")]
    NetgroupName(char),
    /// A Kerberos pseudo client (`gss/krb5`).
    #[error("gss/ clients are not supported: write a host or *")]
    Gss,
    /// Not a valid name of a host.
    #[error("not a host name: {0:?} is not allowed")]
    Host(char),
    /// A quoted word that would be options without its quotes.
    #[error("a host name cannot begin with -")]
    Dash,
    /// Longer than the longest name of a host.
    #[error("too long for a host name (253 characters at most)")]
    Long,
}

/// The longest name of a host, in bytes (RFC 1035 section 2.3.4, without the root's dot).
const HOST_MAX: usize = 253;

impl ClientSpec {
    /// Parses a word of an exports file.
    ///
    /// # Errors
    /// [`ClientSpecError`].
    pub fn parse(word: &str) -> Result<Self, ClientSpecError> {
        if word.is_empty() || word == "*" {
            return Ok(Self::Anyone);
        }
        if word.len() > HOST_MAX {
            return Err(ClientSpecError::Long);
        }
        if word.starts_with('-') {
            return Err(ClientSpecError::Dash);
        }
        if let Some(group) = word.strip_prefix('@') {
            if group.is_empty() {
                return Err(ClientSpecError::Netgroup);
            }
            // A blank or a quote in a name shows that the line is mistyped.
            let in_group = |it: char| it.is_ascii_graphic() && !"\"#(),\\/@".contains(it);
            return match group.chars().find(|it| !in_group(*it)) {
                Some(wrong) => Err(ClientSpecError::NetgroupName(wrong)),
                None => Ok(Self::Netgroup(group.to_owned())),
            };
        }
        if word.starts_with("gss/") {
            return Err(ClientSpecError::Gss);
        }
        if let Some((address, mask)) = word.split_once('/') {
            return IpNetwork::parse(address, mask).map(Self::Network);
        }
        if let Some(address) = parse_address(word) {
            return Ok(Self::Address(address));
        }
        if word.contains(['*', '?', '[']) {
            return Self::parse_pattern(word);
        }
        match word.chars().find(|it| !may_be_in_a_name(*it)) {
            Some(wrong) => Err(ClientSpecError::Host(wrong)),
            None => Ok(Self::Host(word.to_ascii_lowercase())),
        }
    }

    fn parse_pattern(word: &str) -> Result<Self, ClientSpecError> {
        let of_addresses = |it: char| it.is_ascii_digit() || ".*?[]:-".contains(it);
        if word.chars().all(of_addresses) && word.contains(|it: char| it.is_ascii_digit()) {
            return Err(ClientSpecError::PatternOfAddresses);
        }
        if !pattern::is_whole(word) {
            return Err(ClientSpecError::Class);
        }
        let in_pattern = |it: char| may_be_in_a_name(it) || "*?[]^!".contains(it);
        match word.chars().find(|it| !in_pattern(*it)) {
            Some(wrong) => Err(ClientSpecError::Host(wrong)),
            None => Ok(Self::Pattern(word.to_ascii_lowercase())),
        }
    }

    /// The kind of the client; clients take precedence in the order of [`ClientSpecKind`].
    #[must_use]
    pub const fn kind(&self) -> ClientSpecKind {
        match self {
            Self::Address(_) | Self::Host(_) => ClientSpecKind::Host,
            Self::Network(_) => ClientSpecKind::Network,
            Self::Pattern(_) => ClientSpecKind::Pattern,
            Self::Netgroup(_) => ClientSpecKind::Netgroup,
            Self::Anyone => ClientSpecKind::Anyone,
        }
    }

    /// Whether a name service is needed to match it.
    #[must_use]
    pub const fn needs_names(&self) -> bool {
        matches!(self, Self::Host(_) | Self::Pattern(_) | Self::Netgroup(_))
    }
}

impl fmt::Display for ClientSpec {
    /// The client as written in exports(5).
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(formatter, "{address}"),
            Self::Host(name) | Self::Pattern(name) => formatter.write_str(name),
            Self::Network(network) => write!(formatter, "{}/{}", network.address, network.bits),
            Self::Netgroup(group) => write!(formatter, "@{group}"),
            Self::Anyone => formatter.write_str("*"),
        }
    }
}

impl IpNetwork {
    /// Parses a network: its address, and the prefix length or mask after the `/`. Bits of the
    /// address beyond the mask are ignored.
    fn parse(address: &str, mask: &str) -> Result<Self, ClientSpecError> {
        let address = parse_address(address).ok_or(ClientSpecError::Network("not an address"))?;
        let width = match address {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        };
        let plain = !mask.is_empty() && mask.len() <= 3 && mask.bytes().all(|it| it.is_ascii_digit());
        let bits = match mask.parse::<u8>() {
            Ok(bits) if plain && bits <= width => bits,
            Ok(_) => return Err(ClientSpecError::Network("not so many bits in an address")),
            Err(_) => bits_of_mask(address, mask)?,
        };
        let address = match address {
            IpAddr::V4(address) => {
                let kept = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from(u32::from(address) & kept))
            }
            IpAddr::V6(address) => {
                let kept = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from(u128::from(address) & kept))
            }
        };
        Ok(Self { address, bits })
    }

    /// Whether the network contains an address. An IPv4-mapped IPv6 address must be converted
    /// before.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let differing = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (u32::from(own) ^ u32::from(other)).leading_zeros(),
            (IpAddr::V6(own), IpAddr::V6(other)) => (u128::from(own) ^ u128::from(other)).leading_zeros(),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
        };
        differing >= u32::from(self.bits)
    }
}

/// The prefix length of a mask such as 255.255.255.0.
fn bits_of_mask(address: IpAddr, mask: &str) -> Result<u8, ClientSpecError> {
    let wrong = ClientSpecError::Network("not a mask");
    let mask = mask.parse::<IpAddr>().map_err(|_| wrong)?;
    let (ones, zeros, width) = match (address, mask) {
        (IpAddr::V4(_), IpAddr::V4(mask)) => {
            let mask = u32::from(mask);
            (mask.leading_ones(), mask.trailing_zeros(), 32)
        }
        (IpAddr::V6(_), IpAddr::V6(mask)) => {
            let mask = u128::from(mask);
            (mask.leading_ones(), mask.trailing_zeros(), 128)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {
            return Err(ClientSpecError::Network("the mask is of the other family"));
        }
    };
    if ones + zeros != width {
        return Err(ClientSpecError::Network("the mask has holes"));
    }
    u8::try_from(ones).map_err(|_| ClientSpecError::Network("not a mask"))
}

/// Parses an address; an IPv6 address may be in brackets.
fn parse_address(word: &str) -> Option<IpAddr> {
    let bare = word
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .filter(|inner| inner.contains(':'))
        .unwrap_or(word);
    bare.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

const fn may_be_in_a_name(it: char) -> bool {
    it.is_ascii_alphanumeric() || matches!(it, '.' | '-' | '_')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use proptest::prelude::*;

    use super::*;

    fn shown(word: &str) -> String {
        match ClientSpec::parse(word) {
            Ok(client) => format!("{:?} {client}", client.kind()),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn each_way_of_naming_a_client_is_known_by_its_form() {
        let rows = [
            ("", "Anyone *"),
            ("*", "Anyone *"),
            ("host", "Host host"),
            ("Host.Example.ORG", "Host host.example.org"),
            ("10.1.2.3", "Host 10.1.2.3"),
            ("fd00::1", "Host fd00::1"),
            ("[fd00::1]", "Host fd00::1"),
            ("::ffff:10.1.2.3", "Host 10.1.2.3"),
            ("10.1.2.3/8", "Network 10.0.0.0/8"),
            ("10.1.2.3/255.255.0.0", "Network 10.1.0.0/16"),
            ("0.0.0.0/0", "Network 0.0.0.0/0"),
            ("10.1.2.3/32", "Network 10.1.2.3/32"),
            ("fd00::1/64", "Network fd00::/64"),
            ("fd00::1/ffff:ffff::", "Network fd00::/32"),
            ("::/0", "Network ::/0"),
            ("*.example.org", "Pattern *.example.org"),
            ("client[0-9]?.lab", "Pattern client[0-9]?.lab"),
            ("@trusted", "Netgroup @trusted"),
        ];
        for (word, expected) in rows {
            assert_eq!(shown(word), expected, "{word:?}");
        }
    }

    #[test]
    fn what_names_no_client_says_why() {
        let rows = [
            ("10.0.0.0/33", "not so many bits"),
            ("fd00::/129", "not so many bits"),
            ("10.0.0.0/255.0.255.0", "holes"),
            ("10.0.0.0/ffff::", "other family"),
            ("10.0.0.0/", "not a mask"),
            ("10.0.0.0/+8", "bits"),
            ("10.0.0/8", "not an address"),
            ("host/8", "not an address"),
            ("192.168.1.*", "names, not addresses"),
            ("192.168.[0-9].1", "names, not addresses"),
            ("a[b.example", "missing ]"),
            ("@", "needs a name"),
            ("@trus ted", "' '"),
            ("@trusted(rw", "'('"),
            ("gss/krb5", "not supported"),
            ("ho,st", "','"),
            ("höst", "'ö'"),
            ("-", "cannot begin with -"),
            ("-ro", "cannot begin with -"),
            ("-*.lab", "cannot begin with -"),
        ];
        for (word, expected) in rows {
            assert!(shown(word).contains(expected), "{word:?}: {}", shown(word));
        }
        assert!(ClientSpec::parse(&"a".repeat(253)).is_ok());
        assert_eq!(ClientSpec::parse(&"a".repeat(254)), Err(ClientSpecError::Long));
    }

    #[test]
    fn networks_contain_what_begins_alike_and_is_of_their_family() {
        let contains = |network: &str, address: &str| match ClientSpec::parse(network).unwrap() {
            ClientSpec::Network(network) => network.contains(address.parse().unwrap()),
            other => panic!("{other:?}"),
        };
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"),
            ("10.0.0.128/25", "10.0.0.128", "10.0.0.127"),
            ("fd00::/64", "fd00::ffff:1", "fd00:0:0:1::1"),
            ("0.0.0.0/0", "255.1.1.1", "::1"),
            ("::/0", "fe80::1", "10.0.0.1"),
            ("10.0.0.1/32", "10.0.0.1", "10.0.0.2"),
        ] {
            assert!(contains(network, inside), "{network} {inside}");
            assert!(!contains(network, outside), "{network} {outside}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(word in "[@*?a-z0-9./:\\[\\]-]{0,20}") {
            if let Ok(client) = ClientSpec::parse(&word) {
                prop_assert_eq!(ClientSpec::parse(&client.to_string()), Ok(client));
            }
        }
    }
}
