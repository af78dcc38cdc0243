//! The certificate of the server, which may be renewed while the agent runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::Error;
use crate::log::Log;
use crate::token::{read_file, read_secret};

/// The longest chain of certificates, in bytes.
const MAX_CHAIN: u64 = 1 << 20;

/// A chain of certificates and its key.
pub(crate) struct Certificate {
    chain: PathBuf,
    key: PathBuf,
    current: Mutex<Current>,
    log: Log,
}

struct Current {
    /// When the files were changed last.
    changed: [Option<SystemTime>; 2],
    config: Arc<ServerConfig>,
}

impl Certificate {
    /// Reads both files, which are in PEM.
    ///
    /// # Errors
    /// If a file cannot be read or used, or others may read the key.
    pub(crate) fn read(chain: &Path, key: &Path, log: Log) -> Result<Self, Error> {
        let current = Current { changed: changes(chain, key), config: config(chain, key)? };
        Ok(Self { chain: chain.into(), key: key.into(), current: Mutex::new(current), log })
    }

    /// The certificate for a new connection. If the files have changed, it is the new one, unless that cannot be used.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = changes(&self.chain, &self.key);
        if changed != current.changed {
            // A failure is printed once, and the next change is read again.
            current.changed = changed;
            match config(&self.chain, &self.key) {
                Ok(config) => current.config = config,
                Err(error) => (self.log.complain)(&error.to_string()),
            }
        }
        Arc::clone(&current.config)
    }
}

fn changes(chain: &Path, key: &Path) -> [Option<SystemTime>; 2] {
    [chain, key].map(|path| std::fs::metadata(path).and_then(|it| it.modified()).ok())
}

fn config(chain: &Path, key: &Path) -> Result<Arc<ServerConfig>, Error> {
    let (_, pem) = read_file(chain, MAX_CHAIN).map_err(|error| unusable(chain, &error))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let certificates = certificates.map_err(|error| unusable(chain, &error))?;
    let secret = read_secret(key)?;
    let private = PrivateKeyDer::from_pem_slice(&secret).map_err(|error| unusable(key, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, private))
        .map_err(|error| unusable(chain, &error))?;
    Ok(Arc::new(config))
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::UnusableSecret { path: path.into(), what: error.to_string() }
}
