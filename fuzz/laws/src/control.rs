//! What is said on a control socket: one line is answered with one line, and changes nothing that
//! it does not ask for.

use std::sync::Arc;

use curt_mount::control::{
    ControlTarget, MountControlReply, MountControlRequest, MountReport, RemountError, answer,
};
use curt_trace::events::{RecordedProcess, select};

/// A mount that has done nothing.
struct Idle;

impl ControlTarget for Idle {
    fn report(&self) -> MountReport {
        MountReport::default()
    }

    fn remount(&self, options: &str, _: bool) -> Result<String, RemountError> {
        Err(RemountError::Refused(options.to_owned()))
    }

    fn origin(&self) -> RecordedProcess {
        RecordedProcess::default()
    }
}

/// The bytes are a question; and an answer, as who asks hears it.
///
/// # Panics
/// If a question is understood otherwise when it is written again, an answer is no line, or events
/// that there are are not told.
pub fn control_question(bytes: &[u8]) {
    // Whatever it is, it is understood or not.
    let _ = serde_json::from_slice::<MountControlReply>(bytes);
    let Ok(line) = str::from_utf8(bytes) else { return };
    let question = serde_json::from_str::<MountControlRequest>(line);
    if let Ok(question) = &question {
        let written = serde_json::to_string(question).expect("it was read");
        let again: MountControlRequest = serde_json::from_str(&written).expect("it was written");
        assert_eq!(again, *question);
    }
    let said = answer(line, 1, &(Arc::new(Idle) as Arc<dyn ControlTarget>));
    let text = serde_json::to_string(&said.answer).expect("an answer is JSON");
    assert!(!text.contains('\n'), "{text}");
    assert_eq!(
        serde_json::from_str::<MountControlReply>(&text).expect("it was written"),
        said.answer
    );
    let is_refused = matches!(said.answer, MountControlReply::Refused(_));
    assert!(question.is_ok() || is_refused, "{text}");
    assert_eq!(
        said.events.is_some(),
        said.answer == MountControlReply::Events,
        "{text}"
    );
    // There are few places for who watches: one that is not given back is missing to those who come
    // later.
    if let Ok(MountControlRequest::Events { patterns }) = &question {
        assert_eq!(said.events.is_some(), select(patterns).is_ok(), "{text}");
    }
}
