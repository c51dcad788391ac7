//! Single operations, as passed down by the kernel's VFS.

use super::*;
use crate::client::WAITING_MAX;
use crate::{FileOperation, LinuxClient, OperationContext};

const FILE: ObjectId = ObjectId(2);

fn context(thread: u32) -> OperationContext {
    OperationContext { thread, credential: CREDENTIAL, path: thread }
}

fn client() -> LinuxClient {
    let mut client = LinuxClient::new(options(CacheOptions::default()), directory());
    // The access rights of all credentials are cached.
    performed(&mut client, 1, &[&FileOperation::Access(ROOT), &FileOperation::Access(FILE)]);
    client
}

/// The requests for some operations of a thread.
fn performed(client: &mut LinuxClient, thread: u32, operations: &[&FileOperation<'_>]) -> Vec<LinuxRequest> {
    for operation in operations {
        client.perform(context(thread), operation, seconds(0));
    }
    let sent = client.take_sent().into_iter();
    sent.map(|sent| sent.request).collect()
}

fn lookup(found: Option<ReportedObject>) -> FileOperation<'static> {
    FileOperation::Lookup(ROOT, b"f", found)
}

#[test]
fn a_name_waits_for_what_its_thread_does_next() {
    let found = lookup(Some(file(10)));
    let mut client = client();
    assert_eq!(performed(&mut client, 1, &[&found]), nothing());
    // Another thread's operation does not show the purpose.
    assert_eq!(performed(&mut client, 2, &[&FileOperation::Access(ROOT)]), nothing());
    let open = FileOperation::Open(FILE, OpenId(1), false);
    assert_eq!(performed(&mut client, 1, &[&open]), [LinuxRequest::FirstUse]);
    // A cached name is checked once for an open, and so is an open without its name.
    assert_eq!(performed(&mut client, 1, &[&found, &open]), [LinuxRequest::OpenCheck]);
    assert_eq!(performed(&mut client, 1, &[&open]), [LinuxRequest::OpenCheck]);
    assert_eq!(performed(&mut client, 1, &[&found, &FileOperation::Getattr(file(10))]), nothing());
}

#[test]
fn a_name_that_is_to_be_made_is_looked_up_only_where_it_may_be_there_already() {
    for (exclusive, expected) in [
        (false, vec![LinuxRequest::FirstUse, LinuxRequest::CreateFile]),
        (true, vec![LinuxRequest::CreateFile, LinuxRequest::SetAttributes]),
    ] {
        let create = FileOperation::Create {
            request: LinuxRequest::CreateFile,
            directory: ROOT,
            name: b"f",
            made: file(0),
            exclusive,
            open: None,
        };
        assert_eq!(performed(&mut client(), 1, &[&lookup(None), &create]), expected);
    }
    let refused = FileOperation::Refused(LinuxRequest::CreateDirectory, ROOT, Some(b"f"));
    assert_eq!(performed(&mut client(), 1, &[&lookup(None), &refused]), [LinuxRequest::CreateDirectory]);
}

#[test]
fn a_close_of_what_was_opened_before_is_ignored_and_the_last_one_removes_what_was_moved_aside() {
    let mut client = client();
    let open = [
        &lookup(Some(file(10))),
        &FileOperation::Open(FILE, OpenId(1), false),
        &FileOperation::Unlink(ROOT, b"f"),
    ];
    assert_eq!(
        performed(&mut client, 1, &open),
        [LinuxRequest::FirstUse, LinuxRequest::FirstUse, LinuxRequest::Rename]
    );
    assert_eq!(performed(&mut client, 1, &[&FileOperation::Release(OpenId(2))]), nothing());
    let close = FileOperation::Release(OpenId(1));
    assert_eq!(performed(&mut client, 1, &[&close]), [LinuxRequest::Remove]);
    assert_eq!(performed(&mut client, 1, &[&close]), nothing());
}

#[test]
fn pending_names_are_bounded_and_counted_for_the_process_that_looked_them_up() {
    let mut client = client();
    let threads = u32::try_from(WAITING_MAX).expect("it is small");
    for thread in 1..=threads {
        assert_eq!(performed(&mut client, thread, &[&lookup(None)]), nothing());
    }
    client.perform(context(threads + 1), &lookup(None), seconds(0));
    let sent = client.take_sent();
    assert_eq!(sent.len(), 1, "the others know the name by then");
    assert_eq!(sent[0].context.path, sent[0].context.thread);
    client.finish();
    assert_eq!(client.take_sent(), []);
}
