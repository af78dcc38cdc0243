//! A server of HTTP/1.1 that answers GET and closes the connection: scrapers need no more.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use formats::Node;
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
/// The connections whose requests are awaited, those that get metrics or profiles, and all of them.
const MAX_WAITING: usize = 64;
const MAX_LONG_ANSWERS: usize = 16;
const MAX_CONNECTIONS: usize = 2 * (MAX_WAITING + MAX_LONG_ANSWERS);
/// The time that each connection has for its request, also if very many begin.
const TIME_TO_ASK: Duration = Duration::from_millis(50);
/// The time for the rest of a request that was answered before its end.
const FOR_REST: Duration = Duration::from_millis(200);
/// The agent is stuck if it has read no figures for this time. The longest captures take a minute.
const MAX_AGE: Duration = Duration::from_secs(300);
/// The wait after a connection could not be accepted, as when no more files can be open.
const AFTER_FAILURE: Duration = Duration::from_millis(100);
/// The wait for connections that are about to end.
const FOR_OTHERS: Duration = Duration::from_millis(1);

/// The statuses of answers, and that of a connection without a complete request.
pub(crate) const STATUSES: [&str; 7] = ["200", "400", "401", "404", "405", "503", CLOSED];
const CLOSED: &str = "closed";

/// What requests are answered with.
pub(crate) struct Service {
    shared: Shared,
    /// The token that they must have.
    token: Option<Token>,
    /// The certificate, if connections are encrypted.
    certificate: Option<Certificate>,
    waiting: Waiting,
    /// The connections, and the answers with metrics or profiles.
    connections: Arc<AtomicUsize>,
    long_answers: Arc<AtomicUsize>,
}

impl Service {
    pub(crate) fn new(
        shared: Shared,
        token: Option<Token>,
        certificate: Option<Certificate>,
    ) -> Self {
        let (waiting, connections) = (Waiting::default(), Arc::default());
        Self { shared, token, certificate, waiting, connections, long_answers: Arc::default() }
    }

    /// An answer that may be long, unless there are too many.
    fn long(&self, content_type: &'static str, body: impl FnOnce(&Node) -> Vec<u8>) -> Answer {
        match Counted::new(&self.long_answers, MAX_LONG_ANSWERS) {
            Some(counted) => {
                let (status, body) = ("200 OK", body(&self.shared.get()));
                Answer { status, content_type, body, counted: Some(counted) }
            }
            None => Answer::plain(
                "503 Service Unavailable\r\nRetry-After: 1",
                "rbloat agent is answering as many requests as it can",
            ),
        }
    }
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

fn answer_connection(stream: &Arc<TcpStream>, service: &Service) -> io::Result<()> {
    let mut timed = Timed { stream, until: Instant::now() + DEADLINE };
    // A long answer may wait for its reader, and no other connection ends it.
    let is_long = || service.waiting.remove(stream);
    let Some(certificate) = &service.certificate else {
        answer(&mut timed, service, is_long)?;
        return discard_rest(stream);
    };
    let connection = ServerConnection::new(certificate.config()).map_err(io::Error::other)?;
    let mut encrypted = StreamOwned::new(connection, timed);
    answer(&mut encrypted, service, is_long)?;
    encrypted.conn.send_close_notify();
    encrypted.flush()?;
    discard_rest(stream)
}

/// Reads the rest of a request that was too long, or another request, for a moment: the kernel would reset the connection, and the
/// client would lose the answer.
fn discard_rest(stream: &TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let mut timed = Timed { stream, until: Instant::now() + FOR_REST };
    let mut bytes = [0; 4096];
    while timed.read(&mut bytes)? > 0 {}
    Ok(())
}

/// One of several at a time.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let enter = |it| (it < most).then_some(it + 1);
        let entered = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter);
        entered.ok().map(|_| Self(Arc::clone(count)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers until rbloat ends.
pub(crate) fn serve(listener: &TcpListener, service: &Arc<Service>) {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(AFTER_FAILURE);
            continue;
        };
        let (stream, service) = (Arc::new(stream), Arc::clone(service));
        service.waiting.add(&stream);
        // Connections that others have ended need a moment.
        let counted = loop {
            match Counted::new(&service.connections, MAX_CONNECTIONS) {
                Some(counted) => break counted,
                None => std::thread::sleep(FOR_OTHERS),
            }
        };
        // The count is right also if an answer panics or no thread can be started.
        let answer = move || {
            let _counted = counted;
            // The scraper may have gone.
            let _ = answer_connection(&stream, &service);
            service.waiting.remove(&stream);
        };
        let _ = std::thread::Builder::new().name("answer".into()).spawn(answer);
    }
}

