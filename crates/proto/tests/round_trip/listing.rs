//! READDIR and READDIRPLUS: encoded within a size limit, decoded entry by entry.

use curt_proto::nfs3::*;
use curt_xdr::{DecodeError, decode_all};
use proptest::prelude::*;

use crate::numbers::Numbers;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// A decoded listing has the same entries and end, and never exceeds its limit.
    #[test]
    fn listings_survive_within_their_budget(
        seed: u64, plus: bool, eof: bool, count in 0u32..4000, directory_count in 0u32..4000,
        names in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..60), 0..40),
    ) {
        let n = &mut Numbers(seed);
        let (attributes, verifier) = (n.post_op(), CookieVerf3(n.verifier()));
        let mut out = vec![9, 9, 9, 9];
        let Ok(mut encoder) = ListingEncoder::new(&mut out, count, directory_count, attributes, verifier) else {
            // No attributes, the verifier, no entry, and the end.
            prop_assert!(count < 20);
            prop_assert_eq!(out, [9; 4]);
            return Ok(());
        };
        let mut sent = Vec::new();
        for name in &names {
            let handle = n.handle();
            let entry = DirectoryEntryPlus {
                fileid: Fileid(n.u64()), name: Filename::new(name).unwrap(), cookie: Cookie(n.u64()),
                attributes: if plus { n.post_op() } else { None },
                handle: if plus { n.maybe(handle) } else { None },
            };
            let plain = DirectoryEntry { fileid: entry.fileid, name: entry.name, cookie: entry.cookie };
            if if plus { encoder.push_plus(&entry) } else { encoder.push(&plain) }.is_err() {
                break;
            }
            sent.push(entry);
        }
        prop_assert_eq!(encoder.entries(), sent.len());
        encoder.finish(eof);
        prop_assert!(out.len() - 4 <= usize::try_from(count).unwrap());
        let directory: usize = sent.iter().map(|e| 20 + e.name.bytes().len().next_multiple_of(4)).sum();
        prop_assert!(sent.len() <= 1 || directory <= usize::try_from(directory_count).unwrap());
        let (got, end) = if plus { walk_plus(&out[4..]) } else { walk(&out[4..]) };
        // There may be room only for the name of the first entry.
        let bare = |entry: &DirectoryEntryPlus<'_>| (entry.fileid, entry.name.bytes().to_vec(), entry.cookie);
        prop_assert!(got.iter().map(bare).eq(sent.iter().map(bare)));
        prop_assert!(got.iter().skip(1).eq(sent.iter().skip(1)));
        prop_assert!(got.first() == sent.first() || count < 600 && got[0].handle.is_none());
        prop_assert_eq!(end, Some(eof));
    }
}

fn walk_plus(bytes: &[u8]) -> (Vec<DirectoryEntryPlus<'_>>, Option<bool>) {
    let mut ok: ReaddirOk<'_, DirectoryEntryPlus<'_>> = decode_all(bytes).unwrap();
    assert_eq!(ok.entries.eof(), None);
    let entries = ok.entries.by_ref().map(Result::unwrap).collect();
    (entries, ok.entries.eof())
}

fn walk(bytes: &[u8]) -> (Vec<DirectoryEntryPlus<'_>>, Option<bool>) {
    let mut ok: ReaddirOk<'_, DirectoryEntry<'_>> = decode_all(bytes).unwrap();
    let entries = ok.entries.by_ref().map(Result::unwrap).map(|DirectoryEntry { fileid, name, cookie }| {
        DirectoryEntryPlus { fileid, name, cookie, attributes: None, handle: None }
    });
    (entries.collect(), ok.entries.eof())
}

#[test]
fn a_listing_cut_short_is_an_error_and_then_over() {
    let mut out = Vec::new();
    let mut encoder = ListingEncoder::new(&mut out, 1000, u32::MAX, None, CookieVerf3::default()).unwrap();
    let entry = DirectoryEntry { fileid: Fileid(1), name: Filename::new(b"a").unwrap(), cookie: Cookie(3) };
    encoder.push(&entry).unwrap();
    encoder.finish(true);
    for cut in 12..out.len() {
        let mut ok: ReaddirOk<'_, DirectoryEntry<'_>> = decode_all(&out[..cut]).unwrap();
        let last = ok.entries.by_ref().last().unwrap();
        assert_eq!(last, Err(DecodeError::Short), "cut to {cut}");
        assert_eq!((ok.entries.next(), ok.entries.eof()), (None, None));
    }
    out.push(0);
    let mut ok: ReaddirOk<'_, DirectoryEntry<'_>> = decode_all(&out).unwrap();
    assert_eq!(ok.entries.by_ref().last(), Some(Err(DecodeError::Trailing(1))));
}
