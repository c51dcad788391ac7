//! The map of segments, compared with an array of bytes.

use std::{ops::Range, sync::Arc};

use curt_rpc::auth::RpcCredential;
use curt_types::WriteVerifier;

use super::random::Random;
use crate::{
    data::{
        block_pool::BlockPool,
        segments::{SegmentState, SegmentToWrite, SegmentUsage, Segments, WriteOrigin},
        shared_bytes::{ReadBytes, SharedBytes},
    },
    protocol::OpenContext,
};

const SIZE: u64 = 300;
const BLOCK: u64 = 64;

/// The state of a byte of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Byte {
    Unknown,
    Clean(u8),
    /// Value and number of the WRITE in flight.
    Dirty(u8),
    Sending(u8, u64),
    Unstable(u8, u64),
}

impl Byte {
    fn value(self) -> Option<u8> {
        match self {
            Self::Unknown => None,
            Self::Clean(value) | Self::Dirty(value) | Self::Sending(value, _) | Self::Unstable(value, _) => {
                Some(value)
            }
        }
    }
}

struct Trial {
    segments: Segments,
    blocks: Arc<BlockPool>,
    model: Vec<Byte>,
    flights: Vec<(u64, SegmentToWrite)>,
    writes: u64,
    answers: u64,
    random: Random,
    writers: [Arc<OpenContext>; 2],
}

impl Trial {
    fn range(&mut self) -> Range<u64> {
        let start = self.random.below(SIZE);
        if self.random.below(4) == 0 {
            let start = start.min(SIZE - BLOCK);
            return start - start % BLOCK..start - start % BLOCK + BLOCK;
        }
        start..(start + 1 + self.random.below(100)).min(SIZE)
    }

