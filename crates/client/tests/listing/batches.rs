//! Applications that read many names, use these in another order, and continue to read: `find` and
//! `rm -r` (fts(3)).

use std::sync::Arc;

use curt_client::{ClientOptions, DirEmit, OpenDirectory, Superblock, ops};

use crate::server::{Script, Scripted, me, mount};

/// The number of names that are read before they are used.
const BATCH: usize = 5_000;
const NAMES: u64 = 20_000;

/// The next batch of names, in an order unrelated to that of the listing.
fn batch(client: &Superblock, open: &OpenDirectory, cookie: &mut u64) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    loop {
        let before = names.len();
        ops::readdir(&client.op(&me()), open, *cookie, false, &mut |entry| {
            if names.len() == BATCH || names.len() == before + 100 {
                return DirEmit::Full;
            }
            names.push(entry.name.to_vec());
            *cookie = entry.cookie;
            DirEmit::Taken
        })
        .unwrap();
        if names.len() == before {
            break;
        }
    }
    // The factor and the number of names are coprime.
    let order = |index: usize| index * 1_237 % names.len();
    (0..names.len()).map(|index| names[order(index)].clone()).collect()
}

/// Reads all names in batches and calls `look` for each. Returns the number of LOOKUPs and of
/// listings that were sent.
fn go_through(server: &Arc<Scripted>, mut look: impl FnMut(&Superblock, usize, &[u8])) -> (u64, usize) {
    let client = mount(server, &ClientOptions::default());
    let open = ops::opendir(&client.op(&me()), client.root()).unwrap();
    let (mut cookie, mut count) = (0, 0);
    loop {
        let names = batch(&client, &open, &mut cookie);
        if names.is_empty() {
            break;
        }
        for name in names {
            ops::lookup(&client.op(&me()), client.root(), &name).unwrap();
            // Together with the reading of the clock, the time of a lookup.
            server.pass(5);
            look(&client, count, &name);
            count += 1;
        }
    }
    assert_eq!(count as u64, NAMES);
    (server.lookups(), server.asked().len())
}

fn server() -> Arc<Scripted> {
    Scripted::new(Script { count: NAMES, ..Script::default() })
}

#[test]
fn names_that_are_used_between_listings_are_requested_together() {
    assert_eq!(go_through(&server(), |_, _, _| ()), (328, 27));
}

#[test]
fn they_do_while_others_change_the_directory_now_and_then() {
    let server = server();
    let sent = go_through(&server, |_, count, _| {
        if count % 2_000 == 999 {
            server.change();
        }
    });
    assert_eq!(sent, (463, 36));
}

#[test]
fn they_do_while_they_are_removed() {
    let server = server();
    let sent = go_through(&server, |client, _, name| {
        ops::unlink(&client.op(&me()), client.root(), name).unwrap();
    });
    assert_eq!(sent, (793, 58));
}

#[test]
fn where_each_lookup_finds_another_state_hardly_any_listing_is_lost() {
    let server = server();
    let sent = go_through(&server, |_, _, _| server.change());
    assert_eq!(sent, (19_970, 26));
}
