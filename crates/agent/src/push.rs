//! Hands profiles, snapshots and metrics over to servers, on a thread for each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use formats::{FindingRow, Node, Place, PushOutcome};
use render::{Profile, ProfileServer, SavedSnapshot, log_request, metrics_request};
use rustls::crypto::ring::default_provider;
use supervise::unix_ms;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::error::Error;
use crate::log::Log;
use crate::node_name::node_name;
use crate::token::{Token, read_file};

/// The requests that wait for the server.
const MAX_WAITING: usize = 200;
/// The time for a request and its answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// The wait before a request is made again to a server that could not be reached.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// The largest file with certificates of authorities, in bytes.
const MAX_AUTHORITIES: u64 = 16 << 20;
/// Where systems keep the certificates of authorities.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The most bytes that wait.
const MAX_WAITING_BYTES: usize = 64 << 20;

/// A server and what it takes, as in `pyroscope=http://pyroscope:4040`.
#[derive(Debug, Clone)]
pub struct Endpoint {
    takes: Takes,
    url: String,
}

/// What a server takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Profiles(ProfileServer),
    /// The files of snapshots.
    Files,
    /// Metrics, and a log record for each snapshot.
    Telemetry,
}

/// Reads a server and its address from an argument.
///
/// # Errors
/// If it is no known kind of server, or has no address.
pub fn parse_endpoint(text: &str) -> Result<Endpoint, String> {
    let (server, url) = text.split_once('=').unwrap_or_default();
    let takes = match server {
        "pyroscope" => Takes::Profiles(ProfileServer::Pyroscope),
        "parca" => Takes::Profiles(ProfileServer::Parca),
        "snapshots" => Takes::Files,
        "otlp" => Takes::Telemetry,
        "otlp-profiles" => Takes::Profiles(ProfileServer::Collector),
        _ => {
            let kinds = "pyroscope=URL, parca=URL, snapshots=URL, otlp=URL or otlp-profiles=URL";
            return Err(format!("must be {kinds}"));
        }
    };
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err("the address must begin with http:// or https://".into());
    }
    let base = url.trim_end_matches('/');
    let url = match takes {
        Takes::Profiles(server) => format!("{base}{}", server.path()),
        Takes::Files => url.to_owned(),
        // Each signal has a path of its own below it.
        Takes::Telemetry => base.to_owned(),
    };
    Ok(Endpoint { takes, url })
}

impl Endpoint {
    /// True if it takes snapshots.
    pub(crate) fn needs_snapshots(&self) -> bool {
        self.takes == Takes::Files
    }

    fn name(&self) -> &'static str {
        match self.takes {
            Takes::Profiles(ProfileServer::Pyroscope) => "pyroscope",
            Takes::Profiles(ProfileServer::Parca) => "parca",
            Takes::Profiles(ProfileServer::Collector) => "otlp-profiles",
            Takes::Files => "snapshots",
            Takes::Telemetry => "otlp",
        }
    }

    /// The address of a file: its name is the last part of the path, before the query if there is one.
    fn url_of(&self, name: &str) -> String {
        let (path, query) = self.url.split_at(self.url.find('?').unwrap_or(self.url.len()));
        format!("{}/{name}{query}", path.trim_end_matches('/'))
    }

    /// The address without its query, which may be a secret.
    fn shown(&self) -> &str {
        self.url.split('?').next().unwrap_or(&self.url)
    }
}

/// Hands profiles or files of snapshots over to one server.
#[derive(Clone)]
pub(crate) struct Pusher {
    target: Endpoint,
    /// The name of this machine.
    node: String,
    requests: SyncSender<Request>,
    state: Arc<State>,
}

struct Request {
    url: String,
    body: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    outcomes: Mutex<BTreeMap<PushOutcome, u64>>,
    /// The bytes that wait.
    waiting: AtomicUsize,
}

impl State {
    fn add(&self, outcome: PushOutcome) {
        *self
            .outcomes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(outcome)
            .or_default() += 1;
    }
}

