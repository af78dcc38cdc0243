//! A server of HTTP/1.1 that answers GET and closes the connection: scrapers need no more.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use render::MetricsFormat;
use rustls::{ServerConnection, StreamOwned};
use supervise::unix_ms;

use crate::shared::Shared;
use crate::tls::Certificate;
use crate::token::Token;

/// The longest request, and the headers in it.
const MAX_REQUEST: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
/// The time for a request and its answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// The connections that are answered at a time; others are closed.
const MAX_CONNECTIONS: usize = 16;
/// The agent is stuck if it has read no figures for this time. The longest captures take a minute.
const MAX_AGE: Duration = Duration::from_secs(300);
/// The wait after a connection could not be accepted, as when no more files can be open.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// What requests are answered with.
pub(crate) struct Service {
    pub(crate) shared: Shared,
    /// The token that they must have.
    pub(crate) token: Option<Token>,
    /// The certificate, if connections are encrypted.
    pub(crate) certificate: Option<Certificate>,
}

/// A connection whose reads and writes end at a deadline.
struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn answer_connection(stream: &TcpStream, service: &Service) -> io::Result<()> {
    let mut timed = Timed { stream, until: Instant::now() + DEADLINE };
    let Some(certificate) = &service.certificate else { return answer(&mut timed, service) };
    let connection = ServerConnection::new(certificate.config()).map_err(io::Error::other)?;
    let mut encrypted = StreamOwned::new(connection, timed);
    answer(&mut encrypted, service)?;
    encrypted.conn.send_close_notify();
    encrypted.flush()
}

/// The connections that are open.
static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

/// One of them, which was counted.
struct Connection;

impl Drop for Connection {
    fn drop(&mut self) {
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers until rbloat ends.
pub(crate) fn serve(listener: &TcpListener, service: &Arc<Service>) {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(AFTER_FAILURE);
            continue;
        };
        if CONNECTIONS.fetch_add(1, Ordering::Relaxed) < MAX_CONNECTIONS {
            let service = Arc::clone(service);
            // Dropped with the closure, also if an answer panics or no thread can be started.
            let connection = Connection;
            let answer = move || {
                let _connection = connection;
                // The scraper may have gone.
                let _ = answer_connection(&stream, &service);
            };
            let _ = std::thread::Builder::new().name("answer".into()).spawn(answer);
        } else {
            drop(Connection);
        }
    }
}

/// An answer.
struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: Vec<u8>,
}

impl Answer {
    fn plain(status: &'static str, body: &str) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: format!("{body}\n").into_bytes(),
        }
    }
}

fn answer(stream: &mut (impl Read + Write), service: &Service) -> io::Result<()> {
    let mut request = Vec::new();
    let (is_head, answer) = loop {
        if let Some(answer) = answer_to(&request, service) {
            break answer;
        }
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            read => request.extend_from_slice(&bytes[..read]),
        }
    };
    let Answer { status, content_type, body } = answer;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if !is_head {
        stream.write_all(&body)?;
    }
    Ok(())
}

/// The answer to a request, and true if only its head is wanted; `None` if the request is not complete.
fn answer_to(bytes: &[u8], service: &Service) -> Option<(bool, Answer)> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(status) if status.is_complete() => {}
        Ok(_) if bytes.len() <= MAX_REQUEST => return None,
        _ => {
            return Some((
                false,
                Answer::plain("400 Bad Request", "this is no request of HTTP/1.1"),
            ));
        }
    }
    let method = request.method.unwrap_or_default();
    let path = request.path.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let header = |name: &str| {
        let found = request.headers.iter().find(|it| it.name.eq_ignore_ascii_case(name));
        found.map_or(&b""[..], |it| it.value)
    };
    let token = service.token.as_ref().filter(|_| path != "/healthz");
    let answer = match (method, path) {
        _ if token.is_some_and(|token| !token.is_in(header("authorization"))) => Answer::plain(
            "401 Unauthorized\r\nWWW-Authenticate: Bearer",
            "a request needs the token of --token-file",
        ),
        ("GET" | "HEAD", "/metrics") => {
            let format = MetricsFormat::for_accept(&String::from_utf8_lossy(header("accept")));
            Answer {
                status: "200 OK",
                content_type: format.content_type(),
                body: render::metrics(&service.shared.get(), format).into_bytes(),
            }
        }
        ("GET" | "HEAD", "/debug/pprof/owners") => Answer {
            status: "200 OK",
            content_type: "application/octet-stream",
            body: render::owners_pprof(&service.shared.get(), unix_ms().saturating_mul(1_000_000)),
        },
        ("GET" | "HEAD", "/healthz") => health(service.shared.age()),
        ("GET" | "HEAD", _) => Answer::plain(
            "404 Not Found",
            "rbloat agent serves /metrics, /debug/pprof/owners and /healthz",
        ),
        _ => Answer::plain("405 Method Not Allowed", "rbloat agent answers GET only"),
    };
    Some((method == "HEAD", answer))
}

/// The answer to a check of health, if figures were read last so long ago.
fn health(age: Duration) -> Answer {
    if age <= MAX_AGE {
        return Answer::plain("200 OK", "ok");
    }
    let seconds = age.as_secs();
    Answer::plain("503 Service Unavailable", &format!("no figures were read for {seconds} s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &[u8]) -> Option<&'static str> {
        answer_to(request, &Service { shared: Shared::new(), token: None, certificate: None })
            .map(|(_, answer)| answer.status)
    }

    #[test]
    fn requests_are_answered_when_they_are_complete() {
        let request = b"GET /metrics?x=1 HTTP/1.1\r\nHost: node\r\nAccept: */*\r\n\r\n";
        for end in 0..request.len() {
            assert_eq!(status(&request[..end]), None, "{end}");
        }
        assert_eq!(status(request), Some("200 OK"));
        assert_eq!(status(b"GET /healthz HTTP/1.0\r\n\r\n"), Some("200 OK"));
        assert_eq!(status(b"GET /etc/passwd HTTP/1.1\r\n\r\n"), Some("404 Not Found"));
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n"), Some("405 Method Not Allowed"));
    }

    #[test]
    fn an_agent_that_is_stuck_is_not_healthy() {
        assert_eq!(health(MAX_AGE).status, "200 OK");
        let stuck = health(MAX_AGE + Duration::from_secs(1));
        assert_eq!(stuck.status, "503 Service Unavailable");
        assert_eq!(stuck.body, b"no figures were read for 301 s\n");
    }

    #[test]
    fn what_is_no_request_is_refused_and_a_long_one_is_not_awaited() {
        assert_eq!(status(b"\x16\x03\x01\x02\x00"), Some("400 Bad Request"));
        let mut long = b"GET / HTTP/1.1\r\nA: ".to_vec();
        long.resize(MAX_REQUEST + 1, b'a');
        assert_eq!(status(&long), Some("400 Bad Request"));
        let many = "A: b\r\n".repeat(MAX_HEADERS + 1);
        let many = format!("GET / HTTP/1.1\r\n{many}\r\n");
        assert_eq!(status(many.as_bytes()), Some("400 Bad Request"));
    }
}
