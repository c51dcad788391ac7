//! Mounts, reported on once or again and again: what each did, and which came, began again or went.

use std::path::PathBuf;

use anyhow::Result;
use curt_mount::control::{self, AskError, MountReport, Succession, mountstats as kernel};
use serde::Serialize;

use super::nfsiostat::Rates;
use super::{Layout, Report, Reporting, StatArguments, mountstats, nfsstat};

/// What a row is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// All the time since it was mounted.
    SinceMount,
    /// The time since the last report.
    SinceReport,
    /// It was mounted since the last report.
    New,
    /// It was unmounted and mounted again since the last report, or its daemon is another: its counters began at 0.
    Restarted,
    /// It is not mounted any more.
    Gone,
}

/// A mount, and what it did in a time.
#[derive(Debug, Serialize)]
struct Row {
    state: State,
    /// The time, in seconds.
    seconds: f64,
    /// Its rates over that time.
    rates: Rates,
    #[serde(flatten)]
    report: MountReport,
}

/// All mounts of this user, or one.
pub(super) struct Mounts {
    mount: Option<PathBuf>,
    layout: Layout,
    json: bool,
    all: bool,
    again: bool,
    /// The last report of each; `None` before the first.
    before: Option<Vec<MountReport>>,
}

impl Mounts {
    pub(super) fn new(arguments: &StatArguments) -> Self {
        Self {
            mount: arguments.mount.clone(),
            layout: arguments.layout,
            json: arguments.json,
            all: arguments.all,
            again: arguments.interval.is_some(),
            before: None,
        }
    }

    fn look(&self) -> Result<Vec<MountReport>, AskError> {
        let directory = control::directory();
        match &self.mount {
            Some(mount) => match control::find(&directory, mount) {
                Ok((_, report)) => Ok(vec![report]),
                // It was there a moment ago.
                Err(AskError::NotMounted(_)) if self.before.is_some() => Ok(Vec::new()),
                Err(error) => Err(error),
            },
            None => {
                let mounts = control::list(&directory)?;
                Ok(mounts.into_iter().map(|(_, report)| report).collect())
            }
        }
    }

    fn render(&self, rows: &[Row]) -> Result<String> {
        if self.json {
            return Ok(if self.again {
                serde_json::to_string(&serde_json::json!({ "mounts": rows }))?
            } else {
                serde_json::to_string_pretty(rows)?
            } + "\n");
        }
        if rows.is_empty() && self.layout != Layout::Raw {
            return Ok("No mounts. Make one with: curt mount SERVER:/PATH DIR\n".to_owned());
        }
        let texts: Vec<_> = rows.iter().map(|row| self.row(row)).collect();
        Ok(texts.join(match self.layout {
            Layout::Nfsstat | Layout::Mountstats => "\n",
            Layout::Nfsiostat | Layout::Raw => "",
        }))
    }

    fn row(&self, row: &Row) -> String {
        let report = &row.report;
        let place = report.mount_point.display();
        let remark = match row.state {
            State::Gone => return format!("{} mounted on {place}: gone\n", report.source),
            State::New => "new: since it was mounted",
            State::Restarted => "mounted anew: its counters began again",
            State::SinceMount | State::SinceReport => "",
        };
        let text = match self.layout {
            Layout::Nfsstat => nfsstat::mount(report, self.all),
            Layout::Nfsiostat => row.rates.text(report),
            Layout::Mountstats => mountstats::text(report, self.all),
            // A line of ours would be one of the file.
            Layout::Raw => return kernel::text(report),
        };
        if remark.is_empty() {
            text
        } else {
            format!("{} mounted on {place}: {remark}\n{text}", report.source)
        }
    }
}

impl Reporting for Mounts {
    fn report(&mut self) -> Result<Report> {
        let now = self.look()?;
        let rows = rows(self.before.as_deref(), &now);
        let text = self.render(&rows)?;
        let is_last = self.mount.is_some() && now.is_empty();
        self.before = Some(now);
        Ok(Report { text, is_last })
    }
}

/// What happened to each mount between two looks, in the order of mount points, and then those that are gone.
fn rows(before: Option<&[MountReport]>, now: &[MountReport]) -> Vec<Row> {
    let known = before.unwrap_or_default();
    let same = |one: &MountReport, other: &MountReport| one.mount_point == other.mount_point;
    let mut rows: Vec<Row> = now
        .iter()
        .map(
            |report| match known.iter().find(|earlier| same(earlier, report)) {
                Some(earlier) if report.succession(earlier) == Succession::Later => {
                    row(State::SinceReport, report.since(earlier))
                }
                Some(_) => row(State::Restarted, report.clone()),
                None if before.is_some() => row(State::New, report.clone()),
                None => row(State::SinceMount, report.clone()),
            },
        )
        .collect();
    let gone = known
        .iter()
        .filter(|earlier| !now.iter().any(|report| same(earlier, report)));
    rows.extend(gone.map(|earlier| row(State::Gone, earlier.since(earlier))));
    rows
}

fn row(state: State, report: MountReport) -> Row {
    Row {
        state,
        seconds: report.age_seconds,
        rates: Rates::of(&report),
        report,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(mount_point: &str, pid: u32, age_seconds: f64) -> MountReport {
        MountReport {
            mount_point: mount_point.into(),
            pid,
            age_seconds,
            ..MountReport::default()
        }
    }

    #[test]
    fn mounts_that_come_begin_again_and_go_are_told_apart() {
        let first = [
            report("/a", 1, 10.0),
            report("/b", 2, 10.0),
            report("/c", 3, 10.0),
        ];
        let states = |rows: &[Row]| -> Vec<(String, State)> {
            rows.iter()
                .map(|row| (row.report.mount_point.display().to_string(), row.state))
                .collect()
        };
        let begin = rows(None, &first);
        assert!(begin.iter().all(|row| row.state == State::SinceMount));
        let then = [report("/a", 1, 15.0), report("/b", 4, 2.0), report("/d", 5, 1.0)];
        let later = rows(Some(&first), &then);
        let expected = [
            ("/a", State::SinceReport),
            ("/b", State::Restarted),
            ("/d", State::New),
            ("/c", State::Gone),
        ];
        assert_eq!(
            states(&later),
            expected.map(|(place, state)| (place.to_owned(), state))
        );
        let seconds: Vec<u64> = later.iter().map(|row| row.seconds.to_bits()).collect();
        assert_eq!(seconds, [5.0_f64, 2.0, 1.0, 0.0].map(f64::to_bits));
    }
}
