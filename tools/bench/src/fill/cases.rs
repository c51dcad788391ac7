//! The counted cases: programs that use few of many names, or all of them once. Filling directories
//! must not cost them much.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    DirfillMode, FillSetup,
    tree::{self, FillTreeSizes},
};
use curt_bench::processes::names::open_directory;

/// The traffic of a case.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FillCost {
    requests: u64,
    /// Bytes of replies.
    received: u64,
    seconds: f64,
}

/// The permitted additional cost of a case.
#[derive(Clone, Copy, Debug)]
enum CostBound {
    /// 2 % more requests and 10 % more bytes.
    Share,
    /// One request more.
    One,
}

impl CostBound {
    /// Whether requests and bytes are within the bound.
    fn holds(self, off: &FillCost, auto: &FillCost) -> bool {
        match self {
            Self::Share => {
                auto.requests * 100 <= off.requests * 102 && auto.received * 100 <= off.received * 110
            }
            Self::One => auto.requests <= off.requests + 1,
        }
    }
}

/// Runs all of them.
pub(super) fn run(place: &mut FillSetup<'_>, shape: &FillTreeSizes, top: &Path) -> Result<Vec<Value>> {
    let (archive, served) = (shape.archive(top), top.join("served"));
    let into = |mode: DirfillMode| format!("extracted-{}", mode.name());
    let case = |place: &mut FillSetup<'_>,
                what: String,
                bound: CostBound,
                run: &dyn Fn(&Path, DirfillMode) -> Result<()>| {
        eprintln!("{what}");
        let costs = DirfillMode::BOTH.map(|mode| place.cost(mode, |mounted| run(mounted, mode)));
        let [off, auto] = costs;
        let (off, auto) = (off?, auto?);
        let holds = bound.holds(&off, &auto);
        Ok::<_, anyhow::Error>(json!({
            "case": what, "off": off, "auto": auto, "holds": holds,
            "requests_ratio": auto.requests as f64 / off.requests as f64,
            "received_ratio": auto.received as f64 / off.received as f64,
        }))
    };
    let (directories, names, huge, files) = (shape.directories, shape.names, shape.huge, shape.files);
    for mode in DirfillMode::BOTH {
        let into = served.join(into(mode));
        if into.exists() {
            std::fs::remove_dir_all(&into)?;
        }
        open_directory(&into)?;
    }
    let many = format!("one name from each of {directories} directories of {names}");
    let one = format!("one name from a directory of {huge}");
    let cases = vec![
        case(place, many, CostBound::Share, &|mounted, _| {
            shape.one_of_each().try_for_each(|path| look(&mounted.join(path)))
        })?,
        case(place, one, CostBound::One, &|mounted, _| look(&mounted.join(shape.one_of_huge())))?,
        case(place, format!("tar -x of {files} files"), CostBound::Share, &|mounted, mode| {
            let mut tar = Command::new("tar");
            tar.args(["--no-same-owner", "-x", "-C"]).arg(mounted.join(into(mode)));
            tree::run("tar -x", tar.arg("-f").arg(&archive))
        })?,
        case(place, format!("rm -r of {files} files"), CostBound::Share, &|mounted, mode| {
            // Not the directory itself: its parent belongs to the server.
            let all = std::fs::read_dir(mounted.join(into(mode)))?.collect::<Result<Vec<_>, _>>()?;
            let mut rm = Command::new("rm");
            rm.arg("-r").args(all.iter().map(std::fs::DirEntry::path));
            tree::run("rm -r", &mut rm)?;
            let left = std::fs::read_dir(served.join(into(mode)))?.count();
            ensure!(left == 0, "rm -r left {left} names behind");
            Ok(())
        })?,
    ];
    for mode in DirfillMode::BOTH {
        std::fs::remove_dir(served.join(into(mode)))?;
    }
    Ok(cases)
}

fn look(path: &Path) -> Result<()> {
    let found = path.symlink_metadata().with_context(|| path.display().to_string())?;
    ensure!(found.is_file(), "{} is no file", path.display());
    Ok(())
}

impl FillSetup<'_> {
    /// The traffic of `run` below a new mount, write-back included.
    fn cost(&mut self, mode: DirfillMode, run: impl FnOnce(&Path) -> Result<()>) -> Result<FillCost> {
        let mounted = self.mount(mode)?;
        let began = Instant::now();
        run(mounted.directory())?;
        let seconds = began.elapsed().as_secs_f64();
        let counts = self.relay.counts();
        mounted.end()?;
        Ok(FillCost { requests: counts.total, received: counts.received, seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_two_in_a_hundred_requests_a_tenth_of_the_bytes_and_one_request() {
        let cost = |requests, received| FillCost { requests, received, seconds: 1.0 };
        let share = |requests, received| CostBound::Share.holds(&cost(1000, 1000), &cost(requests, received));
        assert!(share(1020, 1100) && !share(1021, 1000) && !share(1000, 1101));
        let one = |requests, received| CostBound::One.holds(&cost(2, 500), &cost(requests, received));
        assert!(one(3, 100_000) && !one(4, 500));
    }
}