    fn bytes_of<'a>(model: &'a mut [Byte], range: &Range<u64>) -> std::slice::IterMut<'a, Byte> {
        let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).expect("small"));
        model[start..end].iter_mut()
    }

    fn write(&mut self) {
        let range = self.range();
        self.writes += 1;
        let value = u8::try_from(self.writes % 251).expect("small");
        let bytes = vec![value; usize::try_from(range.end - range.start).expect("small")];
        let writer = usize::try_from(self.random.below(2)).expect("small");
        let origin =
            WriteOrigin { first: self.writes, writer: Arc::clone(&self.writers[writer]), keeps: false };
        if range.start.is_multiple_of(BLOCK) && bytes.len() as u64 == BLOCK {
            self.segments.put(range.start, SharedBytes::new(bytes), origin);
        } else {
            self.segments.write(range.start, &bytes, &origin, &self.blocks);
        }
        Self::bytes_of(&mut self.model, &range).for_each(|byte| *byte = Byte::Dirty(value));
    }

    fn fill(&mut self) {
        let range = self.range();
        let value = 252;
        let bytes = SharedBytes::new(vec![value; usize::try_from(range.end - range.start).expect("small")]);
        let filled = self.segments.fill(range.start, &bytes, 0, SegmentUsage::Idle);
        let mut expected = 0;
        for byte in Self::bytes_of(&mut self.model, &range).filter(|byte| **byte == Byte::Unknown) {
            *byte = Byte::Clean(value);
            expected += 1;
        }
        assert_eq!(filled, expected);
    }

    fn depart(&mut self) {
        let flight = self.writes * 1000 + self.flights.len() as u64;
        let whole = self.random.below(2) == 0;
        let Some(segment) = self.segments.start_write(flight, whole, |_, _| true) else {
            assert!(whole || !self.model.iter().any(|byte| matches!(byte, Byte::Dirty(_))));
            return;
        };
        let range = segment.offset..segment.offset + segment.bytes.len() as u64;
        assert!(!whole || range.end - range.start == BLOCK);
        assert_eq!(range.start / BLOCK, (range.end - 1) / BLOCK, "a WRITE stays in its block");
        for (byte, sent) in Self::bytes_of(&mut self.model, &range).zip(segment.bytes.iter()) {
            assert_eq!(*byte, Byte::Dirty(*sent));
            *byte = Byte::Sending(*sent, flight);
        }
        self.flights.push((flight, segment));
    }

    /// A WRITE ends: accepted in part (the rest is sent again), accepted FILE_SYNC, or failed.
    fn land(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let chosen = usize::try_from(self.random.below(self.flights.len() as u64)).expect("small");
        let (flight, segment) = self.flights.swap_remove(chosen);
        let end = segment.offset + segment.bytes.len() as u64;
        let taken = segment.offset + 1 + self.random.below(end - segment.offset);
        let ours =
            |state: &SegmentState| matches!(state, SegmentState::InFlight(_, number) if *number == flight);
        self.answers += 1;
        let answer = self.answers;
        let stable = self.random.below(2) == 0;
        let _ = self.segments.set_states(segment.offset..taken, |state| match state {
            SegmentState::InFlight(origin, number) if *number == flight => Some(match stable {
                true => SegmentState::Clean { number: 0, usage: SegmentUsage::Idle, given: 0 },
                false => SegmentState::Unstable(origin.clone(), WriteVerifier::default(), answer),
            }),
            _ => None,
        });
        for byte in Self::bytes_of(&mut self.model, &(segment.offset..taken)) {
            match *byte {
                Byte::Sending(value, number) if number == flight && stable => *byte = Byte::Clean(value),
                Byte::Sending(value, number) if number == flight => *byte = Byte::Unstable(value, answer),
                _ => {}
            }
        }
        let fails = self.random.below(2) == 0;
        if fails {
            self.segments.cut_if(taken..end, ours);
        } else {
            let _ = self.segments.set_states(taken..end, |state| match state {
                SegmentState::InFlight(origin, number) if *number == flight => {
                    Some(SegmentState::Dirty(origin.clone()))
                }
                _ => None,
            });
        }
        for byte in Self::bytes_of(&mut self.model, &(taken..end)) {
            match *byte {
                Byte::Sending(_, number) if number == flight && fails => *byte = Byte::Unknown,
                Byte::Sending(value, number) if number == flight => *byte = Byte::Dirty(value),
                _ => {}
            }
        }
    }

    fn commit(&mut self) {
        let covers = self.random.below(self.answers + 1);
        let _ = self.segments.set_states(0..u64::MAX, |state| match state {
            SegmentState::Unstable(.., answer) if *answer <= covers => {
                Some(SegmentState::Clean { number: 0, usage: SegmentUsage::Idle, given: 0 })
            }
            _ => None,
        });
        for byte in &mut self.model {
            match *byte {
                Byte::Unstable(value, answer) if answer <= covers => *byte = Byte::Clean(value),
                _ => {}
            }
        }
    }

    fn cut(&mut self) {
        let range = self.range();
        self.segments.cut(range.clone());
        Self::bytes_of(&mut self.model, &range).for_each(|byte| *byte = Byte::Unknown);
    }

    fn check(&mut self) {
        let count = |chosen: fn(&Byte) -> bool| self.model.iter().filter(|byte| chosen(byte)).count() as u64;
        assert_eq!(self.segments.clean(), count(|byte| matches!(byte, Byte::Clean(_))));
        let unsent = count(|byte| matches!(byte, Byte::Dirty(_) | Byte::Sending(..)));
        let unstable = count(|byte| matches!(byte, Byte::Unstable(..)));
        assert_eq!((self.segments.unsent(), self.segments.unwritten()), (unsent, unsent + unstable));
        assert_eq!(self.segments.waits(u64::MAX), unsent > 0);
        let is_ours = |byte: &Byte| !matches!(byte, Byte::Unknown | Byte::Clean(_));
        assert_eq!(
            self.segments.unwritten_end(),
            self.model.iter().rposition(is_ours).map_or(0, |at| at as u64 + 1)
        );
        let mut position = 0;
        let mut seen = Vec::new();
        while position < SIZE {
            let mut bytes = ReadBytes::default();
            let until = self.segments.read(position, SIZE, &mut bytes);
            assert_eq!(until - position, bytes.len() as u64);
            seen.extend(bytes.to_vec().into_iter().map(Some));
            let known = self.segments.next_known(until).unwrap_or(SIZE);
            seen.extend((until..known).map(|_| None));
            position = known;
        }
        let expected: Vec<Option<u8>> = self.model.iter().map(|byte| byte.value()).collect();
        assert_eq!(seen, expected);
    }
}

#[test]
fn segments_equal_a_plain_array() {
    let sys = RpcCredential::Sys(curt_rpc::auth::AuthSysCredential {
        machine_name: curt_rpc::auth::MachineName::new(b"here"),
        uid: 1,
        gid: 1,
        groups: curt_rpc::auth::AuthSysGids::default(),
    });
    for seed in 0..40 {
        let mut trial = Trial {
            segments: Segments::default(),
            blocks: Arc::new(BlockPool::new(usize::try_from(BLOCK).expect("small"), 4 * BLOCK)),
            model: vec![Byte::Unknown; usize::try_from(SIZE).expect("small")],
            flights: Vec::new(),
            writes: 0,
            answers: 0,
            random: Random::new(seed),
            writers: [RpcCredential::None, sys.clone()]
                .map(|credential| Arc::new(OpenContext { owner: 0, credential: Arc::new(credential) })),
        };
        for _ in 0..500 {
            match trial.random.below(12) {
                0..=4 => trial.write(),
                5 => trial.fill(),
                6 | 7 => trial.depart(),
                8 | 9 => trial.land(),
                10 => trial.commit(),
                _ => trial.cut(),
            }
            trial.check();
        }
    }
}
