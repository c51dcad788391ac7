//! A client with many silent connections.
//!
//! `many-connections PORT IDLE HALF FIRST` opens IDLE connections that send nothing, and HALF that
//! send half a call, to a server on 127.0.0.1; at most 1,000 from one address, starting with
//! 127.1.0.FIRST. It prints `ready`, keeps them until it reads a line, and prints how many of them
//! the server has closed.

use std::io::{Write as _, stdin};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, bail};
use curt_proto::nfs3;
use curt_rpc::auth::RpcCredential;
use curt_rpc::message::encode_call_header;
use curt_rpc::record;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::process::{Resource, getrlimit, setrlimit};

/// Connections per address: fewer than a server's limit for one client.
const PER_ADDRESS: usize = 1000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, idle, half, first] = arguments.as_slice() else {
        bail!("usage: many-connections PORT IDLE HALF FIRST");
    };
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse()?));
    let (idle, half): (usize, usize) = (idle.parse()?, half.parse()?);
    let first: u8 = first.parse()?;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    let call = half_a_call();
    let mut sockets = Vec::with_capacity(idle + half);
    for number in 0..idle + half {
        let address = first + u8::try_from(number / PER_ADDRESS)?;
        let socket = connect(address, server).with_context(|| format!("connection {number}"))?;
        // Alternating, so that neither kind is first.
        let is_half = (number + 1) * half / (idle + half) > number * half / (idle + half);
        if is_half {
            (&socket).write_all(&call)?;
        }
        sockets.push(socket);
    }
    println!("ready");
    stdin().read_line(&mut String::new())?;
    let closed = sockets.iter().filter(|socket| is_closed(socket)).count();
    println!("closed {closed}");
    Ok(())
}

fn connect(last: u8, server: SocketAddr) -> Result<TcpStream> {
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 1, 0, last), 0)))?;
    rustix::net::connect(&socket, &server)?;
    Ok(socket.into())
}

/// The first half of a GETATTR, including its procedure number.
fn half_a_call() -> Vec<u8> {
    let mut call = Vec::new();
    let body = record::begin_record(&mut call);
    encode_call_header(&mut call, 1, nfs3::PROGRAM, nfs3::VERSION, 1, &RpcCredential::None);
    call.resize(call.len() + 68, 0);
    record::finish_record(&mut call, body, 0);
    call.truncate(call.len() / 2);
    call
}

/// Whether the server closed it. The server sends nothing.
fn is_closed(socket: &TcpStream) -> bool {
    let received = rustix::net::recv(socket, &mut [0; 1][..], RecvFlags::DONTWAIT);
    received != Err(Errno::AGAIN)
}
