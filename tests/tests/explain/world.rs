//! A server, its mounts, explanations on them, and checks of each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use curt_bench::workload::Workload;
use curt_tests::curt::{CurtMount, CurtServe, program, tree};
use curt_tests::network::Network;
use curt_tests::process;
use serde_json::Value;

/// Timeout of a run of page, which takes 7 s on an idle machine.
pub(crate) const RUN: Duration = Duration::from_secs(400);

pub(crate) type Calls = BTreeMap<String, u64>;

pub(crate) fn calls(value: &Value) -> Calls {
    let named = value.as_object().unwrap().iter().filter(|(name, _)| *name != "total");
    let numbers = named.map(|(name, calls)| (name.clone(), calls.as_u64().unwrap()));
    numbers.filter(|(_, calls)| *calls > 0).collect()
}

/// The requests of the mount so far, by its own counters.
pub(crate) fn sent(network: &Network, mount: &Path) -> Calls {
    let mut command = network.command(program("curt").unwrap());
    command.args(["stat", "--json"]).arg(mount);
    let report: Value = serde_json::from_str(&process::run(&mut command, RUN).unwrap()).unwrap();
    calls(&report[0]["counters"]["requests"])
}

pub(crate) fn since(after: &Calls, before: &Calls) -> Calls {
    let differences =
        after.iter().map(|(name, calls)| (name.clone(), calls - before.get(name).copied().unwrap_or(0)));
    differences.filter(|(_, calls)| *calls > 0).collect()
}

/// The explanation of one mount.
pub(crate) struct Explained {
    pub(crate) json: Value,
    pub(crate) status: i32,
    pub(crate) output: String,
}

/// Explains a command on a mount, and checks that the totals equal those of `curt stat`.
pub(crate) fn explain(network: &Network, mount: &Path, options: &str, command: &[&str]) -> Explained {
    let file = network.directory().join("explained.json");
    let mut explain = network.command(program("curt").unwrap());
    explain.args(["explain", "--json", "--paths", "5", "-o", options, "--output"]).arg(&file);
    explain.arg("--mount").arg(mount).args(command);
    let before = sent(network, mount);
    let (status, output, errors) = process::finish(&mut explain, RUN).unwrap();
    let after = sent(network, mount);
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let all: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}\n{output}\n{errors}"));
    let json = all["mounts"][0].clone();
    assert!(json.is_object(), "{all}\n{errors}");
    let mut all_sent = calls(&json["requests"]);
    for (name, others) in calls(&json["others"]) {
        *all_sent.entry(name).or_default() += others;
    }
    assert_eq!(all_sent, since(&after, &before), "{json}");
    let explained = Explained { json, status: status.code().unwrap_or(-1), output };
    explained.is_consistent();
    explained
}

impl Explained {
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Value> {
        self.json["causes"].as_array().unwrap().iter()
    }

    pub(crate) fn row(&self, cause: &str, column: &str) -> u64 {
        self.rows().find(|row| row["cause"] == cause).map_or(0, |row| row[column].as_u64().unwrap())
    }

    pub(crate) fn saved(&self, rule: &str) -> u64 {
        self.rows().filter_map(|row| row["saved"][rule].as_u64()).sum()
    }

    pub(crate) fn total(&self, what: &str) -> u64 {
        calls(&self.json[what]).values().sum()
    }

    /// Checks that rows, paths and processes each add up to the totals.
    fn is_consistent(&self) {
        for (column, what) in [("sent", "requests"), ("linux", "linux")] {
            let by_cause: u64 = self.rows().map(|row| row[column].as_u64().unwrap()).sum();
            assert_eq!(by_cause, self.total(what), "{column}: {}", self.json);
            let sum = |rows: &Value| -> u64 {
                rows.as_array().unwrap().iter().map(|row| row[column].as_u64().unwrap()).sum()
            };
            for row in self.rows() {
                let paths = sum(&row["paths"]) + row["paths_rest"][column].as_u64().unwrap();
                assert_eq!(paths, row[column].as_u64().unwrap(), "{row}");
            }
            let rest = self.json["processes_rest"][column].as_u64().unwrap();
            assert_eq!(sum(&self.json["processes"]) + rest, self.total(what), "{}", self.json);
        }
    }
}

pub(crate) struct World {
    pub(crate) network: Network,
    pub(crate) serve: CurtServe,
    pub(crate) export: PathBuf,
}

impl World {
    pub(crate) fn new(workload: Workload) -> Self {
        Self::serving(Network::new().unwrap(), tree(workload).unwrap())
    }

    /// A server of a new directory, with files created by `fill`.
    pub(crate) fn exporting(fill: impl FnOnce(&Path)) -> Self {
        let network = Network::new().unwrap();
        let export = network.make_directory("export").unwrap();
        fill(&export);
        Self::serving(network, export)
    }

    fn serving(network: Network, export: PathBuf) -> Self {
        let serve = CurtServe::start(&network, &export, &[]).unwrap();
        Self { network, serve, export }
    }

    pub(crate) fn mount(&self, name: &str, options: &str) -> CurtMount {
        let options = format!("{},{options}", self.serve.ports());
        let options = options.trim_end_matches(',');
        CurtMount::start(&self.network, name, &self.serve.source(), options).unwrap()
    }

    /// A workload on a new mount, explained and compared with a Linux client with `linux`; and its
    /// duration.
    pub(crate) fn workload(
        &self,
        workload: Workload,
        name: &str,
        (options, linux): (&str, &str),
    ) -> (Explained, f64) {
        let mount = self.mount(name, options);
        let curt = program("curt").unwrap().display().to_string();
        let directory = mount.directory().display().to_string();
        let command = [&*curt, "bench", workload.name(), "--json", "--at", &directory];
        let explained = explain(&self.network, mount.directory(), linux, &command);
        let report: Value = serde_json::from_str(&explained.output).unwrap();
        assert_eq!((explained.status, report["wrong"].as_u64()), (0, Some(0)), "{report}");
        assert_eq!(explained.total("others"), 0, "nobody else used the mount: {}", explained.json);
        // The totals of the benchmark are those of its process only; those of `curt stat` have been
        // compared.
        assert_eq!(report["rpc"]["total"].as_u64(), Some(explained.total("requests")));
        mount.unmount().unwrap();
        (explained, report["seconds"].as_f64().unwrap())
    }
}
