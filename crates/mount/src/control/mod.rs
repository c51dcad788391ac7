//! A mount's control socket: what it did, what is in force, and changes of its options while it runs. A server's socket is
//! made and asked by the same means ([`listen_at`], [`exchange`]), with words of its own.
//!
//! Each daemon listens on `PID.socket` in the [`directory`] of its user. A question is one line of JSON, so is its
//! answer; a peer that says nothing for a second, or more than 64 KiB, is cut off. Only root and the daemon's own user reach the
//! socket: what programs ask for is nobody else's business.

mod asking;
mod difference;
mod directory;
mod listening;
mod live;
pub mod metrics;
pub mod mountstats;
mod watching;
mod words;

pub use asking::{AskError, ask, converse, exchange, find, list, watch};
pub use difference::Succession;
pub use directory::directory;
pub use listening::{Controlled, Listening, NotRemounted, Said, answer, check_owner, listen, listen_at};
pub use live::{Live, keep_ring};
pub use watching::{Causer, Causers, Watching};
pub use words::{Answer, Held, MountReport, Question, ServerWords, Watched};
