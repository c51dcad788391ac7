//! Calls that wait without a thread, and the limits that they count towards.

use std::{
    io::Write,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use curt_rpc::{
    message::CallMessage,
    server::{CallContext, CallFailure, DeferredCall, Limits, RpcServer, RpcServerHandle, RpcService},
};
use parking_lot::Mutex;

use crate::{
    fake::{eventually, listen},
    fixture::{ECHO, RECORD_MAX, SLOW, call_record, expect_echo, expect_end, read_reply},
};

const LONG: Duration = Duration::from_secs(60);

/// A call that begins to wait when the server stops.
const LATE: u32 = 20;
/// A call that waits, and gets no reply.
const UNANSWERED: u32 = 21;

/// Defers calls other than `ECHO`; one that cannot be deferred is answered at once.
#[derive(Default)]
struct Defers {
    waiting: Mutex<Vec<Box<dyn DeferredCall>>>,
    has_begun: AtomicBool,
    is_stopping: AtomicBool,
}

impl RpcService for Defers {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        let resumed = context.resumed::<()>().is_some();
        if resumed && call.procedure == UNANSWERED {
            return Err(CallFailure::NoReply);
        }
        if call.procedure != ECHO
            && !resumed
            && let Some(deferred) = context.defer()
        {
            if call.procedure == LATE {
                self.has_begun.store(true, Ordering::SeqCst);
                eventually("the server stops", || self.is_stopping.load(Ordering::SeqCst));
            }
            self.waiting.lock().push(deferred);
            return Err(CallFailure::NoReply);
        }
        reply.extend_from_slice(&call.arguments[..4]);
        Ok(())
    }

    fn resume_deferred(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(|call| call.resume(Box::new(())));
        self.is_stopping.store(true, Ordering::SeqCst);
    }
}

struct World {
    service: Arc<Defers>,
    handle: RpcServerHandle,
    ended: mpsc::Receiver<()>,
    client: TcpStream,
}

fn world(limits: Limits) -> World {
    let (listener, address) = listen();
    let service = Arc::new(Defers::default());
    let limits = Limits { record: RECORD_MAX, ..limits };
    let server = RpcServer::new(vec![listener], service.clone(), limits).unwrap();
    let handle = server.handle();
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        server.run();
        sender.send(())
    });
    let client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    World { service, handle, ended, client }
}

#[test]
fn a_server_that_stops_answers_calls_that_wait_and_ends() {
    let mut world = world(Limits { shutdown_timeout: 60 * LONG, ..Limits::default() });
    let client = &mut world.client;
    client.write_all(&call_record(1, SLOW, &[1; 4])).unwrap();
    eventually("the call waits", || world.service.waiting.lock().len() == 1);
    client.write_all(&call_record(2, ECHO, &[2; 4])).unwrap();
    expect_echo(client, 2, &[2; 4]);
    world.handle.shutdown();
    expect_echo(client, 1, &[1; 4]);
    expect_end(client);
    assert_eq!(world.ended.recv_timeout(LONG), Ok(()));
}

#[test]
fn a_call_that_begins_to_wait_while_the_server_stops_is_answered() {
    let mut world = world(Limits { shutdown_timeout: 60 * LONG, ..Limits::default() });
    let client = &mut world.client;
    client.write_all(&call_record(1, LATE, &[1; 4])).unwrap();
    eventually("the call has begun", || world.service.has_begun.load(Ordering::SeqCst));
    world.handle.shutdown();
    expect_echo(client, 1, &[1; 4]);
    expect_end(client);
    assert_eq!(world.ended.recv_timeout(LONG), Ok(()));
}

#[test]
fn a_server_that_stops_closes_the_connection_of_a_call_that_waited_and_gets_no_reply() {
    let mut world = world(Limits { shutdown_timeout: 60 * LONG, ..Limits::default() });
    let client = &mut world.client;
    client.write_all(&call_record(1, UNANSWERED, &[1; 4])).unwrap();
    eventually("the call waits", || world.service.waiting.lock().len() == 1);
    client.write_all(&call_record(2, ECHO, &[2; 4])).unwrap();
    expect_echo(client, 2, &[2; 4]);
    world.handle.shutdown();
    expect_end(client);
    assert_eq!(world.ended.recv_timeout(LONG), Ok(()));
}

#[test]
fn the_bytes_of_calls_that_wait_are_bounded() {
    // Half of it is for calls that wait.
    let mut world = world(Limits { half_records_per_client: 1_000_000, ..Limits::default() });
    let (client, waiting) = (&mut world.client, || world.service.waiting.lock().len());
    for xid in 1..5 {
        client.write_all(&call_record(xid, SLOW, &[7; 100_000])).unwrap();
    }
    eventually("they wait", || waiting() == 4);
    client.write_all(&call_record(5, SLOW, &[7; 100_000])).unwrap();
    expect_echo(client, 5, &[7; 4]);
    world.service.resume_deferred();
    let mut answered: Vec<_> = (0..4).map(|_| read_reply(client).0).collect();
    answered.sort_unstable();
    assert_eq!(answered, [1, 2, 3, 4]);
    // What has waited is not counted any more.
    client.write_all(&call_record(6, SLOW, &[7; 100_000])).unwrap();
    eventually("another one waits", || waiting() == 1);
    world.handle.shutdown();
}
