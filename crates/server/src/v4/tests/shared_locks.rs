//! The locks that all clients share: requests of data and attributes take none.

use std::sync::mpsc::sync_channel;

use curt_proto::nfs4::*;
use curt_xdr::Opaque;

use super::delegations::{LONG, bind_answering, create, delegated};
use super::test_client::{Server, creating};

#[test]
fn getattr_read_and_write_take_no_lock_that_all_clients_share() {
    let server = Server::new().calling_back();
    let (client, holder) = (server.client("client"), server.client("holder"));
    bind_answering(&holder);
    create(&holder, "delegated");
    delegated(&holder, "delegated");
    let opened = client.open(&client.files(), &creating("file", "owner", ShareAccess4::BOTH, 0)).unwrap();
    let (stateid, file) = (opened.stateid, opened.handle);
    let (done, is_done) = sync_channel(1);
    std::thread::scope(|scope| {
        let locked = server.service.lock_all_shared();
        scope.spawn(move || {
            let attributes = Attribute::set(&[Attribute::Size, Attribute::Change]);
            let data = Opaque::new(b"data").unwrap();
            let write = WriteArgs4 { stateid, offset: 0, stable: StableHow4::Unstable, data };
            let read = ReadArgs4 { stateid, offset: 0, count: 4 };
            let statuses = [
                client.at(&file, &|compound| compound.push(&GetattrArgs4 { attributes })),
                client.at(&file, &|compound| compound.push(&write)),
                client.at(&file, &|compound| compound.push(&read)),
            ];
            done.send(statuses).unwrap();
        });
        let statuses = is_done.recv_timeout(LONG);
        drop(locked);
        assert_eq!(statuses, Ok([NfsStat4::Ok; 3]));
    });
}
