//! The metrics server: one complete response, however the request is split.

use curt_observe::control::metrics::answer;

/// The served text.
const FIGURES: &str = "curt_requests_total 7\n";

/// The bytes are a request.
///
/// # Panics
/// If the response depends on the splitting, is not valid HTTP, or repeats the request.
pub fn metrics_request(bytes: &[u8]) {
    let answered = answer(bytes, || FIGURES.to_owned());
    for length in 0..bytes.len() {
        let early = answer(&bytes[..length], || FIGURES.to_owned());
        assert!(early.is_none() || early == answered, "after {length} bytes");
    }
    let Some(answered) = answered else { return };
    let text = String::from_utf8(answered).expect("an answer is text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head ends");
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
    let status = status.expect("a status");
    let names: Vec<_> = lines.filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    let expected = ["Content-Type", "Content-Length", "Allow", "Connection"];
    assert!(names.iter().all(|name| expected.contains(name)), "{text}");
    assert!(head.contains("\r\nConnection: close"), "{text}");
    let length = format!("\r\nContent-Length: {}", body.len());
    let is_head = body.is_empty() && bytes.starts_with(b"HEAD ");
    assert!(is_head || head.contains(&length), "{text}");
    assert_eq!(body == FIGURES, status == "200 OK" && !is_head, "{text}");
}
