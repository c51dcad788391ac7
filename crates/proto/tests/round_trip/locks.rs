//! NLM version 4 and NSM.

use curt_proto::nlm4::*;
use curt_proto::nsm;
use curt_types::{ByteRange, LockType};
use curt_xdr::{DecodeError, Opaque, decode_all};
use proptest::prelude::*;

use crate::numbers::Numbers;
use crate::survival::{bytes_of, survives};

fn netobj(bytes: &[u8]) -> NetObj<'_> {
    Opaque::new(bytes).unwrap()
}

fn i32_of(n: &mut Numbers) -> i32 {
    n.u32().cast_signed()
}

fn lock<'a>(n: &mut Numbers, bytes: &'a [u8]) -> NlmLock<'a> {
    NlmLock {
        caller_name: Opaque::new(bytes).unwrap(),
        fh: netobj(bytes),
        oh: netobj(bytes),
        svid: i32_of(n),
        offset: n.u64(),
        length: n.u64(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn calls_and_results_of_nlm_survive(seed: u64, bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let n = &mut Numbers(seed);
        let (cookie, lock) = (netobj(&bytes), lock(n, &bytes));
        let (block, exclusive, reclaim) = (seed & 1 == 0, seed & 2 == 0, seed & 4 == 0);
        survives(&NlmTestArguments { cookie, exclusive, lock });
        survives(&NlmLockArguments { cookie, block, exclusive, lock, reclaim, state: i32_of(n) });
        survives(&NlmCancelArguments { cookie, block, exclusive, lock });
        survives(&NlmUnlockArguments { cookie, lock });
        for status in NlmStat4::ALL {
            survives(&NlmResult { cookie, status });
            if status != NlmStat4::Denied {
                survives(&NlmTestResult { cookie, reply: NlmTestReply::Other(status) });
            }
            survives(&NlmShareResult { cookie, status, sequence: i32_of(n) });
        }
        let holder = NlmHolder {
            exclusive,
            svid: i32_of(n),
            oh: netobj(&bytes),
            offset: n.u64(),
            length: n.u64(),
        };
        survives(&NlmTestResult { cookie, reply: NlmTestReply::Denied(holder) });
        for deny in [ShareDeny::None, ShareDeny::Read, ShareDeny::Write, ShareDeny::Both] {
            for access in [NlmShareAccess::None, NlmShareAccess::Read, NlmShareAccess::Write, NlmShareAccess::Both] {
                let share = NlmShare { caller_name: lock.caller_name, fh: lock.fh, oh: lock.oh, deny, access };
                survives(&NlmShareArguments { cookie, share, reclaim });
            }
        }
        survives(&NlmNotify { name: lock.caller_name, state: i32_of(n) });
    }

    #[test]
    fn calls_and_results_of_nsm_survive(seed: u64, bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let n = &mut Numbers(seed);
        let name = Opaque::new(&bytes).unwrap();
        let callback = nsm::MonitorCallback { name, program: n.u32(), version: n.u32(), procedure: n.u32() };
        let mut private = [0; nsm::PRIVATE_BYTES];
        private[..8].copy_from_slice(&n.verifier());
        survives(&nsm::MonitoredName(name));
        survives(&callback);
        survives(&nsm::MonitorId { name, callback });
        survives(&nsm::MonArguments { id: nsm::MonitorId { name, callback }, private });
        for result in [nsm::MonitorResult::Success, nsm::MonitorResult::Failure] {
            survives(&nsm::MonResult { result, state: i32_of(n) });
        }
        survives(&nsm::MonitorState(i32_of(n)));
        survives(&nsm::StateChange { name, state: i32_of(n) });
        survives(&nsm::NsmStatus { name, state: i32_of(n), private });
    }

    /// Random bytes are an error or a value, never a panic.
    #[test]
    fn noise_never_panics_as_a_lock(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_all::<NlmLockArguments<'_>>(&noise);
        let _ = decode_all::<NlmTestResult<'_>>(&noise);
        let _ = decode_all::<NlmShareArguments<'_>>(&noise);
        let _ = decode_all::<nsm::MonArguments<'_>>(&noise);
        let _ = decode_all::<nsm::NsmStatus<'_>>(&noise);
    }
}

/// The words of a message, each in hexadecimal digits.
fn words(text: &str) -> Vec<u8> {
    text.split_whitespace().flat_map(|word| u32::from_str_radix(word, 16).unwrap().to_be_bytes()).collect()
}

const LOCK: NlmLock<'_> = NlmLock {
    caller_name: match Opaque::new(b"host1") {
        Ok(name) => name,
        Err(_) => panic!(),
    },
    fh: match Opaque::new(b"\x01\x02\x03\x04\x05") {
        Ok(fh) => fh,
        Err(_) => panic!(),
    },
    oh: match Opaque::new(b"7@host1") {
        Ok(oh) => oh,
        Err(_) => panic!(),
    },
    svid: 7,
    offset: 1 << 32,
    length: 0x1_0000_0002,
};

/// The words of [`LOCK`] (XNFS: `nlm4_lock`).
const LOCK_WORDS: &str = "5 686f7374 31000000  5 01020304 05000000  7 3740686f 73743100  7  1 0  1 2";

