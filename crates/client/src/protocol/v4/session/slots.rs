//! The slots of a session (RFC 8881 section 2.10.6).
//!
//! A slot is used by one request at a time. Its number advances when the server has executed
//! SEQUENCE, and only then. A request without a reply leaves its slot in doubt: the server may or
//! may not have executed it. Such a slot is settled by a SEQUENCE alone, before its next use.

use curt_proto::nfs4::{SequenceId, SequenceOk4, SlotId};

/// The most slots that the client asks for and uses.
pub(in crate::protocol::v4) const SLOTS_MAX: u32 = 128;

/// The slots of a session.
#[derive(Debug, Default)]
pub(in crate::protocol::v4) struct Slots {
    slots: Vec<Slot>,
    /// No slot after this one is busy.
    busy_to: usize,
    /// How many of them the server wants to be used.
    usable: usize,
    /// How many of them the server accepts requests in; `usable` at least.
    accepted: usize,
    /// How often slots were taken.
    taken: u64,
}

/// A slot of the session.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The number of its next request.
    sequence: SequenceId,
    is_busy: bool,
    doubt: SlotDoubt,
}

/// Whether the server may have executed a request with a slot's number, or may still execute it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotDoubt {
    /// Neither.
    None,
    /// Both are possible. The number of slots that had been taken when the doubt began.
    Since(u64),
    /// The former is possible. The server was told later that the slot is not used, and accepts no
    /// SEQUENCE in it any more (`sr_highest_slotid`, section 18.46.3).
    Past,
}

/// A slot that is taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenSlot {
    index: usize,
    /// How many had been taken, with it.
    number: u64,
    pub(super) id: SlotId,
    pub(super) sequence: SequenceId,
    /// The highest slot in use.
    pub(super) highest: SlotId,
    pub(super) is_doubtful: bool,
}

impl Slot {
    const fn new(sequence: SequenceId) -> Self {
        Self { sequence, is_busy: false, doubt: SlotDoubt::None }
    }

    const fn is_doubtful(&self) -> bool {
        !matches!(self.doubt, SlotDoubt::None)
    }

    const fn may_be_executed(&self) -> bool {
        matches!(self.doubt, SlotDoubt::Since(_))
    }
}

impl Slots {
    /// A session with this many slots was created.
    pub(super) fn created(&mut self, count: u32) {
        let count = usize::try_from(count.clamp(1, SLOTS_MAX)).unwrap_or(1);
        self.slots = vec![Slot::new(SequenceId(1)); count];
        (self.usable, self.accepted) = (count, count);
    }

    /// Takes the lowest free slot that the server wants to be used; those in doubt come last.
    pub(super) fn take_free(&mut self) -> Option<TakenSlot> {
        let mut slots = self.slots.iter().take(self.usable);
        let settled = slots.clone().position(|slot| !slot.is_busy && !slot.is_doubtful());
        let index = settled.or_else(|| slots.position(|slot| !slot.is_busy))?;
        Some(self.take(index))
    }

    /// Takes a free slot in doubt. It may be one that the server wants not to be used. Those in
    /// which the server accepts nothing are settled by telling it ([`Self::must_tell`]).
    pub(super) fn take_doubtful(&mut self) -> Option<TakenSlot> {
        let mut slots = self.slots.iter().take(self.accepted);
        let index = slots.position(|slot| slot.may_be_executed() && !slot.is_busy)?;
        Some(self.take(index))
    }

    fn take(&mut self, index: usize) -> TakenSlot {
        self.taken += 1;
        let slot = &mut self.slots[index];
        slot.is_busy = true;
        let (sequence, is_doubtful) = (slot.sequence, slot.is_doubtful());
        let highest = self.highest_busy(index);
        let id = |index: usize| SlotId(u32::try_from(index).unwrap_or(u32::MAX));
        let (id, highest) = (id(index), id(highest));
        TakenSlot { index, number: self.taken, id, sequence, highest, is_doubtful }
    }

    /// The number of requests that are outstanding.
    pub(super) fn busy(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_busy).count()
    }

    /// The highest busy slot; `taken` is busy. Searched for from the last one on, because a session
    /// has many slots and few are busy.
    fn highest_busy(&mut self, taken: usize) -> usize {
        let to = self.busy_to.max(taken).saturating_add(1).min(self.slots.len());
        self.busy_to = self.slots[..to].iter().rposition(|slot| slot.is_busy).unwrap_or(taken);
        self.busy_to
    }

    /// The server wants no more slots than these to be used.
    pub(in crate::protocol::v4) fn limit(&mut self, target: SlotId) {
        self.usable = self.up_to(target);
        self.accepted = self.accepted.max(self.usable);
    }

    /// How many slots there are up to this one.
    fn up_to(&self, highest: SlotId) -> usize {
        let highest = usize::try_from(highest.0).unwrap_or(usize::MAX);
        highest.saturating_add(1).clamp(1, self.slots.len().max(1))
    }

    /// The server was told of the highest slot in use, and accepts no more than these: it does not
    /// execute requests in higher ones any more. The slots that it only wants not to be used are
    /// settled by a SEQUENCE in them.
    pub(super) fn told(&mut self, asked: &TakenSlot, ok: &SequenceOk4) {
        // The server may wish for more than it accepts yet.
        self.limit(ok.target_highest_slot.min(ok.highest_slot));
        self.accepted = self.up_to(ok.highest_slot);
        let first = self.accepted.max(self.up_to(asked.highest));
        for slot in self.slots.iter_mut().skip(first).filter(|slot| !slot.is_busy) {
            if matches!(slot.doubt, SlotDoubt::Since(taken) if taken < asked.number) {
                slot.doubt = SlotDoubt::Past;
            }
        }
    }

    /// Whether the outcome of a request that nobody waits for is unknown.
    pub(in crate::protocol::v4) fn has_doubtful(&self) -> bool {
        self.slots.iter().any(Slot::may_be_executed)
    }

    /// Whether a request in a slot that the server does not accept any more is in doubt until it is
    /// told that the slot is not used.
    pub(super) fn must_tell(&self) -> bool {
        let mut unused = self.slots.iter().skip(self.accepted);
        unused.any(|slot| slot.may_be_executed() && !slot.is_busy)
    }

    /// The slot's number is used up.
    pub(super) fn advance(&mut self, taken: &TakenSlot) {
        let slot = &mut self.slots[taken.index];
        *slot = Slot::new(slot.sequence.next());
    }

    /// The slot's number is still to be used.
    pub(super) fn release(&mut self, taken: &TakenSlot) {
        self.slots[taken.index].is_busy = false;
    }

    /// The request has no reply.
    pub(super) fn doubt(&mut self, taken: &TakenSlot) {
        let slot = &mut self.slots[taken.index];
        (slot.is_busy, slot.doubt) = (false, SlotDoubt::Since(self.taken));
    }
}
