//! A file with the last calls that change names or attributes, and their replies. It outlives the
//! process.
//!
//! A call is written twice into one slot: when it begins, and with its reply before the reply is
//! sent. The file is not synced: written data stay in the page cache when the process is killed,
//! and only this case is covered. After a loss of power or a reboot the file is not valid; its
//! header contains the boot id. Each slot has a checksum, keyed with the server's secret. So the
//! replies of a torn slot, a damaged file or another server's file are ignored.
//!
//! The file consists of a header of one slot's size and [`SLOTS`] slots, used as a ring. All
//! numbers are little-endian.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use curt_types::Timestamp;
use rustix::fs::OFlags;
use siphasher::sip::SipHasher13;

use super::super::ChangedNames;
use super::fingerprint::Fingerprint;
use super::interrupted::InterruptedCall;
use super::table::ReplyCacheKey;

const MAGIC: [u8; 8] = *b"CURTRPLY";
/// The version of the layout.
const FORMAT: u32 = 1;
/// The size of a slot in bytes.
const SLOT: usize = 512;
/// The number of saved calls: far more than clients have in progress at any time, which are those
/// that they retransmit.
const SLOTS: usize = 4096;
const FILE: usize = SLOT * (1 + SLOTS);
/// The bytes of a slot before the reply.
const HEAD: usize = 88;
/// Maximum size of a saved reply. The longest reply, to a RENAME or a CREATE, has less than 300
/// bytes.
const REPLY_MAX: usize = SLOT - HEAD;

const STATE_BEGUN: u16 = 1;
const STATE_ANSWERED: u16 = 2;

/// The kernel's file with the boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The length of a boot id as text.
const BOOT_ID_BYTES: usize = 36;

/// The file with the saved calls.
pub(super) struct SavedReplies {
    file: File,
    checksums: SipHasher13,
    /// The number of the next call. Relaxed: it only has to be unique.
    next: AtomicU64,
    /// A write failed: calls are not saved any more.
    failed: AtomicBool,
}

/// A call in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SavedCall {
    pub(super) begun: InterruptedCall,
    /// The time of its reply, and the reply; none if the server ended before.
    pub(super) answer: Option<(Duration, Box<[u8]>)>,
}

/// A reply to save, and its time.
#[derive(Clone, Copy)]
struct SavedAnswer<'a> {
    at: Duration,
    reply: &'a [u8],
}

/// The number of a call, which determines its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotNumber(u64);

impl SavedReplies {
    /// Opens or creates the file at `path`. Returns its calls in the order in which they began. A
    /// file that is damaged, or of another boot or server, is replaced by an empty one.
    pub(super) fn open(path: &Path, secret: &[u8; 16]) -> io::Result<(Self, Vec<SavedCall>)> {
        Self::open_in_boot(path, secret, &boot_id()?)
    }

