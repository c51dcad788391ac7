//! A run: makes each call in both directories, compares the results, and the trees at the end.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use curt_tests::random::Random;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::SameCallsArguments;
use crate::actor::as_actor;
use crate::call::{Actor, CallPath, LockChange, LockKind, SLOTS, SystemCall};
use crate::draw::DrawState;
use crate::expected_differences::{ComparedCall, MountRefusal, is_expected_difference, is_left_out};
use crate::names;
use crate::stats::StatHistory;
use crate::test_directory::{CallAnswer, CallOutcome, TestDirectory};
use crate::tree;

/// Interval of updating the list of existing paths, in calls.
const PATHS_EVERY: u64 = 25;
/// Timeout of the removal of a file after its last close, which close(2) does not wait for.
const REMOVED: Duration = Duration::from_secs(60);

/// The user of a slot, and the object in the local directory.
#[derive(Clone, Copy)]
struct OpenSlot {
    actor: Actor,
    inode: u64,
    is_regular: bool,
}

/// The state of a run.
pub(crate) struct SameCallsRun {
    arguments: SameCallsArguments,
    local: TestDirectory,
    mount: TestDirectory,
    held: [Option<OpenSlot>; SLOTS],
    stats: StatHistory,
    pub(crate) history: VecDeque<String>,
    /// Number of calls that succeeded in both directories.
    pub(crate) succeeded: u64,
}

impl SameCallsRun {
    pub(crate) fn new(arguments: SameCallsArguments) -> Self {
        Self {
            local: TestDirectory::new(&arguments.local),
            mount: TestDirectory::new(&arguments.mount),
            arguments,
            held: [None; SLOTS],
            stats: StatHistory::default(),
            history: VecDeque::new(),
            succeeded: 0,
        }
    }

    /// Makes the calls.
    pub(crate) fn calls(&mut self) -> Result<(), String> {
        let mut random = Random::new(self.arguments.seed);
        let mut paths = Vec::new();
        for number in 1..=self.arguments.operations {
            if number % PATHS_EVERY == 1 {
                paths = tree::paths(&self.arguments.local)?;
            }
            let slots = self.held.map(|held| held.map(|held| held.actor));
            let known = DrawState { paths: &paths, slots: &slots };
            let draw = if self.arguments.locks { SystemCall::draw_for_locks } else { SystemCall::draw };
            let (actor, call) = draw(&mut random, &known);
            if is_left_out(actor, &call) || self.is_of_other_kind(&call) {
                continue;
            }
            if self.history.len() == self.arguments.history.max(1) {
                self.history.pop_front();
            }
            self.history.push_back(format!("{number}: {actor:?} {call:?}"));
            self.step(actor, &call).map_err(|what| format!("call {number}: {what}"))?;
        }
        Ok(())
    }

    /// A file has either locks of flock(2) or of fcntl(2). These conflict at a server alone.
    fn is_of_other_kind(&self, call: &SystemCall) -> bool {
        let (SystemCall::Lock { slot, kind, .. } | SystemCall::TestLock { slot, kind, .. }) = *call else {
            return false;
        };
        let has_flock = self.held[slot].is_some_and(|held| held.inode % 2 == 1);
        has_flock != (kind == LockKind::Flock)
    }

