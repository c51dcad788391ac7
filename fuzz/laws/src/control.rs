//! What is said on a control socket: one line is answered with one line, and changes nothing that it does not ask for.

use curt_mount::control::{Answer, Controlled, MountReport, NotRemounted, Question, answer};
use curt_trace::events::{Origin, select};

/// A mount that has done nothing.
struct Idle;

impl Controlled for Idle {
    fn report(&self) -> MountReport {
        MountReport::default()
    }

    fn remount(&self, options: &str, _: bool) -> Result<String, NotRemounted> {
        Err(NotRemounted::Refused(options.to_owned()))
    }

    fn origin(&self) -> Origin {
        Origin::default()
    }
}

/// The bytes are a question; and an answer, as who asks hears it.
///
/// # Panics
/// If a question is understood otherwise when it is written again, an answer is no line, or events that there are are not told.
pub fn control_question(bytes: &[u8]) {
    // Whatever it is, it is understood or not.
    let _ = serde_json::from_slice::<Answer>(bytes);
    let Ok(line) = str::from_utf8(bytes) else { return };
    let question = serde_json::from_str::<Question>(line);
    if let Ok(question) = &question {
        let written = serde_json::to_string(question).expect("it was read");
        let again: Question = serde_json::from_str(&written).expect("it was written");
        assert_eq!(again, *question);
    }
    let said = answer(line, 1, &Idle);
    let text = serde_json::to_string(&said.answer).expect("an answer is JSON");
    assert!(!text.contains('\n'), "{text}");
    assert_eq!(
        serde_json::from_str::<Answer>(&text).expect("it was written"),
        said.answer
    );
    let is_refused = matches!(said.answer, Answer::Refused(_));
    assert!(question.is_ok() || is_refused, "{text}");
    assert_eq!(said.then.is_some(), said.answer == Answer::Events, "{text}");
    // There are few places for who watches: one that is not given back is missing to those who come later.
    if let Ok(Question::Events { patterns }) = &question {
        assert_eq!(said.then.is_some(), select(patterns).is_ok(), "{text}");
    }
}
