//! Chooses the next call from a seed and the common state of both directories.

use curt_tests::random::Random;
use rustix::fs::{Access, AtFlags, FallocateFlags, OFlags, RenameFlags, SeekFrom};

use crate::call::{
    Actor, CALL_BYTES, CallPath, LockChange, LockKind, NewTime, SLOTS, SeededBytes, SystemCall,
};
use crate::names::path;

/// Typical maximum size of files.
const FILE_BYTES: usize = 200 << 10;
/// An offset beyond 32 bits.
const FAR: u64 = 5 << 30;
/// Modes of files and directories.
const MODES: [u32; 11] = [0o777, 0o755, 0o700, 0o1777, 0o750, 0o2775, 0o666, 0o644, 0o600, 0o444, 0];
/// Additional flags of open(2).
const EXTRAS: [OFlags; 6] =
    [OFlags::EXCL, OFlags::TRUNC, OFlags::APPEND, OFlags::DIRECTORY, OFlags::NOFOLLOW, OFlags::SYNC];

/// The common state: existing paths, and the users of slots.
pub(crate) struct DrawState<'k> {
    pub(crate) paths: &'k [Vec<u8>],
    pub(crate) slots: &'k [Option<Actor>],
}

impl SystemCall {
    /// Chooses the next call and its caller.
    pub(crate) fn draw(random: &mut Random, known: &DrawState<'_>) -> (Actor, Self) {
        let used: Vec<usize> = (0..SLOTS).filter(|slot| known.slots[*slot].is_some()).collect();
        let actor = if random.below(10) < 7 { Actor::Root } else { Actor::User };
        match random.below(100) {
            0..17 => (actor, Self::draw_open(random, known)),
            17..50 if !used.is_empty() => {
                let slot = used[random.below(used.len())];
                let call = Self::draw_on_file(random, slot, &used);
                // A file is used by its opener.
                (known.slots[slot].unwrap_or(Actor::Root), call)
            }
            _ => (actor, Self::draw_on_path(random, known.paths)),
        }
    }

