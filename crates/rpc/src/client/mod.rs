//! The client's side: calls that wait for their replies.
//!
//! Other crates use the trait [`Transport`]; [`TcpTransport`] implements it over TCP. A call is
//! synchronous: its thread waits, and returns at once when the call's [`Interrupt`] is raised.

mod activity;
mod backchannel_queue;
mod call_in_progress;
mod callbacks;
mod connect;
mod connection;
mod connection_slot;
mod events;
mod options;
mod outgoing;
mod probing;
mod silence;
mod single_calls;
mod statistics;
mod sys;
mod tcp;
mod timer;
mod transport;

pub use connect::LocalAddress;
pub use events::{NoTransportEvents, TransportEvents};
pub use options::{AddressFamily, PortSource, RecoveryMode, Retransmission, ServerName, TcpOptions};
pub use single_calls::SingleCalls;
pub use statistics::CallStatistics;
pub use tcp::TcpTransport;
pub use transport::Transport;

pub use crate::connection::{
    BulkAtEnd, BulkData, CallArguments, CallError, CallReply, Interrupt, ReplySink, RpcRequest, Wake,
    WakerRegistration,
};