    fn open_in_boot(
        path: &Path,
        secret: &[u8; 16],
        boot: &[u8; BOOT_ID_BYTES],
    ) -> io::Result<(Self, Vec<SavedCall>)> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(path)?;
        let saved = Self {
            file,
            checksums: SipHasher13::new_with_key(secret),
            next: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        };
        let header = saved.header(boot);
        let bytes = saved.contents()?;
        if bytes.as_deref().is_none_or(|bytes| bytes[..SLOT] != header) {
            saved.begin_anew(&header)?;
            return Ok((saved, Vec::new()));
        }
        let slots = bytes.iter().flat_map(|bytes| bytes[SLOT..].chunks(SLOT)).enumerate();
        let mut calls: Vec<_> = slots.filter_map(|(place, slot)| saved.read(place, slot)).collect();
        calls.sort_unstable_by_key(|(number, _)| *number);
        let next = calls.last().map_or(0, |(number, _)| number + 1);
        saved.next.store(next, Ordering::Relaxed);
        Ok((saved, calls.into_iter().map(|(_, call)| call).collect()))
    }

    /// The contents of the file; none if its length is wrong.
    fn contents(&self) -> io::Result<Option<Vec<u8>>> {
        if self.file.metadata()?.len() != FILE as u64 {
            return Ok(None);
        }
        let mut bytes = vec![0; FILE];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(Some(bytes))
    }

    /// Empties the file and allocates all its space. The header is written last, because without it
    /// the file is not valid.
    fn begin_anew(&self, header: &[u8; SLOT]) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(&vec![0; FILE], 0)?;
        self.file.write_all_at(header, 0)
    }

    fn header(&self, boot: &[u8; BOOT_ID_BYTES]) -> [u8; SLOT] {
        let mut header = [0; SLOT];
        header[8..16].copy_from_slice(&MAGIC);
        header[16..20].copy_from_slice(&FORMAT.to_le_bytes());
        header[20..20 + BOOT_ID_BYTES].copy_from_slice(boot);
        self.seal(&mut header, SLOT);
        header
    }

    /// Writes the checksum of the first `length` bytes before them.
    fn seal(&self, bytes: &mut [u8; SLOT], length: usize) {
        let checksum = self.checksums.hash(&bytes[8..length]);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Saves the beginning of a call, unless saving has failed.
    pub(super) fn begin(&self, begun: &InterruptedCall) -> Option<SlotNumber> {
        if self.failed.load(Ordering::Relaxed) {
            return None;
        }
        let number = SlotNumber(self.next.fetch_add(1, Ordering::Relaxed));
        self.write(number, begun, None);
        Some(number)
    }

    /// Saves the reply to a call. A call with a reply that is too long stays unanswered in the
    /// file.
    pub(super) fn answer(&self, number: SlotNumber, begun: &InterruptedCall, at: Duration, reply: &[u8]) {
        if reply.len() <= REPLY_MAX && !self.failed.load(Ordering::Relaxed) {
            self.write(number, begun, Some(SavedAnswer { at, reply }));
        }
    }

    fn write(&self, number: SlotNumber, begun: &InterruptedCall, answer: Option<SavedAnswer<'_>>) {
        let (state, at, reply) = match answer {
            Some(SavedAnswer { at, reply }) => (STATE_ANSWERED, at, reply),
            None => (STATE_BEGUN, begun.at, &[][..]),
        };
        let mut slot = [0; SLOT];
        let peer = match begun.key.peer {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let length = u16::try_from(reply.len()).unwrap_or(0);
        let nanoseconds = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        slot[8..16].copy_from_slice(&number.0.to_le_bytes());
        slot[16..32].copy_from_slice(&peer.octets());
        slot[32..36].copy_from_slice(&begun.key.xid.to_le_bytes());
        slot[36..38].copy_from_slice(&length.to_le_bytes());
        slot[38..40].copy_from_slice(&state.to_le_bytes());
        slot[40..48].copy_from_slice(&begun.fingerprint.0.to_le_bytes());
        slot[48..56].copy_from_slice(&nanoseconds.to_le_bytes());
        slot[56..64].copy_from_slice(&begun.time.seconds().to_le_bytes());
        slot[64..68].copy_from_slice(&begun.time.nanoseconds().to_le_bytes());
        slot[72..80].copy_from_slice(&begun.subjects.created.to_le_bytes());
        slot[80..88].copy_from_slice(&begun.subjects.removed.to_le_bytes());
        let end = HEAD + reply.len();
        slot[HEAD..end].copy_from_slice(reply);
        self.seal(&mut slot, end);
        let offset = SLOT * (1 + place_of(number.0));
        if let Err(error) = self.file.write_all_at(&slot[..end], offset as u64)
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("replies are no longer saved: {error}");
        }
    }

    /// The call in a slot, if the slot is complete and in its place.
    fn read(&self, place: usize, slot: &[u8]) -> Option<(u64, SavedCall)> {
        let number = u64::from_le_bytes(field(slot, 8)?);
        let length = usize::from(u16::from_le_bytes(field(slot, 36)?));
        let sealed = slot.get(8..HEAD + length)?;
        let checksum = u64::from_le_bytes(field(slot, 0)?);
        if place_of(number) != place || self.checksums.hash(sealed) != checksum {
            return None;
        }
        let at = Duration::from_nanos(u64::from_le_bytes(field(slot, 48)?));
        let is_answered = u16::from_le_bytes(field(slot, 38)?) == STATE_ANSWERED;
        let begun = InterruptedCall {
            key: ReplyCacheKey {
                peer: Ipv6Addr::from(field::<16>(slot, 16)?).to_canonical(),
                xid: u32::from_le_bytes(field(slot, 32)?),
            },
            fingerprint: Fingerprint(u64::from_le_bytes(field(slot, 40)?)),
            subjects: ChangedNames {
                created: u64::from_le_bytes(field(slot, 72)?),
                removed: u64::from_le_bytes(field(slot, 80)?),
            },
            at,
            time: Timestamp::new(i64::from_le_bytes(field(slot, 56)?), u32::from_le_bytes(field(slot, 64)?)),
        };
        let answer = is_answered.then(|| (at, slot[HEAD..HEAD + length].into()));
        Some((number, SavedCall { begun, answer }))
    }
}

fn place_of(number: u64) -> usize {
    usize::try_from(number % SLOTS as u64).unwrap_or_default()
}

fn field<const N: usize>(slot: &[u8], at: usize) -> Option<[u8; N]> {
    slot.get(at..)?.first_chunk().copied()
}

