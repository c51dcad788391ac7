//! A mount's control socket: its figures, the options in force, and changes of options at run time. A server's socket is
//! made and queried in the same way ([`listen_at`], [`exchange`]), with a protocol of its own.
//!
//! Each daemon listens on `PID.socket` in the directory of its user. Questions and answers are one line of JSON each; a
//! peer that sends nothing for a second, or more than 64 KiB, is disconnected. Only root and the daemon's own user can reach
//! the socket, because it shows what programs ask for.

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