    /// Chooses the next call of a run that is about locks: of a few files, which many slots have
    /// open.
    pub(crate) fn draw_for_locks(random: &mut Random, known: &DrawState<'_>) -> (Actor, Self) {
        let used: Vec<usize> = (0..SLOTS).filter(|slot| known.slots[*slot].is_some()).collect();
        let free = (0..SLOTS).find(|slot| known.slots[*slot].is_none());
        let call = match (free, random.below(100)) {
            (Some(slot), 0..30) => {
                let path = CallPath([b"a", b"b", b"c"][random.below(3)].to_vec());
                let flags = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR][random.below(4)];
                Self::Open { slot, path, flags: flags | OFlags::CREATE | OFlags::CLOEXEC, mode: 0o666 }
            }
            (_, number) if !used.is_empty() => {
                let slot = used[random.below(used.len())];
                match number {
                    0..40 => Self::Close { slot },
                    40..45 => Self::WriteAt { slot, offset: 0, bytes: SeededBytes::draw(random) },
                    45..50 => Self::ReadAt { slot, offset: 0, length: CALL_BYTES },
                    _ => Self::draw_lock(random, slot),
                }
            }
            _ => Self::List { path: CallPath(b".".to_vec()) },
        };
        (Actor::Root, call)
    }

    fn draw_lock(random: &mut Random, slot: usize) -> Self {
        // Few bytes, so that locks meet, split and merge.
        let first = match random.below(20) {
            0 => i64::MAX - 3,
            1 => 0,
            _ => i64::try_from(random.below(24)).unwrap_or(0),
        };
        let length = i64::try_from(random.below(9)).unwrap_or(0);
        let kind = [LockKind::Process, LockKind::OpenFile, LockKind::Flock][random.below(3)];
        if kind != LockKind::Flock && random.below(4) == 0 {
            return Self::TestLock { slot, kind, exclusive: random.below(2) == 0, first, length };
        }
        let change = [LockChange::Shared, LockChange::Exclusive, LockChange::Unlocked][random.below(3)];
        Self::Lock { slot, kind, change, first, length }
    }

    fn draw_open(random: &mut Random, known: &DrawState<'_>) -> Self {
        let Some(slot) = known.slots.iter().position(Option::is_none) else {
            return Self::Close { slot: random.below(SLOTS) };
        };
        let mut flags = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR][random.below(4)];
        if random.below(2) == 0 {
            flags |= OFlags::CREATE;
        }
        for extra in EXTRAS {
            if random.below(8) == 0 {
                flags |= extra;
            }
        }
        Self::Open {
            slot,
            path: CallPath(path(random, known.paths)),
            // Opens of FIFOs do not wait for each other.
            flags: flags | OFlags::NONBLOCK | OFlags::CLOEXEC,
            mode: mode(random),
        }
    }

    fn draw_on_file(random: &mut Random, slot: usize, used: &[usize]) -> Self {
        let length = random.below(CALL_BYTES);
        match random.below(105) {
            100.. => Self::draw_lock(random, slot),
            0..12 => Self::Close { slot },
            12..32 => Self::WriteAt { slot, offset: offset(random), bytes: SeededBytes::draw(random) },
            32..41 => Self::Write { slot, bytes: SeededBytes::draw(random) },
            41..54 => Self::ReadAt { slot, offset: offset(random), length },
            54..59 => Self::Read { slot, length },
            59..65 => Self::SetLength { slot, length: offset(random) },
            65..70 => Self::Seek { slot, to: seek(random) },
            70..72 => Self::Allocate {
                slot,
                flags: allocation(random),
                offset: offset(random),
                length: 1 + length as u64,
            },
            72..75 => Self::CopyRange {
                from: slot,
                offset: offset(random),
                to: used[random.below(used.len())],
                to_offset: offset(random),
                length,
            },
            75..81 => Self::MapWrite {
                slot,
                offset: random.below(FILE_BYTES),
                bytes: SeededBytes::draw(random),
                synced: random.below(2) == 0,
            },
            81..85 => Self::MapRead { slot, offset: random.below(FILE_BYTES), length },
            85..88 => Self::Sync { slot, data_only: random.below(2) == 0 },
            88..93 => Self::StatOpen { slot },
            93..95 => Self::ModeOpen { slot, mode: mode(random) },
            95..97 => Self::TimesOpen { slot, access: time(random), change: time(random) },
            _ => Self::ListOpen { slot },
        }
    }

    fn draw_on_path(random: &mut Random, known: &[Vec<u8>]) -> Self {
        let path = CallPath(path(random, known));
        match random.below(100) {
            0..12 => Self::MakeDirectory { path, mode: mode(random) },
            12..18 => Self::RemoveDirectory { path },
            18..28 => Self::Unlink { path },
            28..44 => Self::draw_second(random, path, known),
            44..50 => Self::Symlink { target: CallPath(crate::names::path(random, known)), path },
            50..53 => Self::ReadLink { path },
            53..56 => {
                let kind = [0o010_000, 0o020_000, 0o140_000, 0o100_000][random.below(4)];
                Self::MakeNode { path, kind, mode: mode(random) }
            }
            56..62 => Self::Mode { path, mode: mode(random) },
            62..66 => Self::Owner { path, user: owner(random), group: owner(random), flags: follow(random) },
            66..70 => Self::Times { path, access: time(random), change: time(random), flags: follow(random) },
            70..82 => Self::Stat { path, flags: follow(random) },
            82..88 => Self::Access {
                path,
                mode: Access::from_bits_retain(u32::try_from(random.below(8)).unwrap_or(0)),
            },
            88..94 => Self::List { path },
            94..96 => Self::ListWhileChanging { path },
            96 => Self::FileSystem { path },
            97 => Self::SetAttribute { path },
            98 => Self::GetAttribute { path },
            _ => Self::ListAttributes { path },
        }
    }

    fn draw_second(random: &mut Random, from: CallPath, known: &[Vec<u8>]) -> Self {
        let to = CallPath(path(random, known));
        match random.below(16) {
            0..10 => Self::Rename { from, to, flags: RenameFlags::empty() },
            10 => Self::Rename { from, to, flags: RenameFlags::NOREPLACE },
            11 => Self::Rename { from, to, flags: RenameFlags::EXCHANGE },
            12 => Self::Link { from, to, flags: AtFlags::SYMLINK_FOLLOW },
            _ => Self::Link { from, to, flags: AtFlags::empty() },
        }
    }
}

fn offset(random: &mut Random) -> u64 {
    match random.below(60) {
        0 => FAR + random.below(FILE_BYTES) as u64,
        1..10 => 0,
        _ => random.below(FILE_BYTES) as u64,
    }
}

fn mode(random: &mut Random) -> u32 {
    // The first ones are common names, so that calls affect the same files.
    match random.below(2) {
        0 => MODES[random.below(2)],
        _ => MODES[random.below(MODES.len())],
    }
}

fn seek(random: &mut Random) -> SeekFrom {
    let position = offset(random);
    let signed = i64::try_from(position).unwrap_or(0) - 5000;
    match random.below(5) {
        0 => SeekFrom::Start(position),
        1 => SeekFrom::Current(signed),
        2 => SeekFrom::End(signed),
        3 => SeekFrom::Data(position),
        _ => SeekFrom::Hole(position),
    }
}

fn allocation(random: &mut Random) -> FallocateFlags {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE, punch][random.below(3)]
}

fn owner(random: &mut Random) -> Option<u32> {
    [None, Some(0), Some(1000), Some(1000), Some(2000)][random.below(5)]
}

fn follow(random: &mut Random) -> AtFlags {
    [AtFlags::empty(), AtFlags::SYMLINK_NOFOLLOW][random.below(2)]
}

fn time(random: &mut Random) -> NewTime {
    match random.below(5) {
        0 => NewTime::Now,
        1 => NewTime::Omit,
        _ => NewTime::At {
            seconds: i64::try_from(random.below(1_000_000_000)).unwrap_or(0),
            nanoseconds: i64::try_from(random.below(1_000_000_000)).unwrap_or(0),
        },
    }
}
