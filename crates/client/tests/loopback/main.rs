//! The client against Curt's own server over a tree in memory, in one process and with a scripted
//! clock: the exact requests and their results.

#![allow(clippy::unwrap_used, reason = "a test may end in a panic")]

mod access;
mod background;
mod damaged_replies;
mod delayed_operations;
mod delayed_sequences;
mod delegations;
mod failures;
mod forget;
mod kept_replies;
mod kernel_names;
mod kernel_pages;
mod last_close;
mod limits;
mod listings;
mod locks;
mod memory;
mod mode_bits;
mod mutations;
mod names;
mod nfs4;
mod nfs4_faults;
mod open_file_rights;
mod open_unlink;
mod opens;
mod recalled_slots;
mod restarts;
mod retransmitted;
mod returned_delegations;
mod revoked_states;
mod scripted_server;
mod server_refusals;
mod setattr;
mod softreval;
mod staleness;
mod two_clients;
mod unwritten;
mod world;
