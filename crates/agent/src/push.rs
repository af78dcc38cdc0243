//! Hands profiles over to a server, on a thread of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use formats::{Place, PushOutcome};
use render::ProfileServer;
use rustls::crypto::ring::default_provider;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::error::Error;
use crate::log::Log;
use crate::node_name::node_name;
use crate::token::{Token, read_file};

/// The profiles that wait for the server.
const MAX_WAITING: usize = 200;
/// The time for a request and its answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// The wait before a profile is offered again to a server that could not be reached.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
/// The largest file with certificates of authorities, in bytes.
const MAX_AUTHORITIES: u64 = 16 << 20;
/// Where systems keep the certificates of authorities.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// A server, as in `pyroscope=http://pyroscope:4040`.
#[derive(Debug, Clone)]
pub struct Endpoint {
    server: ProfileServer,
    url: String,
}

/// Reads a server and its address from an argument.
///
/// # Errors
/// If it is neither for Pyroscope nor for Parca, or has no address.
pub fn parse_endpoint(text: &str) -> Result<Endpoint, String> {
    let (server, url) = text.split_once('=').unwrap_or_default();
    let server = match server {
        "pyroscope" => ProfileServer::Pyroscope,
        "parca" => ProfileServer::Parca,
        _ => return Err("must be pyroscope=URL or parca=URL".into()),
    };
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err("the address must begin with http:// or https://".into());
    }
    Ok(Endpoint { server, url: format!("{}{}", url.trim_end_matches('/'), server.path()) })
}

/// Hands profiles over.
pub(crate) struct Pusher {
    profiles: SyncSender<Profile>,
    counts: Counts,
}

struct Profile {
    place: Place,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Default)]
struct Counts(Arc<Mutex<BTreeMap<PushOutcome, u64>>>);

impl Counts {
    fn add(&self, outcome: PushOutcome) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(outcome).or_default() += 1;
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
        let client = Client {
            agent,
            target: target.clone(),
            authorization: token.map(Token::header),
            node: node_name(),
            log,
        };
        let (profiles, waiting) = sync_channel(MAX_WAITING);
        let counts = Counts::default();
        let of_thread = counts.clone();
        std::thread::Builder::new()
            .name("push".into())
            .spawn(move || client.run(&waiting, &of_thread))?;
        Ok(Self { profiles, counts })
    }

    /// Hands a profile over, soon.
    pub(crate) fn push(&self, place: &Place, bytes: Vec<u8>) {
        if self.profiles.try_send(Profile { place: place.clone(), bytes }).is_err() {
            self.counts.add(PushOutcome::Dropped);
        }
    }

    /// The outcomes so far.
    pub(crate) fn outcomes(&self) -> BTreeMap<PushOutcome, u64> {
        self.counts.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The reason why a profile was not accepted.
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
    node: String,
    log: Log,
}

impl Client {
    fn run(&self, waiting: &Receiver<Profile>, counts: &Counts) {
        let mut is_reported = false;
        for profile in waiting {
            loop {
                let error = match self.post(&profile) {
                    Ok(()) => {
                        counts.add(PushOutcome::Accepted);
                        is_reported = false;
                        break;
                    }
                    Err(error) => error,
                };
                // Once for each time that the server is away.
                if !std::mem::replace(&mut is_reported, true) {
                    (self.log.complain)(&format!("cannot push to {}: {error}", self.target.url));
                }
                if matches!(
                    error,
                    PushError::Request(ureq::Error::StatusCode(400..500)) | PushError::Page
                ) {
                    counts.add(PushOutcome::Refused);
                    break;
                }
                counts.add(PushOutcome::Failed);
                std::thread::sleep(AFTER_FAILURE);
            }
        }
    }

    fn post(&self, profile: &Profile) -> Result<(), PushError> {
        let body = self.target.server.request(&self.node, &profile.place, &profile.bytes);
        let mut request =
            self.agent.post(&self.target.url).header("Content-Type", "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let answer = request.send(&body[..])?;
        let of_type = |kind: &str| {
            answer
                .headers()
                .get("content-type")
                .is_some_and(|it| it.as_bytes().starts_with(kind.as_bytes()))
        };
        if of_type("text/html") { Err(PushError::Page) } else { Ok(()) }
    }
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

    #[test]
    fn a_server_has_a_kind_and_an_address() {
        let target = parse_endpoint("pyroscope=http://pyroscope:4040/").unwrap();
        assert_eq!(target.url, "http://pyroscope:4040/push.v1.PusherService/Push");
        let target = parse_endpoint("parca=https://parca/base").unwrap();
        assert_eq!(target.url, "https://parca/base/api/profiles/writeraw");
        for wrong in ["", "pyroscope", "tempo=http://a", "parca=", "parca=parca:7070"] {
            assert!(parse_endpoint(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn profiles_wait_for_a_server_that_is_away_up_to_a_number() {
        // Nobody listens at this port.
        let target = parse_endpoint("parca=http://127.0.0.1:1").unwrap();
        let pusher = Pusher::start(&target, None, None, crate::log::SILENT).unwrap();
        let push = || pusher.push(&Place::default(), Vec::new());
        push();
        // The thread has the first one, and offers it again.
        while !pusher.outcomes().contains_key(&PushOutcome::Failed) {
            std::thread::yield_now();
        }
        (0..MAX_WAITING).for_each(|_| push());
        assert_eq!(pusher.outcomes().get(&PushOutcome::Dropped), None);
        push();
        assert_eq!(pusher.outcomes().get(&PushOutcome::Dropped), Some(&1));
    }
}
