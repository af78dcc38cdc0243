//! The files that the blocks behind bytecode belong to.

use allocator::HeapMap;
use ruby::{CodePaths, ObjectSpace};

use crate::ownership::graph::PointerGraph;
use crate::ownership::owner::Owner;
use crate::ownership::trace::Trace;

const NO_FILE: u32 = u32::MAX;

/// The file of each block that iseqs own, as an index into [`CodePaths::paths`].
#[derive(Default)]
pub(crate) struct BlockFiles(Vec<u32>);

impl BlockFiles {
    /// Follows the pointers of all iseqs at once, as [`Trace`] does, but only to blocks that iseqs own. Each block
    /// belongs to the file whose iseq is the fewest pointers away. `iseqs` is the owner that all iseqs are.
    pub(crate) fn find(
        heap: &HeapMap,
        graph: &PointerGraph,
        trace: &Trace,
        space: &ObjectSpace,
        paths: &CodePaths,
        iseqs: Owner,
    ) -> Self {
        let Owner::Class(class) = iseqs else { return Self(Vec::new()) };
        let nodes = graph.len().max(heap.block_count());
        let mut search =
            Search { graph, trace, iseqs, files: vec![NO_FILE; nodes], reached: Vec::new() };
        let mut interior = Vec::new();
        for (slot, edges) in graph.of_slots.iter() {
            if space.slots.get(slot as usize).is_none_or(|it| it.class() as usize != class) {
                continue;
            }
            let file = paths.of(slot).unwrap_or(paths.paths.len() as u32);
            for edge in edges {
                if edge.is_uncertain() {
                    interior.push((edge.to(), file));
                } else {
                    search.reach(edge.to(), file);
                }
            }
        }
        search.run(interior);
        search.files.truncate(heap.block_count());
        Self(search.files)
    }

    /// The file of the block with this number.
    pub(crate) fn of(&self, block: usize) -> Option<u32> {
        self.0.get(block).copied().filter(|&file| file != NO_FILE)
    }
}

struct Search<'a> {
    graph: &'a PointerGraph,
    trace: &'a Trace,
    iseqs: Owner,
    /// Files by node.
    files: Vec<u32>,
    /// The nodes that have a file, in the order in which they were reached.
    reached: Vec<u32>,
}

impl Search<'_> {
    fn reach(&mut self, node: u32, file: u32) {
        if self.trace.owner_of(node as usize) != self.iseqs {
            return;
        }
        if let Some(known) = self.files.get_mut(node as usize).filter(|known| **known == NO_FILE) {
            *known = file;
            self.reached.push(node);
        }
    }

    /// Follows exact pointers first, then pointers that may be numbers or leftovers.
    fn run(&mut self, interior: Vec<(u32, u32)>) {
        let mut followed = 0;
        self.follow_exact(&mut followed);
        for (node, file) in interior {
            self.reach(node, file);
            self.follow_exact(&mut followed);
        }
        let mut at = 0;
        while let Some(&node) = self.reached.get(at) {
            self.follow(node, true);
            self.follow_exact(&mut followed);
            at += 1;
        }
    }

    fn follow_exact(&mut self, followed: &mut usize) {
        while let Some(&node) = self.reached.get(*followed) {
            self.follow(node, false);
            *followed += 1;
        }
    }

    fn follow(&mut self, node: u32, uncertain: bool) {
        let graph = self.graph;
        let file = self.files[node as usize];
        for edge in graph.edges(node).iter().filter(|edge| edge.is_uncertain() == uncertain) {
            self.reach(edge.to(), file);
        }
    }
}