    /// Makes one call in both directories.
    fn step(&mut self, actor: Actor, call: &SystemCall) -> Result<(), String> {
        self.prepare(call)?;
        let (closed, victims) = (call.slot().and_then(|slot| self.held[slot]), self.victims(call));
        if let SystemCall::MapRead { slot, .. } | SystemCall::MapWrite { slot, .. } = *call {
            self.stats.mapped.extend(self.held[slot].map(|held| held.inode));
        }
        let mut mount = as_actor(actor, || self.mount.perform(call));
        match (MountRefusal::of(call), &mount) {
            (Some(refused), Err(errno)) if refused.says.contains(errno) => return Ok(()),
            (Some(_), Err(errno)) => return Err(format!("the mount refused it with {errno:?}")),
            // It failed, or is supported after all.
            (Some(_), Ok(_)) | (None, _) => {}
        }
        if mount == Err(Errno::NOTEMPTY) && !self.stats.orphans.is_empty() {
            // Files that were removed while open are still in a directory on the server.
            self.close_where(|held, orphans| orphans.contains(&held.inode))?;
            mount = as_actor(actor, || self.mount.perform(call));
        }
        let local = as_actor(actor, || self.local.perform(call));
        if let Some(last) = self.history.back_mut() {
            last.push_str(&format!(" = {}", shown(&local)));
        }
        self.compare(call, &local, &mount)?;
        if let SystemCall::Lock { slot, kind: LockKind::Flock, first, length, .. } = *call
            && local == Err(Errno::AGAIN)
        {
            // Locally the lock that was to be converted is lost (flock(2)), at a server it is not.
            let change = LockChange::Unlocked;
            let unlock = SystemCall::Lock { slot, kind: LockKind::Flock, change, first, length };
            let unlocked = [&mut self.local, &mut self.mount].map(|directory| directory.perform(&unlock));
            if unlocked[0] != unlocked[1] {
                return Err(format!("unlocked: {unlocked:?}"));
            }
        }
        if local.is_ok() && mount.is_ok() {
            self.succeeded += 1;
            self.stats.orphans.extend(victims);
            self.stats.were_orphans.extend(victims);
            self.keep_account(actor, call, closed)?;
        }
        Ok(())
    }

    /// Closes files whose results would differ because the server does not know who has them open.
    fn prepare(&mut self, call: &SystemCall) -> Result<(), String> {
        let names: &[&CallPath] = match call {
            // A withdrawn permission applies from the next request on.
            SystemCall::Mode { path, .. } | SystemCall::Owner { path, .. } => {
                let inodes = self.inodes_at(&[path]);
                return self.before_rights_change(&inodes);
            }
            SystemCall::ModeOpen { slot, .. } => {
                let inodes: Vec<u64> = self.held[*slot].iter().map(|held| held.inode).collect();
                return self.before_rights_change(&inodes);
            }
            // Of objects that are removed while open only files remain.
            SystemCall::Unlink { path } | SystemCall::RemoveDirectory { path } => &[path],
            SystemCall::Rename { to, .. } => &[to],
            _ => return Ok(()),
        };
        let inodes = self.inodes_at(names);
        self.close_where(|held, _| !held.is_regular && inodes.contains(&held.inode))
    }

    /// A user who opened a file and has lost permission is refused, and a file that was removed
    /// while open is finally removed by its remover, if still permitted.
    fn before_rights_change(&mut self, inodes: &[u64]) -> Result<(), String> {
        self.close_where(|held, orphans| {
            orphans.contains(&held.inode) || held.actor == Actor::User && inodes.contains(&held.inode)
        })
    }

    /// The inodes at these paths, and of their targets if they are links.
    fn inodes_at(&self, names: &[&CallPath]) -> Vec<u64> {
        let followed = |name: &&CallPath| {
            let mut path = name.0.clone();
            while path.last() == Some(&b'/') {
                path.pop();
            }
            path
        };
        let look = |path: Vec<u8>| [self.local.look(&path), self.local.look_behind(&path)];
        let seen = names.iter().map(followed).flat_map(look);
        seen.flatten().map(|seen| seen.inode).collect()
    }

    /// The open object that loses a name by the call, if the call succeeds.
    fn victims(&self, call: &SystemCall) -> Option<u64> {
        let (SystemCall::Unlink { path: name } | SystemCall::Rename { to: name, .. }) = call else {
            return None;
        };
        let seen = self.local.look(&name.0)?;
        let is_held = self.held.iter().flatten().any(|held| held.inode == seen.inode);
        let stays = matches!(call, SystemCall::Rename { from, .. }
            if self.local.look(&from.0).is_some_and(|from| from.inode == seen.inode));
        (is_held && !stays).then_some(seen.inode)
    }

    fn compare(&mut self, call: &SystemCall, local: &CallOutcome, mount: &CallOutcome) -> Result<(), String> {
        if let Ok(CallAnswer::Wrong(what)) = mount {
            return Err(format!("on the mount {what}"));
        }
        if let (Ok(CallAnswer::Stat(local)), Ok(CallAnswer::Stat(mount))) = (local, mount) {
            return self.stats.compare(local, mount);
        }
        let object = match call {
            SystemCall::Open { path, .. } | SystemCall::Access { path, .. } => {
                self.local.look_behind(&path.0)
            }
            _ => call.slot().and_then(|slot| self.local.look_open(slot)),
        };
        let object = object.as_ref();
        if local == mount {
            return Ok(());
        }
        if !is_expected_difference(&ComparedCall { call, local, mount, object }) {
            return Err(format!("{} and on the mount {}", shown(local), shown(mount)));
        }
        self.make_alike(call);
        Ok(())
    }

