//! One request as a nested call graph with times, as a kernel's function tracer prints it.

use std::fmt::Write as _;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Maximum number of recorded spans of a request; a listing has thousands of system calls.
const SPANS_MAX: usize = 4096;
/// Spans that took at least this long are marked, in microseconds.
const LONG_US: f64 = 10.0;

/// A span: a step of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GraphSpan {
    /// The name of the step.
    pub name: String,
    /// The depth of its nesting; 0 is the outermost.
    pub depth: usize,
    /// Its beginning in microseconds after the request's beginning.
    pub at_us: f64,
    /// Its duration in microseconds, nested spans included.
    pub took_us: f64,
}

/// A request's spans, in the order in which they began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallGraph {
    /// The spans.
    pub spans: Vec<GraphSpan>,
    /// Number of further spans, which were not recorded.
    pub left_out: usize,
}

impl CallGraph {
    /// As text, below `name`.
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        let total: f64 = self.spans.iter().filter(|span| span.depth == 0).map(|span| span.took_us).sum();
        let mut text = format!("{:>12} | {name}() {{\n", "");
        let mut open: Vec<&GraphSpan> = Vec::new();
        for (number, span) in self.spans.iter().enumerate() {
            while open.last().is_some_and(|outer| outer.depth >= span.depth) {
                close(&mut text, open.pop());
            }
            let indent = "  ".repeat(span.depth + 1);
            let next = self.spans.get(number + 1);
            // Writing to a String cannot fail.
            let _ = if next.is_some_and(|next| next.depth > span.depth) {
                open.push(span);
                writeln!(text, "{:>12} | {indent}{}() {{", "", span.name)
            } else {
                writeln!(text, "{} | {indent}{}();", duration(span.took_us), span.name)
            };
        }
        while let Some(outer) = open.pop() {
            close(&mut text, Some(outer));
        }
        if self.left_out > 0 {
            let _ = writeln!(text, "{:>12} |   … and {} more", "", self.left_out);
        }
        let _ = writeln!(text, "{} | }}", duration(total));
        text
    }
}

fn close(text: &mut String, span: Option<&GraphSpan>) {
    if let Some(span) = span {
        let indent = "  ".repeat(span.depth + 1);
        let _ = writeln!(text, "{} | {indent}}}", duration(span.took_us));
    }
}

/// A duration, with a mark if it is long.
fn duration(microseconds: f64) -> String {
    let mark = if microseconds >= LONG_US { "+" } else { " " };
    format!("{mark} {microseconds:>7.3} us")
}

/// A graph that is being recorded.
pub(super) struct GraphRecorder {
    start: Instant,
    graph: CallGraph,
    /// Indexes of the spans that have not ended; none for those that are not recorded.
    open: Vec<Option<usize>>,
}

impl GraphRecorder {
    pub(super) fn new(start: Instant) -> Self {
        let mut recording = Self { start, graph: CallGraph::default(), open: Vec::new() };
        recording.enter(super::RequestStage::Receive.name(), start);
        recording
    }

    /// Ends the innermost span and begins another in its place.
    pub(super) fn proceed(&mut self, name: &'static str, now: Instant) {
        self.leave(now);
        self.enter(name, now);
    }

    pub(super) fn enter(&mut self, name: &'static str, now: Instant) {
        let at_us = self.microseconds(now);
        if self.graph.spans.len() == SPANS_MAX {
            self.graph.left_out += 1;
            self.open.push(None);
            return;
        }
        self.open.push(Some(self.graph.spans.len()));
        self.graph.spans.push(GraphSpan {
            name: name.to_owned(),
            depth: self.open.len() - 1,
            at_us,
            took_us: 0.0,
        });
    }

    pub(super) fn leave(&mut self, now: Instant) {
        let now_us = self.microseconds(now);
        if let Some(Some(innermost)) = self.open.pop() {
            let span = &mut self.graph.spans[innermost];
            span.took_us = now_us - span.at_us;
        }
    }

    pub(super) fn end(mut self, now: Instant) -> CallGraph {
        while !self.open.is_empty() {
            self.leave(now);
        }
        self.graph
    }

    fn microseconds(&self, now: Instant) -> f64 {
        now.saturating_duration_since(self.start).as_secs_f64() * 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::measured::graph_of;
    use crate::stages::{RequestStage, enter, proceed};

    #[test]
    fn what_is_nested_is_shown_nested() {
        let mut graph = graph_of(|| {
            proceed(RequestStage::Handle);
            {
                let _outer = enter(RequestStage::Export, "decide");
                drop(enter(RequestStage::Identity, "identify"));
            }
            proceed(RequestStage::Encode);
        });
        let shape: Vec<_> = graph.spans.iter().map(|span| (span.name.as_str(), span.depth)).collect();
        assert_eq!(shape, [("receive", 0), ("handle", 0), ("decide", 1), ("identify", 2), ("encode", 0)]);
        for (span, took) in graph.spans.iter_mut().zip([1.0, 12.5, 2.5, 0.5, 0.25]) {
            span.took_us = took;
        }
        assert_eq!(
            graph.text("WRITE"),
            [
                "             | WRITE() {",
                "    1.000 us |   receive();",
                "             |   handle() {",
                "             |     decide() {",
                "    0.500 us |       identify();",
                "    2.500 us |     }",
                "+  12.500 us |   }",
                "    0.250 us |   encode();",
                "+  13.750 us | }",
                "",
            ]
            .join("\n")
        );
    }

    #[test]
    fn spans_beyond_the_limit_are_counted() {
        let graph = graph_of(|| {
            for _ in 0..SPANS_MAX {
                drop(enter(RequestStage::FileSystem, "statx"));
            }
        });
        assert_eq!((graph.spans.len(), graph.left_out), (SPANS_MAX, 1));
        assert!(graph.text("READDIRPLUS").contains("and 1 more"));
    }
}
