//! A mount's control socket: what it did, what is in force, and changes of its options while it runs. A server's socket is
//! made and asked by the same means ([`listen_at`], [`exchange`]), with words of its own.
//!
//! Each daemon listens on `PID.socket` in the [`directory`] of its user. A question is one line of JSON, so is its
//! answer; a peer that says nothing for a second, or more than 64 KiB, is cut off. Everybody who can reach the socket may
//! ask; only root and the daemon's own user may change something.

mod asking;
mod directory;
mod listening;
mod words;

pub use asking::{AskError, ask, exchange, find, list};
pub use directory::directory;
pub use listening::{Controlled, Listening, NotRemounted, listen, listen_at};
pub use words::{Answer, MountReport, Question};
