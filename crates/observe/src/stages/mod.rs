//! The time of a request in a server, stage by stage: from the receipt of its last bytes to the end
//! of sending its reply.
//!
//! At any moment a request is in exactly one stage, so the stages add up to its total time. A
//! thread measures one request at a time: it [begins](begin), [proceeds](proceed) to the next
//! stage, [enters](enter) nested stages, and [finishes](finish). While nothing is measured, each of
//! these only checks a flag of the thread, and the decision whether to measure a request costs one
//! relaxed load and a branch ([`StageTimes::is_due`]).

mod graph;
mod measured;
mod times;

use crate::named_enum;

pub use graph::{CallGraph, GraphSpan};
pub use measured::{StageGuard, begin, enter, finish, forget, is_measured, proceed, set_operation, suspend};
pub use times::{BucketCounts, OperationTimes, Percentiles, StageReport, StageTimes};

named_enum! {
    /// A part of a server's work for a request. A request passes them in this order.
    RequestStage {
        Receive "receive" "The system call that takes the request from the socket; waiting for it is not counted.";
        Decode "decode" "The record, the call's header and the procedure's arguments.";
        Handle "handle" "What the file handle stands for: the connection's token, or the signature.";
        Export "export" "Which export it is of, and what its rules allow the client.";
        Identity "identity" "Who asks, by the export's rules, with all groups.";
        Permission "permission" "Whether the caller may.";
        Open "open" "A descriptor of the file: from the file cache, or opened.";
        FileSystem "file_system" "The operation's own system calls.";
        Encode "encode" "The reply.";
        Send "send" "The system call that gives the reply to the socket.";
    }
}
