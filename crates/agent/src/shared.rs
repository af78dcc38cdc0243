use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use formats::Node;

/// The latest figures of the observer, and their time.
#[derive(Debug, Clone)]
pub(crate) struct Shared(Arc<Mutex<(Arc<Node>, Instant)>>);

impl Shared {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new((Arc::default(), Instant::now()))))
    }

    pub(crate) fn get(&self) -> Arc<Node> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner).0)
    }

    pub(crate) fn age(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.elapsed()
    }

    pub(crate) fn set(&self, node: Node) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (Arc::new(node), Instant::now());
    }

    /// Notes that there is nothing new.
    pub(crate) fn confirm(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 = Instant::now();
    }
}
