//! Options that `remount` may change: `ro` and `rw`, the flags of the mount point, the caching
//! timers and Curt's own caching options.

use curt_policy::CacheOptions;

use super::parse::{OptionError, parse_onto, split};
use super::settings::{GenericSettings, Settings};

const INSTEAD: &str = "it cannot change while mounted; unmount and mount again";

/// The settings after a remount with `options`, some of which may repeat options in force.
///
/// # Errors
/// The first option that would change what cannot change; or an unknown one.
pub fn remounted(current: &Settings, options: &str) -> Result<Settings, OptionError> {
    let sloppy = split(options).iter().any(|word| word.name == "sloppy");
    let mut settings = current.clone();
    settings.generic.sloppy |= sloppy;
    // An option may revert an earlier one, as in `defaults,sync`: only the final settings count.
    let mut culprit = None;
    for word in split(options) {
        settings = parse_onto(settings, &word.text())?.settings;
        if fixed(&settings) == fixed(current) {
            culprit = None;
        } else {
            culprit.get_or_insert_with(|| word.text());
        }
    }
    if let Some(option) = culprit {
        return Err(OptionError::Refused { option, instead: INSTEAD });
    }
    settings.generic.remount = current.generic.remount;
    settings.generic.sloppy = current.generic.sloppy;
    Ok(settings)
}

/// The settings with all changeable ones set to a fixed value.
fn fixed(settings: &Settings) -> Settings {
    // `noac` also makes writes synchronous, which is fixed at mount time.
    let CacheOptions { users, attribute_cache, .. } = settings.cache;
    let generic = &settings.generic;
    Settings {
        cache: CacheOptions { users, attribute_cache, ..CacheOptions::default() },
        generic: GenericSettings {
            sync: generic.sync,
            dirsync: generic.dirsync,
            allow: generic.allow,
            ..GenericSettings::default()
        },
        passed_through: Vec::new(),
        ..settings.clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use super::super::{OptionError, parse};
    use super::remounted;

    #[test]
    fn timers_access_and_read_only_change_and_the_rest_is_refused_by_name() {
        let current = parse("timeo=100,rw,acregmin=3,allow_other").unwrap().settings;
        let next =
            remounted(&current, "rw,timeo=100,remount,ro,actimeo=9,noaccesscheck,sloppycto=3").unwrap();
        assert_eq!(
            next,
            parse("timeo=100,allow_other,ro,actimeo=9,noaccesscheck,sloppycto=3").unwrap().settings
        );
        for option in [
            "timeo=200",
            "soft",
            "nconnect=2",
            "allow_root",
            "rsize=4096",
            "port=7",
            "nolock",
            "sec=none",
            "noac",
        ] {
            let error = remounted(&current, &format!("remount,{option}")).unwrap_err();
            assert!(
                matches!(&error, OptionError::Refused { option: named, .. } if named == option),
                "{error}"
            );
        }
    }

    #[test]
    fn defaults_stand_in_fstab_lines_and_change_what_they_name_alone() {
        let current = parse("allow_root,sync,noatime,dirsync").unwrap().settings;
        let next = remounted(&current, "remount,defaults,sync,ro").unwrap();
        assert_eq!(next, parse("allow_root,sync,noatime,dirsync,ro").unwrap().settings);
        let error = remounted(&current, "remount,defaults,ro").unwrap_err();
        assert!(matches!(&error, OptionError::Refused { option, .. } if option == "defaults"), "{error}");
    }

    #[test]
    fn what_mount_8_repeats_from_mountinfo_is_no_change() {
        let current = parse("allow_other").unwrap().settings;
        let repeated = "rw,nosuid,nodev,relatime,user_id=0,group_id=0,allow_other,remount";
        let next = remounted(&current, repeated).unwrap();
        assert!(next.generic.nosuid && next.generic.nodev && !next.generic.remount);
    }
}
