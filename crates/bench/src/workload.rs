//! The recorded workloads, built into this crate.

use std::fmt;
use std::io::{BufReader, Cursor};
use std::str::FromStr;
use std::time::Duration;

use curt_observe::CallCounts;
use curt_proto::nfs3::NfsProcedure;
use flate2::bufread::{DeflateDecoder, GzDecoder};

use crate::trace::WorkloadTrace;
use crate::tree::WorkloadTree;

/// A recorded workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Five views of a web application's main page.
    Page,
    /// The build of a C program with many include directories.
    Build,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Page, Self::Build];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Build => "build",
        }
    }

    /// The pause between two pages.
    #[must_use]
    pub fn pause(self) -> Duration {
        match self {
            Self::Page => Duration::from_secs(1),
            Self::Build => Duration::ZERO,
        }
    }

    /// Its tree.
    #[must_use]
    pub fn tree(self) -> WorkloadTree {
        let packed: &[u8] = match self {
            Self::Page => include_bytes!("../../../workloads/page.tree.gz"),
            Self::Build => include_bytes!("../../../workloads/build.tree.gz"),
        };
        WorkloadTree::parse(unpack(packed)).expect("the built-in trees are parsed by a test")
    }

    /// The NFSv3 requests of the Linux 6.1 client with default options against knfsd, recorded with
    /// the command in BENCHMARKS.md.
    #[must_use]
    pub fn linux_requests(self) -> CallCounts {
        let counts: &[(NfsProcedure, u64)] = match self {
            Self::Page => &[
                (NfsProcedure::Null, 1),
                (NfsProcedure::Getattr, 6_676),
                (NfsProcedure::Lookup, 1_409),
                (NfsProcedure::Access, 1_391),
                (NfsProcedure::Read, 1_126),
                (NfsProcedure::Fsinfo, 2),
                (NfsProcedure::Pathconf, 1),
            ],
            Self::Build => &[
                (NfsProcedure::Null, 1),
                (NfsProcedure::Getattr, 19_795),
                (NfsProcedure::Lookup, 1_175),
                (NfsProcedure::Access, 1_484),
                (NfsProcedure::Read, 1_673),
                (NfsProcedure::ReaddirPlus, 55),
                (NfsProcedure::Fsinfo, 2),
                (NfsProcedure::Pathconf, 1),
            ],
        };
        counts.iter().copied().collect()
    }

    /// Its trace.
    #[must_use]
    pub fn trace(self) -> WorkloadTrace {
        let packed: &[u8] = match self {
            Self::Page => include_bytes!("../../../workloads/page.trace.gz"),
            Self::Build => include_bytes!("../../../workloads/build.trace.gz"),
        };
        WorkloadTrace::parse(unpack(packed)).expect("the built-in traces are parsed by a test")
    }
}

/// The contents of a built-in gzip file, without gzip's checksum, which a test compares: the
/// checksum uses AVX registers if available, and replays also run in kernels that do not preserve
/// those (tests/kernel).
fn unpack(packed: &'static [u8]) -> BufReader<DeflateDecoder<Cursor<&'static [u8]>>> {
    // The decoder reads the header when it is created, and leaves the cursor after it.
    let behind_header = GzDecoder::new(Cursor::new(packed)).into_inner();
    BufReader::new(DeflateDecoder::new(behind_header))
}

impl fmt::Display for Workload {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// There is no workload of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the workloads are page and build")]
pub struct UnknownWorkload;

impl FromStr for Workload {
    type Err = UnknownWorkload;

    fn from_str(name: &str) -> Result<Self, UnknownWorkload> {
        Self::ALL.into_iter().find(|workload| workload.name() == name).ok_or(UnknownWorkload)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::trace::{ExpectedResult, PathOperation, TraceOperation};
    use crate::tree::{TreeEntry, TreeEntryKind};

    #[test]
    fn the_built_in_workloads_match_their_readme() {
        for (workload, files, directories, megabytes, operations) in
            [(Workload::Page, 36_013, 1_670, 288, 24_387), (Workload::Build, 1_882, 92, 45, 234_678)]
        {
            let (tree, trace) = (workload.tree(), workload.trace());
            let is_file = |entry: &&TreeEntry| matches!(entry.kind, TreeEntryKind::File { .. });
            assert_eq!(tree.entries().iter().filter(is_file).count(), files, "{workload}");
            assert_eq!(tree.entries().len() - files, directories, "{workload}");
            assert_eq!((tree.bytes() + 500_000) / 1_000_000, megabytes, "{workload}");
            assert_eq!(trace.operations_count(), operations, "{workload}");
        }
    }

    #[test]
    fn the_built_in_files_have_their_checksums() {
        let files: [&'static [u8]; 4] = [
            include_bytes!("../../../workloads/page.tree.gz"),
            include_bytes!("../../../workloads/page.trace.gz"),
            include_bytes!("../../../workloads/build.tree.gz"),
            include_bytes!("../../../workloads/build.trace.gz"),
        ];
        for packed in files {
            let (mut checked, mut unchecked) = (Vec::new(), Vec::new());
            GzDecoder::new(packed).read_to_end(&mut checked).expect("a built-in file");
            unpack(packed).read_to_end(&mut unchecked).expect("a built-in file");
            assert!(checked == unchecked);
        }
    }

    /// So that a wrong result of a replay is never an error of the workload.
    #[test]
    fn traces_expect_each_path_to_match_their_tree() {
        for workload in Workload::ALL {
            let (tree, trace) = (workload.tree(), workload.trace());
            for operation in trace.operations() {
                let TraceOperation::Path { does, path, expected } = *operation else {
                    continue;
                };
                let found = tree.resolve(trace.path(path), does != PathOperation::Lstat);
                let exists = matches!(expected, ExpectedResult::Success | ExpectedResult::Invalid);
                assert_eq!(found.is_some(), exists, "{workload}: {operation:?} of {}", trace.path(path));
            }
        }
    }
}
