//! Servers of NFSv4.1 that lack what RFC 8881 has: it is done in another way, and not asked for
//! again.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use curt_client::{OpenFlags, ops};
use curt_policy::CacheOptions;
use rustix::io::Errno;

use crate::{
    nfs4_faults,
    scripted_server::{
        ScriptedServer,
        op::{self, LOOKUP, NVERIFY, OPEN, PUTFH, SAVEFH},
        status::{INVAL, NOTSUPP},
    },
    world::{BenchMount, World, root},
};

/// The operations that have results behind SEQUENCE, and the status of the last one.
type Refusal = (&'static [u32], u32);

/// Whether a compound with these words is refused.
type Rule = fn(&[u32]) -> Option<Refusal>;

/// The words of the first OPEN: from its share access on.
fn open_words(words: &[u32]) -> Option<&[u32]> {
    let at = words.windows(2).position(|pair| pair == [OPEN, 0])?;
    // The owner has eight bytes.
    words.get(at + 2..at + 12).filter(|words| words[1] == 0 && words[4] == 8)
}

fn wishes(words: &[u32]) -> Option<Refusal> {
    let open = open_words(words).filter(|open| open[0] & 0xff00 != 0)?;
    Some((if open[7] == 0 { &[PUTFH, OPEN] } else { &[PUTFH, SAVEFH, OPEN] }, INVAL))
}

fn by_handle(words: &[u32]) -> Option<Refusal> {
    open_words(words).filter(|open| open[7..9] == [0, 4]).map(|_| (&[PUTFH, OPEN][..], NOTSUPP))
}

fn exclusive(words: &[u32]) -> Option<Refusal> {
    open_words(words).filter(|open| open[7..9] == [1, 3]).map(|_| (&[PUTFH, SAVEFH, OPEN][..], INVAL))
}

fn comparison(words: &[u32]) -> Option<Refusal> {
    // The mask and the value of a type.
    let compares = words.windows(3).any(|part| part == [NVERIFY, 1, 2]);
    compares.then_some((&[PUTFH, SAVEFH, LOOKUP, NVERIFY][..], NOTSUPP))
}

/// Creates, opens, writes, reads and removes files.
fn use_all(mounted: &BenchMount) {
    let top = mounted.client.root();
    let op = || mounted.client.op(&root());
    // CLOSE is sent with it.
    let close = |file: &curt_client::OpenFile| {
        ops::close(&op(), file).unwrap();
        ops::setattr(&op(), top, &curt_types::SetAttributes::with_mode(0o777)).unwrap();
    };
    let exclusive = OpenFlags { exclusive: true, ..OpenFlags::writing() };
    for name in ["one", "two"] {
        let (found, opened) = ops::create(&op(), top, name.as_bytes(), 0o644, exclusive).unwrap();
        ops::write(&op(), &opened.file, 0, b"new").unwrap();
        close(&opened.file);
        assert_eq!(ops::create(&op(), top, name.as_bytes(), 0o644, exclusive).unwrap_err(), Errno::EXIST);
        let opened = ops::open(&op(), found.id, OpenFlags::writing()).unwrap().file;
        ops::write(&op(), &opened, 3, b" and more").unwrap();
        close(&opened);
    }
    let old = mounted.lookup(&root(), top, "old").unwrap();
    let opened = ops::open(&op(), old.id, OpenFlags::reading()).unwrap().file;
    assert_eq!(ops::read(&op(), &opened, 0, 9).unwrap().to_vec(), b"old");
    close(&opened);
    let large = mounted.lookup(&root(), top, "large").unwrap();
    let opened = ops::open(&op(), large.id, OpenFlags::reading()).unwrap().file;
    assert_eq!(ops::read(&op(), &opened, 0, 9).unwrap().to_vec(), [7; 9]);
    close(&opened);
    assert_eq!(ops::unlink(&op(), top, b"directory").unwrap_err(), Errno::ISDIR);
    assert_eq!(ops::rmdir(&op(), top, b"old"), Err(Errno::NOTDIR));
    ops::unlink(&op(), top, b"old").unwrap();
    assert_eq!(ops::remove_many(&op(), top, &[b"one", b"large"]).unwrap(), [Ok(()), Ok(())]);
    ops::rmdir(&op(), top, b"directory").unwrap();
}

// SEMANTICS: sessions-19.
#[test]
fn what_a_server_refuses_is_done_in_another_way_and_not_asked_for_again() {
    let rules: [(&str, Rule); 4] = [
        ("OPEN4_SHARE_ACCESS_WANT bits", wishes),
        ("CLAIM_FH", by_handle),
        ("EXCLUSIVE4_1", exclusive),
        ("NVERIFY", comparison),
    ];
    for (name, rule) in rules {
        let world = World::new();
        let maker = world.mount_v4_over(CacheOptions::default(), "maker", world.way());
        let top = maker.client.root();
        maker.put(&root(), top, "old", 0o644, b"old");
        maker.put(&root(), top, "large", 0o644, &[7; 300_000]);
        ops::mkdir(&maker.client.op(&root()), top, b"directory", 0o755).unwrap();
        let server = ScriptedServer::new(&world);
        let refusals = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&refusals);
        server.script(move |asked| {
            let is_compound = asked.words[3] == op::SEQUENCE;
            let (operations, status) = is_compound.then(|| rule(&asked.words))??;
            count.fetch_add(1, Relaxed);
            let mut results: Vec<u32> = operations.iter().flat_map(|operation| [*operation, 0]).collect();
            *results.last_mut().unwrap() = status;
            Some(asked.answer(u32::try_from(operations.len()).unwrap(), status, &results))
        });
        let mounted = nfs4_faults::mounted(&world, &server);
        use_all(&mounted);
        // Something else that the first creation has may be meant as well.
        assert!((1..=2).contains(&refusals.load(Relaxed)), "{name}");
        assert_eq!(mounted.client.server().1, [name]);
        let found = maker.lookup(&root(), top, "two").unwrap();
        assert_eq!(maker.cat(&root(), found.id), Ok(b"new and more".to_vec()), "{name}");
    }
}

// SEMANTICS: sessions-19.
#[test]
fn nothing_is_reclaimed_from_a_server_of_another_scope() {
    for is_other_scope in [false, true] {
        let world = World::new();
        let server = ScriptedServer::new(&world);
        let mounted = nfs4_faults::mounted(&world, &server);
        let op = || mounted.client.op(&root());
        let (_, opened) =
            ops::create(&op(), mounted.client.root(), b"file", 0o644, OpenFlags::writing()).unwrap();
        mounted.sent();
        server.replace(world.way_after_restart());
        server.spoil(move |reply| {
            let word = |at: usize| reply.get(4 * at..).and_then(|rest| rest.first_chunk().copied());
            // The owner of EXCHANGE_ID's result, and the first byte of the scope behind it.
            if word(3).map(u32::from_be_bytes) == Some(op::EXCHANGE_ID) && is_other_scope {
                let owner = word(12).map_or(0, u32::from_be_bytes).div_ceil(4) as usize;
                reply[4 * (14 + owner)] ^= 1;
            }
        });
        ops::write(&op(), &opened.file, 0, b"late").unwrap();
        assert_eq!(ops::fsync(&op(), &opened.file, false), Ok(()));
        let opens = if is_other_scope { "NFSv4.OPEN 1" } else { "NFSv4.OPEN 2" };
        let sent = mounted.sent();
        assert!(sent.contains(opens) && sent.contains("NFSv4.RECLAIM_COMPLETE 1"), "{sent}");
    }
}