impl Pusher {
    /// Starts the thread. Its requests have the token, if one is given. The certificate of the server must be vouched for by one
    /// of those in `authorities`; without it, by an authority that the system trusts.
    ///
    /// # Errors
    /// If the certificates of the authorities cannot be read, or the thread cannot be started.
    pub(crate) fn start(
        target: &Endpoint,
        token: Option<&Token>,
        authorities: Option<&Path>,
        log: Log,
    ) -> Result<Self, Error> {
        let mut tls =
            TlsConfig::builder().unversioned_rustls_crypto_provider(Arc::new(default_provider()));
        if target.url.starts_with("https://") {
            tls = tls.root_certs(roots(authorities)?);
        }
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(DEADLINE))
            .tls_config(tls.build())
            .user_agent(concat!("rbloat/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let client =
            Client { agent, target: target.clone(), authorization: token.map(Token::header), log };
        let (requests, waiting) = sync_channel(MAX_WAITING);
        let state = Arc::<State>::default();
        let of_thread = state.clone();
        std::thread::Builder::new()
            .name("push".into())
            .spawn(move || client.run(&waiting, &of_thread))?;
        Ok(Self { target: target.clone(), node: node_name(), requests, state })
    }

    /// Hands a profile over, soon, if the server takes profiles.
    pub(crate) fn push_profile(&self, place: &Place, profile: &Profile) {
        if let Takes::Profiles(server) = self.target.takes {
            let body = server.request(&self.node, place, profile);
            self.send(Request { url: self.target.url.clone(), body });
        }
    }

    /// Hands a file over, soon, if the server takes snapshots.
    pub(crate) fn push_file(&self, name: &str, bytes: &[u8]) {
        if self.target.takes == Takes::Files {
            self.send(Request { url: self.target.url_of(name), body: bytes.to_owned() });
        }
    }

    /// Hands a record of a snapshot over, soon, if the server takes log records.
    pub(crate) fn push_log(&self, place: &Place, pid: i32, reason: &FindingRow, path: &Path) {
        if self.target.takes == Takes::Telemetry {
            let (node, path, unix_ms) = (&self.node, &path.to_string_lossy(), unix_ms());
            let saved = SavedSnapshot { node, place, pid, reason, path, unix_ms };
            let url = format!("{}/v1/logs", self.target.url);
            self.send(Request { url, body: log_request(saved) });
        }
    }

    /// Hands the metrics over, soon, if the server takes them. Others follow, so they do not wait behind others: while the server is away,
    /// they would take the places of log records.
    pub(crate) fn push_metrics(&self, node: &Node, since_ms: u64) {
        if self.target.takes != Takes::Telemetry {
            return;
        }
        if self.state.waiting.load(Ordering::Relaxed) > 0 {
            return self.state.add(PushOutcome::Dropped);
        }
        let url = format!("{}/v1/metrics", self.target.url);
        let body = metrics_request(node, &self.node, since_ms, unix_ms());
        self.send(Request { url, body });
    }

    fn send(&self, request: Request) {
        let bytes = request.body.len();
        let waiting = self.state.waiting.fetch_add(bytes, Ordering::Relaxed);
        let has_room = waiting + bytes <= MAX_WAITING_BYTES;
        if !has_room || self.requests.try_send(request).is_err() {
            self.state.waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.state.add(PushOutcome::Dropped);
        }
    }
}

/// The outcomes so far, by the kind of server.
pub(crate) fn outcomes(pushers: &[Pusher]) -> BTreeMap<&'static str, BTreeMap<PushOutcome, u64>> {
    let mut all: BTreeMap<_, BTreeMap<PushOutcome, u64>> = BTreeMap::new();
    for pusher in pushers {
        let of_kind = all.entry(pusher.target.name()).or_default();
        let outcomes = pusher.state.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        for (outcome, count) in outcomes.iter() {
            *of_kind.entry(*outcome).or_default() += count;
        }
    }
    all
}

/// The reason why a request was not accepted.
#[derive(Debug, thiserror::Error)]
enum PushError {
    #[error(transparent)]
    Request(#[from] ureq::Error),
    /// Servers with a user interface answer 200 with its page at any path.
    #[error("it answers with a web page, so this is no address of such a server")]
    Page,
}

struct Client {
    agent: ureq::Agent,
    target: Endpoint,
    authorization: Option<String>,
    log: Log,
}

impl Client {
    fn run(&self, waiting: &Receiver<Request>, state: &State) {
        let mut is_reported = false;
        for request in waiting {
            loop {
                let error = match self.offer(&request) {
                    Ok(()) => {
                        state.add(PushOutcome::Accepted);
                        is_reported = false;
                        break;
                    }
                    Err(error) => error,
                };
                // Once for each time that the server is away.
                if !std::mem::replace(&mut is_reported, true) {
                    let to = self.target.shown();
                    (self.log.complain)(&format!("cannot push to {to}: {error}"));
                }
                if matches!(
                    error,
                    PushError::Request(ureq::Error::StatusCode(status)) if is_final(status)
                ) || matches!(error, PushError::Page)
                {
                    state.add(PushOutcome::Refused);
                    break;
                }
                state.add(PushOutcome::Failed);
                std::thread::sleep(AFTER_FAILURE);
            }
            state.waiting.fetch_sub(request.body.len(), Ordering::Relaxed);
        }
    }

