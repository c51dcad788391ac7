//! The versions of NFS that a server answers.

use std::fmt;
use std::str::FromStr;

/// The versions of NFS that a server answers (`vers` of nfs.conf(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Version 3.
    pub v3: bool,
    /// Version 4.1.
    pub v4_1: bool,
    /// Version 4.2.
    pub v4_2: bool,
}

/// A version that the server does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a version that this server has: 3, 4.1, 4.2, or 4 for both of 4")]
pub struct UnknownVersion(String);

impl Default for Versions {
    fn default() -> Self {
        Self { v3: true, v4_1: true, v4_2: true }
    }
}

impl Versions {
    /// Whether any minor version of 4 is served.
    #[must_use]
    pub const fn v4(self) -> bool {
        self.v4_1 || self.v4_2
    }

    /// Whether this minor version of 4 is served.
    #[must_use]
    pub const fn has_minor(self, minor: u32) -> bool {
        match minor {
            1 => self.v4_1,
            2 => self.v4_2,
            _ => false,
        }
    }
}

impl FromStr for Versions {
    type Err = UnknownVersion;

    /// A list with commas, as `3,4.1`.
    fn from_str(list: &str) -> Result<Self, UnknownVersion> {
        let mut versions = Self { v3: false, v4_1: false, v4_2: false };
        for version in list.split(',') {
            match version.trim() {
                "3" => versions.v3 = true,
                "4" => (versions.v4_1, versions.v4_2) = (true, true),
                "4.1" => versions.v4_1 = true,
                "4.2" => versions.v4_2 = true,
                other => return Err(UnknownVersion(other.into())),
            }
        }
        Ok(versions)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [(self.v3, "3"), (self.v4_1, "4.1"), (self.v4_2, "4.2")];
        let served: Vec<_> = all.iter().filter(|(served, _)| *served).map(|(_, name)| *name).collect();
        formatter.write_str(&served.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_a_list_and_others_are_refused_by_name() {
        let parsed = |list: &str| list.parse::<Versions>().map(|versions| versions.to_string());
        assert_eq!(parsed("4.1,3"), Ok("3,4.1".into()));
        assert_eq!(parsed("4"), Ok("4.1,4.2".into()));
        assert_eq!(parsed("3, 4.2"), Ok("3,4.2".into()));
        for unknown in ["4.0", "2", "", "3,", "v3"] {
            assert!(parsed(unknown).is_err(), "{unknown}");
        }
        let minors = [0, 1, 2, 3].map(|minor| Versions::default().has_minor(minor));
        assert_eq!(minors, [false, true, true, false]);
    }
}
