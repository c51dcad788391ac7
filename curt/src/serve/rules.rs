//! The export rules from the command line and the privileges of this process.

use anyhow::{Result, ensure};
use curt_server::{ExportRules, Squash};
use curt_vfs::OnlyUser;

use super::arguments::{ServeArguments, SquashChoice};

/// The anonymous uid and gid.
const NOBODY: u32 = 65_534;

/// The rules of the export. `only_user` is the only user for a process that may not change its ids:
/// all callers are then mapped to that user, and other options are rejected.
pub(super) fn rules(arguments: &ServeArguments, only_user: Option<OnlyUser>) -> Result<ExportRules> {
    let (squash, anonymous_uid, anonymous_gid) = match only_user {
        Some(OnlyUser { uid, gid }) => {
            let fits = matches!(arguments.squash, None | Some(SquashChoice::All))
                && arguments.anonuid.is_none_or(|configured| configured == uid)
                && arguments.anongid.is_none_or(|configured| configured == gid);
            ensure!(
                fits,
                "not root: all clients act as uid {uid}, gid {gid}: leave out --squash, --anonuid and \
                 --anongid, or start as root"
            );
            tracing::info!("not root: all clients act as uid {uid}, gid {gid}");
            (Squash::All, uid, gid)
        }
        None => {
            let squash = match arguments.squash {
                None | Some(SquashChoice::Root) => Squash::Root,
                Some(SquashChoice::None) => Squash::None,
                Some(SquashChoice::All) => Squash::All,
            };
            (squash, arguments.anonuid.unwrap_or(NOBODY), arguments.anongid.unwrap_or(NOBODY))
        }
    };
    Ok(ExportRules {
        read_only: arguments.ro,
        squash,
        anonymous_uid,
        anonymous_gid,
        secure_ports: arguments.reserved_ports_only(),
        ..ExportRules::default()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: ServeArguments,
    }

    fn outcome(line: &str, only_user: Option<OnlyUser>) -> Option<(Squash, u32, u32)> {
        let words = ["serve", "/srv"].into_iter().chain(line.split_whitespace());
        let rules = rules(&Line::try_parse_from(words).unwrap().arguments, only_user).ok()?;
        Some((rules.squash, rules.anonymous_uid, rules.anonymous_gid))
    }

    #[test]
    fn callers_are_squashed_as_configured_and_to_the_only_available_user() {
        let five = Some(OnlyUser { uid: 5, gid: 6 });
        let rows = [
            ("", None, Some((Squash::Root, NOBODY, NOBODY))),
            ("--squash none", None, Some((Squash::None, NOBODY, NOBODY))),
            ("--squash all --anonuid 5 --anongid 6", None, Some((Squash::All, 5, 6))),
            ("", five, Some((Squash::All, 5, 6))),
            ("--squash all --anonuid 5 --anongid 6", five, Some((Squash::All, 5, 6))),
            ("--squash root", five, None),
            ("--squash none", five, None),
            ("--anonuid 7", five, None),
            ("--anongid 5", five, None),
        ];
        for (line, only_user, expected) in rows {
            assert_eq!(outcome(line, only_user), expected, "{line:?} with {only_user:?}");
        }
    }
}
