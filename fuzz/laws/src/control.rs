//! What is said on a control socket: one line is answered with one line, and changes nothing that
//! it does not ask for.

use std::sync::Arc;

use curt_trace::control::{
    ControlCommand, ControlCommands, ControlError, ControlReply, Remount, ReportMount, WatchEvents,
};
use curt_trace::events::{RecordedProcess, select};
use serde_json::Value;

/// The commands of a mount that has done nothing.
fn commands() -> ControlCommands<()> {
    ControlCommands::new(Arc::new(()), |()| RecordedProcess::default(), |(), _| None)
        .on(|(), _, _: ReportMount| Ok(Box::default()))
        .on(|(), _, command: Remount| Err(ControlError::Refused(command.options)))
}

/// The bytes are a command; and a reply, as who asks hears it.
///
/// # Panics
/// If a command is understood otherwise when it is written again, a reply is no line, or events
/// that there are are not sent.
pub fn control_question(bytes: &[u8]) {
    // Whatever it is, it is understood or not.
    let _ = serde_json::from_slice::<ControlReply<<ReportMount as ControlCommand>::Reply>>(bytes);
    let Ok(line) = str::from_utf8(bytes) else { return };
    let (text, events) = commands().answer(line, 1);
    assert_eq!(text.matches('\n').count(), 1, "{text}");
    let reply: ControlReply<Value> = serde_json::from_str(&text).expect("it was written");
    let asked = serde_json::from_str::<Value>(line).unwrap_or_default();
    let name = asked["ask"].as_str().unwrap_or_default();
    assert_eq!(
        matches!(reply, ControlReply::Done(_)),
        name == "report" || events.is_some(),
        "{text}"
    );
    if let Ok(command) = serde_json::from_value::<Remount>(asked.clone())
        && name == Remount::NAME
    {
        assert_eq!(reply, ControlReply::Refused(command.options));
    }
    // There are few places for who watches: one that is not given back is missing to those who come
    // later.
    if let Ok(command) = serde_json::from_value::<WatchEvents>(asked.clone())
        && name == WatchEvents::NAME
    {
        assert_eq!(events.is_some(), select(&command.patterns).is_ok(), "{text}");
    }
}