/// The connections whose requests are not complete, the oldest first, and the times of their beginnings. They need no token, so they
/// must not keep others away: there are at most so many, and a further one ends the oldest.
#[derive(Default)]
struct Waiting(Mutex<VecDeque<(Instant, Arc<TcpStream>)>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Instant, Arc<TcpStream>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection, when there is a place for it.
    fn add(&self, stream: &Arc<TcpStream>) {
        loop {
            let mut streams = self.lock();
            let oldest = streams.front().filter(|_| streams.len() >= MAX_WAITING);
            let left = oldest
                .map_or(Duration::ZERO, |(began, _)| TIME_TO_ASK.saturating_sub(began.elapsed()));
            if left.is_zero() {
                if streams.len() >= MAX_WAITING
                    && let Some((_, oldest)) = streams.pop_front()
                {
                    // Its thread reads the end of the request, and ends.
                    let _ = oldest.shutdown(Shutdown::Both);
                }
                streams.push_back((Instant::now(), Arc::clone(stream)));
                return;
            }
            drop(streams);
            std::thread::sleep(left);
        }
    }

    fn remove(&self, stream: &Arc<TcpStream>) {
        self.lock().retain(|(_, it)| !Arc::ptr_eq(it, stream));
    }
}

/// An answer.
struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: Vec<u8>,
    /// Of an answer that may be long.
    counted: Option<Counted>,
}

impl Answer {
    fn plain(status: &'static str, body: &str) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: format!("{body}\n").into_bytes(),
            counted: None,
        }
    }
}

fn answer(
    stream: &mut (impl Read + Write),
    service: &Service,
    is_long: impl FnOnce(),
) -> io::Result<()> {
    let mut request = Vec::new();
    let (is_head, answer) = loop {
        if let Some(answer) = answer_to(&request, service) {
            break answer;
        }
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes).inspect_err(|_| service.shared.count(CLOSED))? {
            0 => {
                service.shared.count(CLOSED);
                return Ok(());
            }
            read => request.extend_from_slice(&bytes[..read]),
        }
    };
    service.shared.count(&answer.status[..3]);
    let Answer { status, content_type, body, counted } = answer;
    if counted.is_some() {
        is_long();
    }
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
            service.long(format.content_type(), |node| render::metrics(node, format).into_bytes())
        }
        ("GET" | "HEAD", "/processes") => {
            service.long("application/json", |node| render::node_processes(node).into_bytes())
        }
        ("GET" | "HEAD", "/debug/pprof/owners") => {
            let now = unix_ms().saturating_mul(1_000_000);
            service.long("application/octet-stream", |node| render::owners_pprof(node, now))
        }
        ("GET" | "HEAD", "/healthz") => health(service.shared.age()),
        ("GET" | "HEAD", _) => Answer::plain(
            "404 Not Found",
            "rbloat agent serves /metrics, /processes, /debug/pprof/owners and /healthz",
        ),
        _ => Answer::plain(
            "405 Method Not Allowed\r\nAllow: GET, HEAD",
            "rbloat agent answers GET only",
        ),
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
        answer_to(request, &Service::new(Shared::new(&[]), None, None))
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
        assert_eq!(
            status(b"POST /metrics HTTP/1.1\r\n\r\n"),
            Some("405 Method Not Allowed\r\nAllow: GET, HEAD")
        );
    }

    #[test]
    fn a_count_ends_with_what_it_counts_also_by_a_panic() {
        let count = Arc::default();
        let one = Counted::new(&count, 2);
        let of_thread = Arc::clone(&count);
        let panic = std::thread::spawn(move || {
            let _two = Counted::new(&of_thread, 2).unwrap();
            assert!(Counted::new(&of_thread, 2).is_none());
            panic!("an answer");
        });
        assert!(panic.join().is_err());
        assert!(one.is_some() && count.load(Ordering::Relaxed) == 1);
    }

    /// Scrapers that do not read their answers kept a check of health from being answered.
    #[test]
    fn of_many_long_answers_the_last_one_is_a_refusal() {
        let service = Service::new(Shared::new(&[]), None, None);
        let ask =
            |path: &str| answer_to(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes(), &service);
        let mut held: Vec<_> = (0..MAX_LONG_ANSWERS).map(|_| ask("/metrics")).collect();
        let status = |path| ask(path).unwrap().1.status;
        assert_eq!(status("/metrics"), "503 Service Unavailable\r\nRetry-After: 1");
        assert_eq!(status("/healthz"), "200 OK");
        held.pop();
        assert_eq!(status("/debug/pprof/owners"), "200 OK");
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
