//! Mount options of the Linux client to compare with: only those of nfs(5).

use super::option_string::split;
use super::settings::Settings;
use super::{OptionError, parse, table};

/// The settings of a Linux mount with these options.
///
/// # Errors
/// Unknown options, and Curt's own, which Linux does not have.
pub fn of_linux(options: &str) -> Result<Settings, OptionError> {
    for word in split(options) {
        if table::is_own(&word.name) {
            return Err(OptionError::Refused {
                option: word.text(),
                instead: "Linux's client does not have it; it is an option of Curt's own mounts",
            });
        }
    }
    Ok(parse(options)?.settings)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

    use std::time::Duration;

    use super::*;

    #[test]
    fn options_of_linux_are_those_of_nfs_5() {
        let settings = of_linux("nocto,ro,actimeo=600,rsize=65536").unwrap();
        assert!(!settings.cache.close_to_open);
        assert_eq!(settings.cache.directories.min, Duration::from_secs(600));
        assert_eq!(settings.transport.rsize, Some(65536));
        assert_eq!(of_linux("").unwrap(), Settings::default());
        for own in ["noaccesscheck", "sloppycto=3", "nonegnamecache", "nonsense"] {
            assert!(of_linux(own).is_err(), "{own}");
        }
    }
}