fn boot_id() -> io::Result<[u8; BOOT_ID_BYTES]> {
    let text = std::fs::read(BOOT_ID)?;
    let id = text.first_chunk().copied();
    id.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{BOOT_ID} is too short")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use proptest::prelude::*;

    use super::*;

    const SECRET: [u8; 16] = [7; 16];
    const BOOT: [u8; BOOT_ID_BYTES] = [b'b'; BOOT_ID_BYTES];

    fn begun(xid: u32) -> InterruptedCall {
        let peer = if xid.is_multiple_of(2) { "10.0.0.1" } else { "2001:db8::1" };
        InterruptedCall {
            key: ReplyCacheKey { peer: peer.parse().unwrap(), xid },
            fingerprint: Fingerprint(u64::from(xid) << 32 | 5),
            subjects: ChangedNames { created: 3, removed: 4 },
            at: Duration::from_nanos(u64::from(xid) + 1_000_000_007),
            time: Timestamp::new(1_700_000_000, 999_999_999),
        }
    }

    /// A file with calls 0 to 9, of which those from 5 on have no reply.
    fn ten(path: &Path) -> Vec<SavedCall> {
        let (saved, before) = SavedReplies::open_in_boot(path, &SECRET, &BOOT).unwrap();
        assert_eq!(before, []);
        let calls = (0..10).map(|xid| {
            let begun = begun(xid);
            let number = saved.begin(&begun).unwrap();
            let answer = (xid < 5)
                .then(|| (Duration::from_secs(9), vec![u8::try_from(xid).unwrap(); 200].into_boxed_slice()));
            if let Some((at, reply)) = &answer {
                saved.answer(number, &begun, *at, reply);
            }
            // The time of an answered call is that of its reply.
            let at = answer.as_ref().map_or(begun.at, |(at, _)| *at);
            SavedCall { begun: InterruptedCall { at, ..begun }, answer }
        });
        calls.collect()
    }

    fn found(path: &Path) -> Vec<SavedCall> {
        SavedReplies::open_in_boot(path, &SECRET, &BOOT).unwrap().1
    }

    #[test]
    fn calls_and_replies_are_found_by_the_next_server_and_by_the_one_after_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("replies");
        let calls = ten(&path);
        assert_eq!(found(&path), calls);
        assert_eq!(found(&path), calls);
        let (saved, _) = SavedReplies::open_in_boot(&path, &SECRET, &BOOT).unwrap();
        saved.begin(&begun(10)).unwrap();
        assert_eq!(found(&path).len(), 11);
        // The oldest calls are overwritten first.
        for xid in 0..u32::try_from(SLOTS).unwrap() - 3 {
            saved.begin(&begun(xid)).unwrap();
        }
        let kept = found(&path);
        assert_eq!((kept.len(), kept[0].begun.key.xid), (SLOTS, 8));
    }

    // SEMANTICS: restart-4.
    #[test]
    fn a_file_of_another_boot_server_format_or_length_is_nothing_and_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("replies");
        let other_boot: [u8; BOOT_ID_BYTES] = [b'c'; BOOT_ID_BYTES];
        for (secret, boot) in [(SECRET, other_boot), ([8; 16], BOOT)] {
            let _ = std::fs::remove_file(&path);
            ten(&path);
            assert_eq!(SavedReplies::open_in_boot(&path, &secret, &boot).unwrap().1, []);
            assert_eq!(found(&path), [], "it was emptied");
        }
        let whole = {
            let _ = std::fs::remove_file(&path);
            ten(&path);
            std::fs::read(&path).unwrap()
        };
        let mut other_format = whole.clone();
        other_format[16] += 1;
        let longer = [&whole[..], &[0]].concat();
        for bytes in [&whole[..0], &whole[..100], &whole[..FILE - 1], &longer, &other_format] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(found(&path), []);
            assert_eq!(ten(&path).len(), 10, "it works again");
        }
        // Only its owner may access a new file.
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::remove_file(&path).unwrap();
        ten(&path);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_reply_that_no_slot_has_room_for_stays_unanswered() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("replies");
        let (saved, _) = SavedReplies::open_in_boot(&path, &SECRET, &BOOT).unwrap();
        for (xid, length) in [(0, REPLY_MAX), (1, REPLY_MAX + 1)] {
            let number = saved.begin(&begun(xid)).unwrap();
            saved.answer(number, &begun(xid), Duration::ZERO, &vec![1; length]);
        }
        let is_answered: Vec<_> = found(&path).iter().map(|call| call.answer.is_some()).collect();
        assert_eq!(is_answered, [true, false]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// Whatever happens to the bytes, only calls that were saved are found.
        // SEMANTICS: restart-4.
        #[test]
        fn of_a_damaged_file_only_whole_calls_are_found(
            damage in prop::collection::vec((0_usize..14 * SLOT, any::<u8>()), 1..40),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("replies");
            let calls = ten(&path);
            let mut bytes = std::fs::read(&path).unwrap();
            for (at, byte) in damage {
                bytes[at] = byte;
            }
            std::fs::write(&path, bytes).unwrap();
            for call in found(&path) {
                prop_assert!(calls.contains(&call));
            }
        }
    }
}
