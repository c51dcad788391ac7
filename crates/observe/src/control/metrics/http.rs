//! The subset of HTTP/1.1 (RFC 9112) that a scrape needs: GET and HEAD of one path, one request per
//! connection.
//!
//! Bytes in, bytes out; no socket and no clock.

use crate::prometheus::CONTENT_TYPE;

/// Maximum size of a request in bytes, up to the empty line after its header.
pub(super) const HEAD_MAX: usize = 8 << 10;

/// The path of the metrics.
const PATH: &str = "/metrics";

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpStatus {
    Ok,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    HeadTooLarge,
    VersionNotSupported,
}

impl HttpStatus {
    const fn line(self) -> &'static str {
        match self {
            Self::Ok => "200 OK",
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::HeadTooLarge => "431 Request Header Fields Too Large",
            Self::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }
}

/// The response to the received bytes, or `None` while the request is incomplete. `figures` is
/// called only if they are sent.
#[must_use]
pub fn answer(received: &[u8], figures: impl FnOnce() -> String) -> Option<Vec<u8>> {
    let Some(head) = head(received) else {
        return (received.len() >= HEAD_MAX).then(|| refusal(HttpStatus::HeadTooLarge, true));
    };
    let (status, has_body) = match request(head) {
        Ok(has_body) => (HttpStatus::Ok, has_body),
        Err((status, has_body)) => (status, has_body),
    };
    Some(match status {
        HttpStatus::Ok => response(status, CONTENT_TYPE, &figures(), has_body),
        _ => refusal(status, has_body),
    })
}

/// The bytes before the empty line.
fn head(received: &[u8]) -> Option<&[u8]> {
    let within = &received[..received.len().min(HEAD_MAX)];
    let ends = [b"\r\n\r\n".as_slice(), b"\n\n"];
    ends.iter()
        .filter_map(|end| within.windows(end.len()).position(|window| window == *end))
        .min()
        .map(|end| &within[..end])
}

/// Whether a request is valid, and whether its response has a body.
fn request(head: &[u8]) -> Result<bool, (HttpStatus, bool)> {
    let bad = (HttpStatus::BadRequest, true);
    let text = std::str::from_utf8(head).map_err(|_| bad)?;
    let line = text.lines().next().unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else {
        return Err(bad);
    };
    let is_token = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_token(method) || !is_token(target) {
        return Err(bad);
    }
    match version.strip_prefix("HTTP/") {
        Some("1.0" | "1.1") => {}
        Some(_) => return Err((HttpStatus::VersionNotSupported, true)),
        None => return Err(bad),
    }
    let has_body = method != "HEAD";
    if !matches!(method, "GET" | "HEAD") {
        return Err((HttpStatus::MethodNotAllowed, true));
    }
    // The absolute form, as used with proxies, includes the host.
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |slash| &rest[slash..]),
        None => target,
    };
    let path = path.split(['?', '#']).next().unwrap_or_default();
    if path == PATH { Ok(has_body) } else { Err((HttpStatus::NotFound, has_body)) }
}

fn refusal(status: HttpStatus, has_body: bool) -> Vec<u8> {
    let text = match status {
        HttpStatus::NotFound => format!("There is {PATH} here, and nothing else.\n"),
        other => format!("{}\n", other.line()),
    };
    response(status, "text/plain; charset=utf-8", &text, has_body)
}

fn response(status: HttpStatus, kind: &str, body: &str, has_body: bool) -> Vec<u8> {
    let allow = if status == HttpStatus::MethodNotAllowed { "Allow: GET, HEAD\r\n" } else { "" };
    let mut text = format!(
        "HTTP/1.1 {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        status.line(),
        body.len()
    );
    if has_body {
        text.push_str(body);
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_line(received: &[u8]) -> Option<String> {
        let answer = answer(received, || "figures\n".to_owned())?;
        let text = String::from_utf8(answer).ok()?;
        text.lines().next().map(str::to_owned)
    }

    #[test]
    fn metrics_are_served_at_their_path_and_nowhere_else() {
        for (request, status) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200"),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200"),
            ("GET http://x:1/metrics HTTP/1.1\n\n", "200"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", "404"),
            ("GET http://x HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET /metrics HTTP/2.0\r\n\r\n", "505"),
            ("GET /metrics\r\n\r\n", "400"),
            ("GET  /metrics HTTP/1.1\r\n\r\n", "400"),
            ("\r\n\r\n", "400"),
            ("\x16\x03\x01\x02\n\n", "400"),
        ] {
            let line = first_line(request.as_bytes()).unwrap_or_default();
            assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {line}");
        }
    }

    #[test]
    fn a_request_that_is_not_whole_is_waited_for_up_to_its_bound() {
        let mut received = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
        assert_eq!(first_line(&received), None);
        received.resize(HEAD_MAX - 1, b'x');
        assert_eq!(first_line(&received), None);
        received.push(b'x');
        assert!(first_line(&received).unwrap_or_default().contains("431"));
        let mut fits = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
        fits.resize(HEAD_MAX - 4, b'x');
        fits.extend(b"\r\n\r\n");
        assert!(first_line(&fits).unwrap_or_default().contains("200"));
    }

    #[test]
    fn replies_have_a_length_and_head_gets_no_body() {
        let text = |request: &str| {
            let answer = answer(request.as_bytes(), || "figures\n".to_owned()).unwrap_or_default();
            String::from_utf8(answer).unwrap_or_default()
        };
        let response = text("GET /metrics HTTP/1.1\r\n\r\n");
        assert!(
            response.contains("Content-Length: 8\r\n") && response.ends_with("\r\n\r\nfigures\n"),
            "{response}"
        );
        assert!(response.contains("Content-Type: text/plain; version=0.0.4"), "{response}");
        let response = text("HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(response.contains("Content-Length: 8\r\n") && response.ends_with("\r\n\r\n"), "{response}");
        assert!(text("PUT / HTTP/1.1\r\n\r\n").contains("Allow: GET, HEAD\r\n"));
    }
}