    /// After expected differences: brings both to the same state.
    fn make_alike(&mut self, call: &SystemCall) {
        for world in [&mut self.local, &mut self.mount] {
            match *call {
                SystemCall::Open { slot, .. } => world.close(slot),
                SystemCall::Seek { slot, .. } => {
                    // Works on all objects that can be opened except FIFOs, which have no position.
                    let _ = world.perform(&SystemCall::Seek { slot, to: SeekFrom::Start(0) });
                }
                _ => {}
            }
        }
    }

    /// Updates the state of open files after a successful call.
    fn keep_account(
        &mut self,
        actor: Actor,
        call: &SystemCall,
        closed: Option<OpenSlot>,
    ) -> Result<(), String> {
        match *call {
            SystemCall::Open { slot, .. } => {
                let seen = self.local.look_open(slot).ok_or("what was opened is not open")?;
                self.held[slot] = Some(OpenSlot { actor, inode: seen.inode, is_regular: seen.is_regular() });
                Ok(())
            }
            SystemCall::Close { slot } => {
                self.held[slot] = None;
                closed.map_or(Ok(()), |held| self.after_close(held))
            }
            _ => Ok(()),
        }
    }

    fn close_where(&mut self, matches: impl Fn(&OpenSlot, &HashSet<u64>) -> bool) -> Result<(), String> {
        for slot in 0..SLOTS {
            if let Some(held) = self.held[slot].take_if(|held| matches(held, &self.stats.orphans)) {
                self.mount.close(slot);
                self.local.close(slot);
                self.after_close(held)?;
            }
        }
        Ok(())
    }

    /// The server removes a file that was removed while open after its last close, which is not
    /// reported.
    fn after_close(&mut self, held: OpenSlot) -> Result<(), String> {
        if self.held.iter().flatten().any(|other| other.inode == held.inode)
            || !self.stats.orphans.remove(&held.inode)
        {
            return Ok(());
        }
        self.stats.silly_removed += 1;
        let deadline = Instant::now() + REMOVED;
        loop {
            let paths = tree::paths(&self.arguments.export)?;
            let name = |path: &[u8]| {
                path.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(b".nfs"))
            };
            let left = paths.iter().filter(|path| name(path)).count();
            if left <= self.stats.orphans.len() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{left} files are kept for {} that are open", self.stats.orphans.len()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Compares the trees: through the mount, and in the exported directory.
    pub(crate) fn trees(&mut self) -> Result<(), String> {
        self.close_where(|_, _| true)?;
        let local = tree::walk(&self.arguments.local)?;
        for (name, top) in [("mount", &self.arguments.mount), ("export", &self.arguments.export)] {
            let other = tree::walk(top)?;
            for (ours, theirs) in local.iter().zip(&other) {
                let shown = names::shown(&ours.path);
                if ours.path != theirs.path {
                    return Err(format!("{shown} is {} in the {name}", names::shown(&theirs.path)));
                }
                self.stats
                    .compare(&ours.seen, &theirs.seen)
                    .map_err(|what| format!("{shown}: {what} (the {name})"))?;
                if ours.content != theirs.content {
                    return Err(format!("{shown} has other content in the {name}"));
                }
            }
            if local.len() != other.len() {
                return Err(format!("{} files, and {} in the {name}", local.len(), other.len()));
            }
        }
        Ok(())
    }
}

fn shown(outcome: &CallOutcome) -> String {
    match outcome {
        Ok(CallAnswer::Bytes(bytes)) => {
            format!("{} bytes, {:02x?}...", bytes.len(), &bytes[..bytes.len().min(8)])
        }
        Ok(CallAnswer::Names(list)) => {
            let list: Vec<_> = list.iter().map(|name| names::shown(name)).collect();
            format!("{} names: {}", list.len(), list.join(" "))
        }
        other => format!("{other:?}"),
    }
}
