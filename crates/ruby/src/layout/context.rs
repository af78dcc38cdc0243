//! Everything that is derived of a heap before its slots are read.

use image::Image;
use linux::Address;

use crate::address_classifier::AddressClassifier;
use crate::error::{Check, Failure};
use crate::interpreter::{Interpreter, Landmark};
use crate::layout::class_layout::ClassLayout;
use crate::layout::heap_layout::HeapLayout;
use crate::layout::shape_tree::ShapeTree;

/// Everything that is derived before the heap pages are found, and that does not depend on them.
pub(crate) struct Basics<'a> {
    pub(crate) image: &'a Image<'a>,
    pub(crate) interpreter: &'a Interpreter,
    pub(crate) landmarks: Vec<Landmark>,
    pub(crate) class_layout: ClassLayout,
    pub(crate) shape_tree: Option<ShapeTree>,
}

/// Everything that is derived of a heap before its slots are read.
pub(crate) struct Context<'a> {
    pub(crate) basics: &'a Basics<'a>,
    pub(crate) heap: &'a HeapLayout,
    pub(crate) classifier: AddressClassifier<'a>,
}

impl<'a> Basics<'a> {
    pub(crate) fn derive(image: &'a Image<'a>, interpreter: &'a Interpreter) -> Self {
        let landmarks = interpreter.landmarks(image);
        let class_layout = ClassLayout::derive(image, &landmarks);
        let shape_tree = ShapeTree::derive(image, interpreter);
        Self { image, interpreter, landmarks, class_layout, shape_tree }
    }
}

impl<'a> Context<'a> {
    pub(crate) fn new(basics: &'a Basics<'a>, heap: &'a HeapLayout) -> Self {
        let mappings = &basics.image.state.mappings;
        let classifier = AddressClassifier::new(heap.page_log2(), &heap.pages, mappings);
        Self { basics, heap, classifier }
    }

    /// A check that failed at `at`.
    pub(crate) fn failure(&self, check: Check, at: Address) -> Failure {
        Failure { check, at, page_bytes: 1 << self.heap.page_log2() }
    }
}
