//! An explanation as text.

use std::fmt::Write as _;

use curt_mount::explain::{CauseRow, ExplainReport, UnlistedRequests};

use super::MountExplained;

/// The text for all mounts.
pub(super) fn text(mounts: &[MountExplained], linux_options: &str, expand: &[String]) -> String {
    if mounts.is_empty() {
        return "The command did nothing on a Curt mount.\n".to_owned();
    }
    let texts: Vec<_> = mounts
        .iter()
        .map(|mount| one(mount, linux_options, expand))
        .collect();
    texts.join("\n")
}

fn one(mount: &MountExplained, linux_options: &str, expand: &[String]) -> String {
    let MountExplained { mount, explained } = mount;
    let title = if linux_options.is_empty() {
        "default options"
    } else {
        linux_options
    };
    let mut text = format!(
        "{} on {}: {} requests, {} spared; Linux ({title}) would have sent {}\n\n{:<20}{:>10}{:>10}{:>10}   spared by\n",
        mount.source,
        mount.mount_point.display(),
        explained.sent(),
        explained.spared(),
        explained.linux_sent(),
        "cause",
        "sent",
        "Linux",
        "spared",
    );
    for row in &explained.causes {
        text += &line(row);
        if expand.iter().any(|cause| cause == "all" || *cause == row.cause) {
            text += &paths(row);
        }
    }
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{:<20}{:>10}{:>10}{:>10}",
        "total",
        explained.sent(),
        explained.linux_sent(),
        explained.spared()
    );
    text += &processes(explained);
    text += &remarks(explained);
    text
}

fn line(row: &CauseRow) -> String {
    let rules: Vec<_> = row
        .spared
        .iter()
        .map(|(rule, spared)| format!("{rule} {spared}"))
        .collect();
    let spared: u64 = row.spared.values().sum();
    let line = format!(
        "{:<20}{:>10}{:>10}{spared:>10}   {}",
        row.cause,
        row.sent,
        row.linux,
        rules.join(", ")
    );
    format!("{}\n", line.trim_end())
}

fn paths(row: &CauseRow) -> String {
    let mut text = String::new();
    for path in &row.paths {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<20}{:>10}{:>10}{:>10}   {}",
            "", path.sent, path.linux, path.spared, path.path
        );
    }
    text + &rest(&row.paths_rest, "other paths")
}

fn processes(explained: &ExplainReport) -> String {
    if explained.processes.len() < 2 {
        return String::new();
    }
    let mut text = "\nprocess\n".to_owned();
    for process in &explained.processes {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<20}{:>10}{:>10}{:>10}",
            format!("{} {}", process.pid, process.name),
            process.sent,
            process.linux,
            process.spared
        );
    }
    text + &rest(&explained.processes_rest, "other processes")
}

fn rest(rest: &UnlistedRequests, what: &str) -> String {
    if *rest == UnlistedRequests::default() {
        return String::new();
    }
    let UnlistedRequests {
        count,
        sent,
        linux,
        spared,
    } = rest;
    format!("{:<20}{sent:>10}{linux:>10}{spared:>10}   {count} {what}\n", "")
}

fn remarks(explained: &ExplainReport) -> String {
    let mut text = String::new();
    let others: u64 = explained.others.values().sum();
    if others > 0 {
        text += &format!("\nThe mount also sent {others} requests for other processes.\n");
    }
    if explained.unfinished {
        text += "\nSome operations of the command had not ended after 8 seconds; their requests are not counted.\n";
    }
    if explained.linux_forgot > 0 {
        text += &format!(
            "\nThe Linux column is too large: the model ran out of memory and dropped its caches {} times.\n",
            explained.linux_forgot
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use curt_mount::control::MountReport;
    use curt_mount::explain::PathRow;

    use super::*;

    fn mount() -> MountExplained {
        let row = CauseRow {
            cause: "open-check".to_owned(),
            sent: 7,
            linux: 20,
            spared: BTreeMap::from([("sloppycto".to_owned(), 13)]),
            paths: vec![PathRow {
                path: "/a/b".to_owned(),
                sent: 5,
                linux: 6,
                spared: 1,
            }],
            paths_rest: UnlistedRequests {
                count: 2,
                sent: 2,
                linux: 14,
                spared: 12,
            },
        };
        MountExplained {
            mount: MountReport {
                source: "nas:/export".to_owned(),
                mount_point: "/mnt".into(),
                ..MountReport::default()
            },
            explained: ExplainReport {
                causes: vec![row],
                requests: BTreeMap::from([("GETATTR".to_owned(), 7)]),
                linux: BTreeMap::from([("GETATTR".to_owned(), 20)]),
                others: BTreeMap::from([("READ".to_owned(), 3)]),
                ..ExplainReport::default()
            },
        }
    }

    #[test]
    fn a_row_shows_sent_saved_and_expected_requests() {
        let text = text(&[mount()], "nocto", &[]);
        assert!(
            text.starts_with("nas:/export on /mnt: 7 requests, 13 spared; Linux (nocto) would have sent 20")
        );
        assert!(
            text.contains("open-check                   7        20        13   sloppycto 13\n"),
            "{text}"
        );
        assert!(text.contains("3 requests for other processes"));
        assert!(!text.contains("/a/b"));
    }

    #[test]
    fn a_row_is_expanded_to_its_paths_on_request() {
        for expand in ["all", "open-check"] {
            let text = text(&[mount()], "", &[expand.to_owned()]);
            assert!(text.contains("5         6         1   /a/b\n"), "{text}");
            assert!(text.contains("2        14        12   2 other paths\n"), "{text}");
        }
        assert!(!text(&[mount()], "", &["write".to_owned()]).contains("/a/b"));
        assert!(text(&[], "", &[]).contains("did nothing"));
    }

    #[test]
    fn missing_data_are_mentioned() {
        let mut mount = mount();
        assert!(!text(std::slice::from_ref(&mount), "", &[]).contains("had not ended"));
        mount.explained.unfinished = true;
        assert!(text(&[mount], "", &[]).contains("had not ended"));
    }
}
