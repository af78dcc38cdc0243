use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use formats::Node;

/// The latest figures of the observer with their time, and the answers of the server.
#[derive(Debug, Clone)]
pub(crate) struct Shared(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    node: Arc<Node>,
    at: Instant,
    /// By status.
    answers: BTreeMap<&'static str, u64>,
}

impl Shared {
    /// `answers` are the statuses of answers, which begin at 0.
    pub(crate) fn new(answers: &[&'static str]) -> Self {
        let answers = answers.iter().map(|status| (*status, 0)).collect();
        Self(Arc::new(Mutex::new(State { node: Arc::default(), at: Instant::now(), answers })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> Arc<Node> {
        Arc::clone(&self.lock().node)
    }

    pub(crate) fn age(&self) -> Duration {
        self.lock().at.elapsed()
    }

    pub(crate) fn set(&self, mut node: Node) {
        let mut state = self.lock();
        node.answers.clone_from(&state.answers);
        (state.node, state.at) = (Arc::new(node), Instant::now());
    }

    /// Notes that there is nothing new.
    pub(crate) fn confirm(&self) {
        self.lock().at = Instant::now();
    }

    /// Counts an answer.
    pub(crate) fn count(&self, status: &'static str) {
        *self.lock().answers.entry(status).or_default() += 1;
    }
}