    /// Makes a request once. Object stores and WebDAV take files by PUT.
    fn offer(&self, request: &Request) -> Result<(), PushError> {
        let is_file = self.target.takes == Takes::Files;
        let (made, kind) = match is_file {
            true => (self.agent.put(&request.url), "application/octet-stream"),
            false => (self.agent.post(&request.url), "application/json"),
        };
        let mut made = made.header("Content-Type", kind);
        if let Some(authorization) = &self.authorization {
            made = made.header("Authorization", authorization);
        }
        let answer = made.send(&request.body[..])?;
        let kind = answer.headers().get("content-type");
        let is_page = kind.is_some_and(|it| it.as_bytes().starts_with(b"text/html"));
        if is_page && !is_file { Err(PushError::Page) } else { Ok(()) }
    }
}

/// True if the server would answer the same again. One that has no time now says so by 408 or 429.
fn is_final(status: u16) -> bool {
    (400..500).contains(&status) && ![408, 429].contains(&status)
}

fn roots(authorities: Option<&Path>) -> Result<RootCerts, Error> {
    let of_system = || {
        let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
        named.into_iter().chain(AUTHORITIES.map(PathBuf::from)).find(|path| path.exists())
    };
    let path = authorities.map(Path::to_owned).or_else(of_system);
    let path = path.ok_or(Error::NoAuthorities)?;
    let unusable = |what: String| Error::UnusableSecret { path: path.clone(), what };
    let (_, bytes) =
        read_file(&path, MAX_AUTHORITIES).map_err(|error| unusable(error.to_string()))?;
    let certificates = parse_pem(&bytes).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    });
    let certificates: Result<Vec<Certificate<'static>>, _> = certificates.collect();
    let certificates = certificates.map_err(|error| unusable(error.to_string()))?;
    if certificates.is_empty() {
        return Err(unusable("it has no certificate".into()));
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

#[cfg(test)]
mod tests {
    use super::*;
    use formats::Owned;

    #[test]
    fn a_server_has_a_kind_and_an_address() {
        let target = parse_endpoint("pyroscope=http://pyroscope:4040/").unwrap();
        assert_eq!(target.url, "http://pyroscope:4040/push.v1.PusherService/Push");
        let target = parse_endpoint("parca=https://parca/base").unwrap();
        assert_eq!(target.url, "https://parca/base/api/profiles/writeraw");
        let target = parse_endpoint("snapshots=https://store/rbloat/?sig=secret/x").unwrap();
        assert_eq!(target.url_of("1-a-2.rbloat"), "https://store/rbloat/1-a-2.rbloat?sig=secret/x");
        assert_eq!(target.shown(), "https://store/rbloat/");
        assert_eq!(parse_endpoint("otlp=http://c:4318/").unwrap().url, "http://c:4318");
        let target = parse_endpoint("otlp-profiles=http://c:4318").unwrap();
        assert_eq!(target.url, "http://c:4318/v1development/profiles");
        for wrong in ["", "pyroscope", "tempo=http://a", "parca=", "parca=parca:7070"] {
            assert!(parse_endpoint(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn requests_wait_for_a_server_that_is_away_up_to_a_number_and_a_size() {
        let pusher = |target: &str| {
            // Nobody listens at this port.
            let target = parse_endpoint(&format!("{target}=http://127.0.0.1:1")).unwrap();
            Pusher::start(&target, None, None, crate::log::SILENT).unwrap()
        };
        let count = |pusher: &Pusher, outcome| {
            let all = outcomes(std::slice::from_ref(pusher));
            all[pusher.target.name()].get(&outcome).copied().unwrap_or(0)
        };
        let parca = pusher("parca");
        let profile = render::owners_profile(&Owned { unix_ms: 0, rss_bytes: 0, owners: vec![] });
        let push = || parca.push_profile(&Place::default(), &profile);
        push();
        // The thread has the first one, and offers it again.
        while count(&parca, PushOutcome::Failed) == 0 {
            std::thread::yield_now();
        }
        (0..MAX_WAITING).for_each(|_| push());
        assert_eq!(count(&parca, PushOutcome::Dropped), 0);
        push();
        parca.push_file("a.rbloat", &[]);
        assert_eq!(count(&parca, PushOutcome::Dropped), 1);

        let store = pusher("snapshots");
        store.push_profile(&Place::default(), &profile);
        let half = vec![0; MAX_WAITING_BYTES / 2];
        (0..2).for_each(|_| store.push_file("a.rbloat", &half));
        assert_eq!(count(&store, PushOutcome::Dropped), 0);
        store.push_file("a.rbloat", &[0]);
        assert_eq!(count(&store, PushOutcome::Dropped), 1);

        // Old metrics are of no use, and take no place of another request.
        let collector = pusher("otlp");
        (0..3).for_each(|_| collector.push_metrics(&Node::default(), 0));
        assert_eq!(count(&collector, PushOutcome::Dropped), 2);
    }

    #[test]
    fn a_server_that_has_no_time_is_asked_again() {
        let again = [200, 408, 429, 500, 503].map(is_final);
        assert_eq!(again, [false; 5]);
        assert_eq!([400, 401, 404, 413].map(is_final), [true; 4]);
    }
}
