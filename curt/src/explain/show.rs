//! An explanation as text.

use curt_observe::explain::{CauseRow, ExplainReport, RequestTally, UnlistedRequests};

use super::MountExplained;

/// The text for all mounts.
pub(super) fn text(mounts: &[MountExplained], linux_options: &str, expand: &[String]) -> String {
    if mounts.is_empty() {
        return "The command did nothing on a Curt mount.\n".to_owned();
    }
    let texts: Vec<_> = mounts.iter().map(|mount| one(mount, linux_options, expand)).collect();
    texts.join("\n")
}

fn one(mount: &MountExplained, linux_options: &str, expand: &[String]) -> String {
    let MountExplained { mount, explained } = mount;
    let title = if linux_options.is_empty() { "default options" } else { linux_options };
    let all =
        RequestTally { sent: explained.sent(), linux: explained.linux_sent(), saved: explained.saved() };
    let mut text = format!(
        "{} on {}: {} requests, {} saved; Linux ({title}) would have sent {}\n\n{:<20}{:>10}{:>10}{:>10}   saved by\n",
        mount.source,
        mount.mount_point.display(),
        all.sent,
        all.saved,
        all.linux,
        "cause",
        "sent",
        "Linux",
        "saved",
    );
    for row in &explained.causes {
        text += &cause(row);
        if expand.iter().any(|cause| cause == "all" || *cause == row.cause) {
            let paths = row.paths.iter();
            text.extend(paths.map(|path| line("", path.requests, &path.path)));
            text += &rest(&row.paths_rest, "other paths");
        }
    }
    text += &line("total", all, "");
    if explained.processes.len() > 1 {
        text += "\nprocess\n";
        let processes = explained.processes.iter();
        text.extend(processes.map(|process| {
            let name = format!("{} {}", process.pid, process.name);
            line(&name, process.requests, "")
        }));
        text += &rest(&explained.processes_rest, "other processes");
    }
    text += &remarks(explained);
    text
}

/// The line of a cause: its requests, between name and description.
fn line(name: &str, requests: RequestTally, remark: &str) -> String {
    let RequestTally { sent, linux, saved } = requests;
    let line = format!("{name:<20}{sent:>10}{linux:>10}{saved:>10}   {remark}");
    format!("{}\n", line.trim_end())
}

fn cause(row: &CauseRow) -> String {
    let rules = row.saved.iter().map(|(rule, saved)| format!("{rule} {saved}"));
    let requests = RequestTally { sent: row.sent, linux: row.linux, saved: row.saved.values().sum() };
    line(&row.cause, requests, &rules.collect::<Vec<_>>().join(", "))
}

fn rest(rest: &UnlistedRequests, what: &str) -> String {
    if *rest == UnlistedRequests::default() {
        return String::new();
    }
    line("", rest.requests, &format!("{} {what}", rest.count))
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

    use curt_observe::control::MountReport;
    use curt_observe::explain::PathRow;

    use super::*;

    fn mount() -> MountExplained {
        let row = CauseRow {
            cause: "open-check".to_owned(),
            sent: 7,
            linux: 20,
            saved: BTreeMap::from([("sloppycto".to_owned(), 13)]),
            paths: vec![PathRow {
                path: "/a/b".to_owned(),
                requests: RequestTally { sent: 5, linux: 6, saved: 1 },
            }],
            paths_rest: UnlistedRequests {
                count: 2,
                requests: RequestTally { sent: 2, linux: 14, saved: 12 },
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
            text.starts_with("nas:/export on /mnt: 7 requests, 13 saved; Linux (nocto) would have sent 20")
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
