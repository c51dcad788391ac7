//! Reports on mounts: the statistics of each, and which are new, restarted or gone.

use std::path::PathBuf;

use anyhow::Result;
use curt_observe::control::{self, ControlError, MountReport, ReportContinuity};
use curt_observe::mountstats as kernel;
use serde::Serialize;

use super::nfsiostat::MountRates;
use super::{StatArguments, StatLayout, StatReport, StatSource, mountstats, nfsstat};

/// The period of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum MountRowState {
    /// Since it was mounted.
    SinceMount,
    /// Since the last report.
    SinceReport,
    /// The file system was mounted since the last report.
    New,
    /// The file system was unmounted and mounted again since the last report, or has another
    /// daemon: its counters began at 0.
    Restarted,
    /// The file system is no longer mounted.
    Gone,
}

/// A mount, and its statistics of a period.
#[derive(Debug, Serialize)]
struct MountRow {
    state: MountRowState,
    /// The period in seconds.
    seconds: f64,
    /// Its rates in that period.
    rates: MountRates,
    #[serde(flatten)]
    report: MountReport,
}

/// All mounts of this user, or one.
pub(super) struct MountStatistics {
    mount: Option<PathBuf>,
    layout: StatLayout,
    json: bool,
    all: bool,
    again: bool,
    /// The last report of each; `None` before the first.
    before: Option<Vec<MountReport>>,
}

impl MountStatistics {
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

    fn sample(&self) -> Result<Vec<MountReport>, ControlError> {
        let directory = control::directory();
        match &self.mount {
            Some(mount) => match control::find(&directory, mount) {
                Ok((_, report)) => Ok(vec![report]),
                // It existed at the last report.
                Err(ControlError::NotMounted(_)) if self.before.is_some() => Ok(Vec::new()),
                Err(error) => Err(error),
            },
            None => {
                let mounts = control::list(&directory)?;
                Ok(mounts.into_iter().map(|(_, report)| report).collect())
            }
        }
    }

    fn render(&self, rows: &[MountRow]) -> Result<String> {
        if self.json {
            return Ok(if self.again {
                serde_json::to_string(&serde_json::json!({ "mounts": rows }))?
            } else {
                serde_json::to_string_pretty(rows)?
            } + "\n");
        }
        if rows.is_empty() && self.layout != StatLayout::Raw {
            return Ok("No mounts. Make one with: curt mount SERVER:/PATH DIR\n".to_owned());
        }
        let texts: Vec<_> = rows.iter().map(|row| self.row(row)).collect();
        Ok(texts.join(match self.layout {
            StatLayout::Nfsstat | StatLayout::Mountstats => "\n",
            StatLayout::Nfsiostat | StatLayout::Raw => "",
        }))
    }

    fn row(&self, row: &MountRow) -> String {
        let report = &row.report;
        let place = report.mount_point.display();
        let remark = match row.state {
            MountRowState::Gone => return format!("{} mounted on {place}: gone\n", report.source),
            MountRowState::New => "new: since it was mounted",
            MountRowState::Restarted => "mounted anew: its counters began again",
            MountRowState::SinceMount | MountRowState::SinceReport => "",
        };
        let text = match self.layout {
            StatLayout::Nfsstat => nfsstat::mount(report, self.all),
            StatLayout::Nfsiostat => row.rates.text(report),
            StatLayout::Mountstats => mountstats::text(report, self.all),
            // An additional line would become part of the file.
            StatLayout::Raw => return kernel::text(report),
        };
        if remark.is_empty() {
            text
        } else {
            format!("{} mounted on {place}: {remark}\n{text}", report.source)
        }
    }
}

impl StatSource for MountStatistics {
    fn report(&mut self) -> Result<StatReport> {
        let now = self.sample()?;
        let rows = rows(self.before.as_deref(), &now);
        let text = self.render(&rows)?;
        let is_last = self.mount.is_some() && now.is_empty();
        self.before = Some(now);
        Ok(StatReport { text, is_last })
    }
}

/// The rows between two reports, in the order of mount points, and then those of mounts that are
/// gone.
fn rows(before: Option<&[MountReport]>, now: &[MountReport]) -> Vec<MountRow> {
    let earlier_reports = before.unwrap_or_default();
    let same = |one: &MountReport, other: &MountReport| one.mount_point == other.mount_point;
    let mut rows: Vec<MountRow> = now
        .iter()
        .map(|report| match earlier_reports.iter().find(|earlier| same(earlier, report)) {
            Some(earlier) if report.continuity_with(earlier) == ReportContinuity::SameMount => {
                row(MountRowState::SinceReport, report.since(earlier))
            }
            Some(_) => row(MountRowState::Restarted, report.clone()),
            None if before.is_some() => row(MountRowState::New, report.clone()),
            None => row(MountRowState::SinceMount, report.clone()),
        })
        .collect();
    let gone = earlier_reports.iter().filter(|earlier| !now.iter().any(|report| same(earlier, report)));
    rows.extend(gone.map(|earlier| row(MountRowState::Gone, earlier.since(earlier))));
    rows
}

fn row(state: MountRowState, report: MountReport) -> MountRow {
    MountRow { state, seconds: report.age_seconds, rates: MountRates::of(&report), report }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(mount_point: &str, pid: u32, age_seconds: f64) -> MountReport {
        MountReport { mount_point: mount_point.into(), pid, age_seconds, ..MountReport::default() }
    }

    #[test]
    fn new_restarted_and_removed_mounts_are_distinguished() {
        let first = [report("/a", 1, 10.0), report("/b", 2, 10.0), report("/c", 3, 10.0)];
        let states = |rows: &[MountRow]| -> Vec<(String, MountRowState)> {
            rows.iter().map(|row| (row.report.mount_point.display().to_string(), row.state)).collect()
        };
        let begin = rows(None, &first);
        assert!(begin.iter().all(|row| row.state == MountRowState::SinceMount));
        let then = [report("/a", 1, 15.0), report("/b", 4, 2.0), report("/d", 5, 1.0)];
        let later = rows(Some(&first), &then);
        let expected = [
            ("/a", MountRowState::SinceReport),
            ("/b", MountRowState::Restarted),
            ("/d", MountRowState::New),
            ("/c", MountRowState::Gone),
        ];
        assert_eq!(states(&later), expected.map(|(place, state)| (place.to_owned(), state)));
        let seconds: Vec<u64> = later.iter().map(|row| row.seconds.to_bits()).collect();
        assert_eq!(seconds, [5.0_f64, 2.0, 1.0, 0.0].map(f64::to_bits));
    }
}
