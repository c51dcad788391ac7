//! The hosts that have locks, which a restarted server notifies, and its state number (NSM).
//!
//! As text: `state N`, and a line `host ADDRESS OUR-ADDRESSES NAME` for each, with commas between
//! addresses (`-`: none is known), and the name's unusual bytes as `%XX`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use super::ids::{escape, unescape};

/// Maximum number of addresses of this server that are kept of one host.
pub(crate) const LOCALS_MAX: usize = 8;

/// The hosts, by the address that their requests came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MonitoredHosts {
    /// The state number of this server's last run; 0 before the first.
    pub(crate) state: i32,
    pub(crate) hosts: BTreeMap<IpAddr, MonitoredHost>,
}

/// A host that has locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MonitoredHost {
    /// The addresses of this server that its requests came to, from which it is notified; at most
    /// [`LOCALS_MAX`].
    pub(crate) locals: Vec<IpAddr>,
    /// The name that it gave.
    pub(crate) name: Vec<u8>,
}

impl MonitoredHosts {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut text = format!("state {}\n", self.state);
        for (address, MonitoredHost { locals, name }) in &self.hosts {
            let locals: Vec<String> = locals.iter().map(IpAddr::to_string).collect();
            let locals = if locals.is_empty() { "-".to_owned() } else { locals.join(",") };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "host {address} {locals} {}", escape(name));
        }
        text.into_bytes()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
        let mut hosts = Self::default();
        for line in text.lines() {
            hosts.take_line(line).ok_or_else(|| format!("line \"{line}\""))?;
        }
        Ok(hosts)
    }

    fn take_line(&mut self, line: &str) -> Option<()> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            "state" => self.state = rest.parse().ok()?,
            "host" => {
                let mut words = rest.splitn(3, ' ');
                let (address, locals) = (words.next()?.parse().ok()?, locals_of(words.next()?)?);
                let name = unescape(words.next()?)?;
                let before = self.hosts.insert(address, MonitoredHost { locals, name });
                if before.is_some() {
                    return None;
                }
            }
            _ => return None,
        }
        Some(())
    }
}

fn locals_of(word: &str) -> Option<Vec<IpAddr>> {
    if word == "-" {
        return Some(Vec::new());
    }
    let locals: Option<Vec<IpAddr>> = word.split(',').map(|local| local.parse().ok()).collect();
    let mut locals = locals.filter(|locals| locals.len() <= LOCALS_MAX)?;
    // An address that was not known.
    locals.retain(|local| !local.is_unspecified());
    Some(locals)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn hosts_survive_their_text_whatever_their_names() {
        let locals: Vec<IpAddr> = ["10.0.0.1", "fe80::2"].map(|local| local.parse().unwrap()).to_vec();
        let name: Vec<u8> = (0..=255).collect();
        let hosts = [("10.0.0.2", name), ("fe80::1", Vec::new()), ("::1", b"a b".to_vec())];
        let hosts = hosts.into_iter().zip([2, 0, 1]).map(|((address, name), count)| {
            (address.parse().unwrap(), MonitoredHost { locals: locals[..count].to_vec(), name })
        });
        let hosts = MonitoredHosts { state: i32::MAX, hosts: hosts.collect() };
        assert_eq!(MonitoredHosts::from_bytes(&hosts.to_bytes()), Ok(hosts));
        assert_eq!(MonitoredHosts::from_bytes(b""), Ok(MonitoredHosts::default()));
        let unknown = MonitoredHosts::from_bytes(b"host 10.0.0.2 0.0.0.0 name").unwrap();
        assert!(unknown.hosts.values().all(|host| host.locals.is_empty()));
    }

    #[test]
    fn damage_is_refused() {
        for text in [
            "state",
            "state x",
            "state 4294967296",
            "host 10.0.0.1",
            "host 10.0.0.1 10.0.0.2",
            "host x 10.0.0.2 name",
            "host 10.0.0.1 x name",
            "host 10.0.0.1 10.0.0.2, name",
            "host 10.0.0.1 ::1,::2,::3,::4,::5,::6,::7,::8,::9 name",
            "host 10.0.0.1 10.0.0.2 %zz",
            "host 10.0.0.1 10.0.0.2 a\nhost 10.0.0.1 10.0.0.2 b",
            "what 1",
            "\n",
        ] {
            assert!(MonitoredHosts::from_bytes(text.as_bytes()).is_err(), "{text}");
        }
        assert!(MonitoredHosts::from_bytes(b"state 1\xff").is_err());
    }
}
