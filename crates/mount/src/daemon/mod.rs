//! A mount's life: from a plan to a live mount, its signals, and its end.

mod place;
mod surroundings;

use std::path::PathBuf;

use crate::helper::Failure;
use crate::options::{Settings, Source};

/// The type that mountinfo shows.
pub const TYPE: &str = "fuse.curt";

/// What is to be mounted, where and how.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The server and its export.
    pub source: Source,
    /// The mount point.
    pub target: PathBuf,
    /// The options.
    pub settings: Settings,
    /// Whether /run/mount/utab shows the mount.
    pub table: bool,
    /// The mount namespace to mount in: a process id or a path.
    pub namespace: Option<String>,
    /// Whether reasons are wanted.
    pub verbose: bool,
}

/// How far a mount has come.
#[derive(Debug)]
pub enum Progress {
    /// The mount can be used.
    Live,
    /// The server is not there; the mount is tried again (`bg`).
    Retrying(Failure),
}

/// Checks what can be checked without the server and without mounting.
///
/// # Errors
/// The mount point cannot be mounted on.
pub fn check(plan: &Plan) -> Result<(), Failure> {
    place::mount_point(&plan.target, &plan.source.text()).map(drop)
}

/// Mounts, and serves the mount until it is unmounted.
///
/// # Errors
/// The mount did not come to be, or the session failed.
pub fn run(plan: &Plan, progress: &dyn Fn(Progress)) -> Result<(), Failure> {
    if let Some(namespace) = &plan.namespace {
        place::enter_namespace(namespace)?;
    }
    surroundings::prepare();
    let _ = progress;
    todo!()
}
