//! `curt stat`: what mounts did, in the layout of nfsstat(8), and as JSON; `--server`: what a server did.

mod server;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use curt_mount::control::{self, AskError, MountReport};
use curt_trace::{ClientSnapshot, Counter as _};

use crate::serve::control::Which;

/// What `curt stat` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status: 0 if every mount or server asked for was found, 1 if not.")]
pub(crate) struct StatArguments {
    /// The mount to show; without it, all mounts of this user
    mount: Option<PathBuf>,
    /// Show a server instead, by its process id or its state directory; without one, the only server of this user
    #[arg(long, value_name = "PID|DIR", num_args = 0..=1, default_missing_value = "", conflicts_with = "mount")]
    server: Option<String>,
    /// Have the server measure where the time of one request of N goes; 0: of none
    #[arg(long, value_name = "N", requires = "server")]
    stages: Option<u32>,
    /// Print JSON: an array with an object for each mount, or the object of the server
    #[arg(long)]
    json: bool,
    /// Show counters that are zero, too
    #[arg(long)]
    all: bool,
}

/// Prints the figures of the mounts.
pub(crate) fn run(arguments: &StatArguments) -> ExitCode {
    match answer(arguments) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("curt stat: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn answer(arguments: &StatArguments) -> anyhow::Result<String> {
    let Some(which) = &arguments.server else {
        return Ok(render(arguments, &reports(arguments)?)?);
    };
    let which = Which::from(which.as_str());
    match arguments.stages {
        Some(every) => server::measure(&which, every),
        None => server::show(&which, arguments.json, arguments.all),
    }
}

fn reports(arguments: &StatArguments) -> Result<Vec<MountReport>, AskError> {
    let directory = control::directory();
    Ok(match &arguments.mount {
        Some(mount) => vec![control::find(&directory, mount)?.1],
        None => control::list(&directory)?
            .into_iter()
            .map(|(_, report)| report)
            .collect(),
    })
}

fn render(arguments: &StatArguments, reports: &[MountReport]) -> Result<String, std::io::Error> {
    if arguments.json {
        return Ok(serde_json::to_string_pretty(reports)? + "\n");
    }
    if reports.is_empty() {
        return Ok("No mounts. Make one with: curt mount SERVER:/PATH DIR\n".to_owned());
    }
    let texts: Vec<_> = reports
        .iter()
        .map(|report| mount(report, arguments.all))
        .collect();
    Ok(texts.join("\n"))
}

/// A mount's figures as text.
fn mount(report: &MountReport, all: bool) -> String {
    let mut text = format!(
        "{} mounted on {} (NFSv{}, {:.0} s)\n  {}\n\n",
        report.source,
        report.mount_point.display(),
        report.vers,
        report.age_seconds,
        report.options
    );
    text += &requests(&report.counters, &report.vers);
    text += "\nDecisions:\n";
    for (name, value) in report
        .counters
        .events
        .iter()
        .filter(|(_, value)| all || *value != 0)
    {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{value:>12} {:<24} {}", name.name(), name.meaning());
    }
    text
}

/// nfsstat's blocks: a line of names, a line of counts with their percentage.
pub(crate) fn requests(counters: &ClientSnapshot, version: &str) -> String {
    const COLUMNS: usize = 6;
    let total = counters.requests.total();
    let retransmissions = counters.events.value(curt_trace::ClientCounter::RpcRetransmit);
    let mut text = format!(
        "Client rpc stats:\n{:<11}{:<11}{:<11}\n{total:<11}{retransmissions:<11}{:<11}\n\nClient nfs v{version}:\n",
        "calls", "retrans", "authrefrsh", total
    );
    let calls: Vec<_> = counters.requests.iter().collect();
    for row in calls.chunks(COLUMNS) {
        for (name, _) in row {
            let _ = write!(text, "{:<17}", shown(name));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        for (_, calls) in row {
            let percentage = calls
                .checked_mul(100)
                .and_then(|calls| calls.checked_div(total))
                .unwrap_or(0);
            let _ = write!(text, "{calls:<10}{:<7}", format!("{percentage}%"));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// nfsstat's lower-case names, of which two are shortened.
fn shown(procedure: &str) -> String {
    match procedure {
        "READDIRPLUS" => "readdirplus".to_owned(),
        other => other.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::{mount, requests};
    use curt_mount::control::MountReport;
    use curt_trace::{ClientCounter, ClientCounters};

    fn counters() -> ClientCounters {
        let counters = ClientCounters::default();
        (0..3).for_each(|_| counters.procedures.count(1));
        counters.procedures.count(3);
        counters.count(ClientCounter::NegHit);
        counters
    }

    #[test]
    fn requests_stand_in_the_layout_of_nfsstat() {
        let text = requests(&counters().snapshot(), "3");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "calls      retrans    authrefrsh ");
        assert_eq!(lines[2], "4          0          4          ");
        assert_eq!(
            lines[5],
            "null             getattr          setattr          lookup           access           readlink"
        );
        assert_eq!(
            lines[6],
            "0         0%     3         75%    0         0%     1         25%    0         0%     0         0%"
        );
    }

    #[test]
    fn a_mount_shows_its_options_and_what_was_spared() {
        let report = MountReport {
            source: "nas:/export".to_owned(),
            options: "rw,noaccesscheck".to_owned(),
            vers: "3".to_owned(),
            counters: counters().snapshot(),
            ..MountReport::default()
        };
        let text = mount(&report, false);
        assert!(
            text.contains("rw,noaccesscheck") && text.contains("neg_hit") && !text.contains("pos_hit"),
            "{text}"
        );
        assert!(mount(&report, true).contains("pos_hit"));
    }
}