#[test]
fn calls_are_laid_out_as_in_xnfs() {
    let lock = LOCK_WORDS;
    let cookie = netobj(b"abcd");
    let block =
        NlmLockArguments { cookie, block: true, exclusive: false, lock: LOCK, reclaim: true, state: -1 };
    assert_eq!(bytes_of(&block), words(&format!("4 61626364  1 0 {lock} 1 ffffffff")));
    let test = NlmTestArguments { cookie, exclusive: true, lock: LOCK };
    assert_eq!(bytes_of(&test), words(&format!("4 61626364  1 {lock}")));
    let cancel = NlmCancelArguments { cookie, block: true, exclusive: true, lock: LOCK };
    assert_eq!(bytes_of(&cancel), words(&format!("4 61626364  1 1 {lock}")));
    let unlock = NlmUnlockArguments { cookie, lock: LOCK };
    assert_eq!(bytes_of(&unlock), words(&format!("4 61626364 {lock}")));
}

#[test]
fn results_are_laid_out_as_in_xnfs() {
    let cookie = netobj(b"abcd");
    let blocked = NlmResult { cookie, status: NlmStat4::Blocked };
    assert_eq!(bytes_of(&blocked), words("4 61626364 3"));
    let holder = NlmHolder { exclusive: true, svid: -2, oh: netobj(b"x"), offset: 5, length: 0 };
    let denied = NlmTestResult { cookie, reply: NlmTestReply::Denied(holder) };
    assert_eq!(bytes_of(&denied), words("4 61626364 1  1 fffffffe 1 78000000  0 5  0 0"));
    let free = NlmTestResult { cookie, reply: NlmTestReply::Other(NlmStat4::Granted) };
    assert_eq!(bytes_of(&free), words("4 61626364 0"));
    assert!(matches!(
        decode_all::<NlmResult<'_>>(&words("0 a")),
        Err(DecodeError::BadValue { name: "NlmStat4", value: 10 })
    ));
}

#[test]
fn nsm_is_laid_out_as_in_xnfs() {
    let name = Opaque::new(b"peer").unwrap();
    let own = Opaque::new(b"me").unwrap();
    let callback = nsm::MonitorCallback { name: own, program: 100_021, version: 4, procedure: 16 };
    let private = *b"0123456789abcdef";
    let mon = nsm::MonArguments { id: nsm::MonitorId { name, callback }, private };
    let expected = words("4 70656572  2 6d650000 186b5 4 10  30313233 34353637 38396162 63646566");
    assert_eq!(bytes_of(&mon), expected);
    let status = nsm::NsmStatus { name, state: 3, private };
    assert_eq!(bytes_of(&status), words("4 70656572 3  30313233 34353637 38396162 63646566"));
    let result = nsm::MonResult { result: nsm::MonitorResult::Failure, state: 5 };
    assert_eq!(bytes_of(&result), words("1 5"));
}

#[test]
fn names_owners_and_cookies_end_at_1024_bytes() {
    let bytes = [b'x'; 1025];
    for length in [1024, 1025] {
        let mut notify = u32::try_from(length).unwrap().to_be_bytes().to_vec();
        notify.extend_from_slice(&bytes[..length]);
        notify.resize(4 + length.next_multiple_of(4) + 4, 0);
        assert_eq!(decode_all::<NlmNotify<'_>>(&notify).is_ok(), length == 1024);
        assert_eq!(decode_all::<nsm::StateChange<'_>>(&notify).is_ok(), length == 1024);
        assert_eq!(decode_all::<NlmResult<'_>>(&notify).is_ok(), length == 1024);
        assert_eq!(NetObj::new(&bytes[..length]).is_ok(), length == 1024);
    }
}

#[test]
fn ranges_are_written_and_read_alike() {
    for (first, last, offset, length) in [
        (0, u64::MAX, 0, 0),
        (5, u64::MAX, 5, 0),
        (0, 0, 0, 1),
        (1 << 63, u64::MAX - 1, 1 << 63, (1 << 63) - 1),
    ] {
        let range = ByteRange::new(first, last).unwrap();
        assert_eq!(offset_and_length(range), (offset, length));
        assert_eq!(NlmLock { offset, length, ..LOCK }.range(), Some(range));
    }
    // Another way to write the end, and beyond it.
    let to_the_end = NlmLock { offset: 1, length: u64::MAX, ..LOCK };
    assert_eq!(to_the_end.range(), ByteRange::new(1, u64::MAX));
    assert_eq!(NlmLock { offset: 2, ..to_the_end }.range(), None);
    assert_eq!((lock_type(true), lock_type(false)), (LockType::Write, LockType::Read));
}

#[test]
fn tables_of_nlm_and_nsm_are_complete_and_invertible() {
    for (index, procedure) in NlmProcedure::ALL.into_iter().enumerate() {
        assert_eq!(procedure.index(), index);
        assert_eq!(NlmProcedure::from_number(procedure.number()), Some(procedure));
    }
    for number in [16, 17, 18, 19, 24] {
        assert_eq!(NlmProcedure::from_number(number), None);
    }
    for (index, status) in NlmStat4::ALL.into_iter().enumerate() {
        assert_eq!(bytes_of(&status), u32::try_from(index).unwrap().to_be_bytes());
    }
    for (index, procedure) in nsm::NsmProcedure::ALL.into_iter().enumerate() {
        assert_eq!(usize::try_from(procedure.number()).unwrap(), index);
    }
    assert_eq!((PROGRAM, nsm::PROGRAM), (100_021, 100_024));
    assert_eq!(NlmStat4::Deadlck.to_string(), "NLM4_DEADLCK (waiting would never end)");
}
