//! The source of a mount: `server:/path`, `[IPv6]:/path` or `nfs://server[:port]/path`.

use thiserror::Error;

/// A server and the path of its export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSource {
    /// Host name or address, without the brackets of an IPv6 address.
    pub host: String,
    /// Absolute path of the export.
    pub path: String,
    /// The NFS port, if an `nfs://` URL has one (RFC 2224).
    pub port: Option<u16>,
}

/// Why a source is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MountSourceError {
    /// There is no colon between server and path.
    #[error("remote share not in 'host:dir' format")]
    Format,
    /// An address in brackets is not terminated, or empty.
    #[error("the address in brackets is not complete; write [2001:db8::1]:/path")]
    Brackets,
    /// The path is not absolute.
    #[error("the path must begin with '/': server:/path")]
    RelativePath,
    /// The port of a URL is not a number from 1 to 65535.
    #[error("the port of the URL must be a number from 1 to 65535")]
    Port,
}

impl MountSource {
    /// Parses the first field of an fstab line.
    pub fn parse(text: &str) -> Result<Self, MountSourceError> {
        if let Some(rest) = text.strip_prefix("nfs://") {
            return Self::parse_url(rest);
        }
        let (host, path) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").ok_or(MountSourceError::Brackets)?,
            None => text.split_once(':').ok_or(MountSourceError::Format)?,
        };
        Self::of(host, path, None)
    }

    fn parse_url(rest: &str) -> Result<Self, MountSourceError> {
        let (authority, path) = rest.split_at(rest.find('/').ok_or(MountSourceError::Format)?);
        let (host, port) = match authority.strip_prefix('[') {
            Some(inner) => {
                let (host, after) = inner.split_once(']').ok_or(MountSourceError::Brackets)?;
                (host, after.strip_prefix(':'))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = match port {
            Some(port) => Some(port.parse().ok().filter(|&port| port != 0).ok_or(MountSourceError::Port)?),
            None => None,
        };
        Self::of(host, path, port)
    }

    fn of(host: &str, path: &str, port: Option<u16>) -> Result<Self, MountSourceError> {
        if host.is_empty() {
            return Err(MountSourceError::Format);
        }
        if !path.starts_with('/') {
            return Err(MountSourceError::RelativePath);
        }
        Ok(Self { host: host.to_owned(), path: path.to_owned(), port })
    }

    /// The source in fstab syntax.
    #[must_use]
    pub fn text(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.path)
        } else {
            format!("{}:{}", self.host, self.path)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MountSource, MountSourceError};

    fn source(host: &str, path: &str, port: Option<u16>) -> Result<MountSource, MountSourceError> {
        Ok(MountSource { host: host.to_owned(), path: path.to_owned(), port })
    }

    #[test]
    fn servers_addresses_and_urls_are_understood() {
        assert_eq!(MountSource::parse("nas:/export"), source("nas", "/export", None));
        assert_eq!(MountSource::parse("192.0.2.1:/a:b"), source("192.0.2.1", "/a:b", None));
        assert_eq!(MountSource::parse("[2001:db8::1]:/"), source("2001:db8::1", "/", None));
        assert_eq!(MountSource::parse("[fe80::1%eth0]:/x"), source("fe80::1%eth0", "/x", None));
        assert_eq!(MountSource::parse("nfs://nas/export"), source("nas", "/export", None));
        assert_eq!(MountSource::parse("nfs://nas:20490/export"), source("nas", "/export", Some(20490)));
        assert_eq!(MountSource::parse("nfs://[::1]:2049/e"), source("::1", "/e", Some(2049)));
    }

    #[test]
    fn what_is_no_source_is_refused() {
        assert_eq!(MountSource::parse("/export"), Err(MountSourceError::Format));
        assert_eq!(MountSource::parse(":/export"), Err(MountSourceError::Format));
        assert_eq!(MountSource::parse("[::1:/export"), Err(MountSourceError::Brackets));
        assert_eq!(MountSource::parse("nas:export"), Err(MountSourceError::RelativePath));
        assert_eq!(MountSource::parse("nfs://nas:0/e"), Err(MountSourceError::Port));
    }

    #[test]
    fn a_source_reads_back_as_it_was_written() {
        for text in ["nas:/export", "[2001:db8::1]:/export"] {
            assert_eq!(MountSource::parse(text).map(|source| source.text()), Ok(text.to_owned()));
        }
    }
}
