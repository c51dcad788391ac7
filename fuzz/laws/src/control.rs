//! The control socket: one line gets one line as reply, and has only the requested effect.

use std::sync::Arc;

use curt_observe::control::{
    ControlCommand, ControlCommands, ControlError, ControlReply, Remount, ReportMount, WatchEvents,
};
use curt_observe::events::{RecordedProcess, select};
use serde_json::Value;

/// The commands of a new mount.
fn commands() -> ControlCommands<()> {
    ControlCommands::new(Arc::new(()), |()| RecordedProcess::default(), |(), _| None)
        .on(|(), _, _: ReportMount| Ok(Box::default()))
        .on(|(), _, command: Remount| Err(ControlError::Refused(command.options)))
}

/// The bytes are a command, and a reply as the client decodes it.
///
/// # Panics
/// If a command is decoded differently after encoding it again, a reply is not a line, or existing
/// events are not sent.
pub fn control_question(bytes: &[u8]) {
    // It is decoded or rejected.
    let _ = serde_json::from_slice::<ControlReply<<ReportMount as ControlCommand>::Reply>>(bytes);
    let Ok(line) = str::from_utf8(bytes) else { return };
    let (text, events) = commands().answer(line, 1);
    assert_eq!(text.matches('\n').count(), 1, "{text}");
    let reply: ControlReply<Value> = serde_json::from_str(&text).expect("it was written");
    let request = serde_json::from_str::<Value>(line).unwrap_or_default();
    let name = request["ask"].as_str().unwrap_or_default();
    assert_eq!(matches!(reply, ControlReply::Done(_)), name == "report" || events.is_some(), "{text}");
    if let Ok(command) = serde_json::from_value::<Remount>(request.clone())
        && name == Remount::NAME
    {
        assert_eq!(reply, ControlReply::Refused(command.options));
    }
    // The number of watchers is limited: a slot that is not freed is missing later.
    if let Ok(command) = serde_json::from_value::<WatchEvents>(request.clone())
        && name == WatchEvents::NAME
    {
        assert_eq!(events.is_some(), select(&command.patterns).is_ok(), "{text}");
    }
}
