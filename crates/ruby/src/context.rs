//! All that is known of a heap before its slots are read.

use capture::{Address, Image};

use crate::ancestry::Ancestry;
use crate::error::{Check, Failure};
use crate::interpreter::{Interpreter, Landmark};
use crate::pages::Derived;
use crate::territory::Territory;

/// All that is known of a heap before its slots are read.
pub(crate) struct Context<'a> {
    pub(crate) image: &'a Image<'a>,
    pub(crate) interpreter: &'a Interpreter,
    pub(crate) landmarks: Vec<Landmark>,
    pub(crate) ancestry: Ancestry,
    pub(crate) heap: &'a Derived,
    pub(crate) territory: Territory<'a>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(
        image: &'a Image<'a>,
        interpreter: &'a Interpreter,
        heap: &'a Derived,
    ) -> Self {
        let mappings = &image.state.mappings;
        let landmarks = interpreter.landmarks(image);
        let ancestry = Ancestry::derive(image, &landmarks);
        let territory =
            Territory::new(heap.linkage.page_log2, heap.page_span(), &heap.pages, mappings);
        Self { image, interpreter, landmarks, ancestry, heap, territory }
    }

    /// A check that did not hold at `at`.
    pub(crate) fn failure(&self, check: Check, at: Address) -> Failure {
        Failure { check, at, page_bytes: 1 << self.heap.linkage.page_log2 }
    }
}
