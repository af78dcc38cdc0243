//! Which objects finalizers lead to.
//!
//! Each finalizer leads to the object that was `self` where it was defined, and to all behind that. Of thousands of finalizers, most were
//! defined in the same place. So what is behind an object that leads to many others is searched once, and kept for the next finalizer.

use std::collections::{HashMap, VecDeque};

use ruby::ObjectSpace;

use crate::ownership::graph::PointerGraph;
use crate::ownership::search::{Follow, Met, Search, search};

/// If a finalizer leads to more references than this, the objects that it refers to are searched once and kept.
const MANY_REFERENCES: usize = 64;
/// An object that leads to no more references than this is not worth keeping.
const SOME_REFERENCES: usize = 16;
/// The number of references that one search follows.
const MAX_REFERENCES: usize = 4096;
/// The number of references that searches of more than [`MANY_REFERENCES`] follow together, and of slots that are kept.
const MAX_REFERENCES_TOGETHER: usize = 1 << 22;
/// A finalizer refers to its code and its scope, and this to `self` and to the scope around it.
const MAX_STEPS: usize = 4;
/// The number of an object's references that are searched and kept.
const MAX_ASKED: usize = 16;

pub(crate) struct BehindFinalizers<'a> {
    graph: &'a PointerGraph,
    space: &'a ObjectSpace,
    /// The slots behind objects that lead to many, ascending; `None` if they are too many to tell.
    behind: HashMap<u32, Option<Vec<u32>>>,
    /// The references that may still be followed, and slots that may be kept.
    left: usize,
}

impl<'a> BehindFinalizers<'a> {
    pub(crate) fn new(graph: &'a PointerGraph, space: &'a ObjectSpace) -> Self {
        Self { graph, space, behind: HashMap::new(), left: MAX_REFERENCES_TOGETHER }
    }

    /// Returns true if an array with finalizers may lead to an object: also if it refers to too much to tell.
    pub(crate) fn may_include(&mut self, finalizers: u32, object: u32) -> bool {
        self.references_of(finalizers).into_iter().any(|proc| self.may_lead(proc, object))
    }

    fn may_lead(&mut self, proc: u32, object: u32) -> bool {
        if proc == object {
            return true;
        }
        if let Some(behind) = self.behind.get(&proc) {
            return behind.as_ref().is_none_or(|behind| behind.binary_search(&object).is_ok());
        }
        let search = self.search(proc, Some(object), &mut Vec::new());
        if search.found != Some(true) && search.references > MANY_REFERENCES {
            self.keep(proc);
        }
        search.found != Some(false)
    }

    /// Keeps what is behind the objects through which the one in this slot leads to many.
    fn keep(&mut self, slot: u32) {
        let mut next = VecDeque::from([slot]);
        for _ in 0..MAX_STEPS {
            let Some(slot) = next.pop_front() else { break };
            let references = self.references_of(slot).into_iter().take(MAX_ASKED);
            next.extend(references.filter(|&it| self.keep_behind(it)));
        }
        self.keep_behind(slot);
    }

    /// Keeps what is behind the object in this slot if that is enough, and returns true if it was not kept before.
    fn keep_behind(&mut self, slot: u32) -> bool {
        if self.left == 0 || self.behind.contains_key(&slot) {
            return false;
        }
        let mut met = Vec::new();
        let search = self.search(slot, None, &mut met);
        let is_enough = search.references > SOME_REFERENCES;
        if is_enough {
            met.sort_unstable();
            met.dedup();
            self.left = self.left.saturating_sub(met.len());
            self.behind.insert(slot, search.found.map(|_| met));
        }
        is_enough
    }

    /// Searches what is behind the object in a slot for `wanted`, and adds to `met` what it meets.
    fn search(&mut self, slot: u32, wanted: Option<u32>, met: &mut Vec<u32>) -> Search {
        let max = self.left.clamp(MANY_REFERENCES, MAX_REFERENCES);
        let search = search(self.graph, self.space, slot, Follow::All, max, |it| {
            met.push(it);
            match self.behind.get(&it) {
                _ if wanted == Some(it) => Met::Wanted,
                None => Met::Other,
                Some(None) => Met::TooMuch,
                Some(Some(behind))
                    if wanted.is_some_and(|it| behind.binary_search(&it).is_ok()) =>
                {
                    Met::Wanted
                }
                Some(Some(behind)) => {
                    if wanted.is_none() {
                        met.extend(behind);
                    }
                    Met::Known
                }
            }
        });
        if search.references > MANY_REFERENCES {
            self.left = self.left.saturating_sub(search.references);
        }
        search
    }

    /// The objects that an object refers to, itself or by its block.
    fn references_of(&self, slot: u32) -> Vec<u32> {
        let Self { graph, space, .. } = self;
        let blocks = graph.of_slots.of(slot).iter().filter_map(|edge| graph.possible_block(*edge));
        let behind_blocks = blocks.flat_map(|block| graph.slots(block)).map(|edge| edge.to());
        space.links.of(slot).iter().copied().chain(behind_blocks).collect()
    }
}

#[cfg(test)]
mod tests {
    use image::freeze;
    use linux::{Address, PATIENCE};
    use testkit::Target;

    use super::*;
    use crate::{Facts, ReadDepth};

    /// Prints the addresses of procs and of the objects whose finalizers these are. Every other proc refers to its object.
    const PROGRAM: &str = r##"
        require "objspace"; require "json"
        class Service
          def initialize(texts); @texts = Array.new(texts) { |it| "text #{it}" }; end
          def leading(object = Object.new) = [proc { object }, object]
          def other(name = "name") = [proc { name }, Object.new]
        end
        $kept = ARGV.flat_map do |texts|
          service = Service.new(texts.to_i)
          Array.new(500) { [service.leading, service.other] }.flatten(1)
        end
        $kept.each { |proc, object| ObjectSpace.define_finalizer(object, proc) }
        GC.start
        address = ->(it) { Integer(ObjectSpace.dump(it)[/0x\h+/]) }
        puts "ready #{JSON.dump(pairs: $kept.map { |pair| pair.map(&address) })}"; $stdout.flush; $stdin.read
    "##;

    /// A report of 20,000 finalizers that refer to a large object took 7 s: all behind it was searched for each.
    #[test]
    fn what_many_finalizers_lead_to_is_searched_once() {
        for texts in [0, 1_000, 10_000] {
            let mut ruby = testkit::ruby();
            let target =
                Target::start(ruby.args(["--disable-gems", "-e", PROGRAM, &texts.to_string()]));
            let frozen = freeze(target.pid(), PATIENCE).unwrap();
            let facts = Facts::read(frozen.image(), ReadDepth::Owners);
            frozen.thaw().unwrap();
            let (graph, space) = (facts.graph.as_ref().unwrap(), facts.ruby.as_ref().unwrap());
            let mut behind = BehindFinalizers::new(graph, space);
            let pairs = target.truth["pairs"].as_array().unwrap();
            for (index, pair) in pairs.iter().enumerate() {
                let slot = |it: usize| space.slot_at(Address(pair[it].as_u64().unwrap())).unwrap();
                let leads = behind.may_lead(slot(0), slot(1));
                // Behind the largest service is too much to tell.
                assert_eq!(leads, index % 2 == 0 || texts == 10_000, "{texts}: {index}");
            }
            // Only searches of many references are counted: for each proc, they would be up to 4 million.
            let followed = MAX_REFERENCES_TOGETHER - behind.left;
            assert!(followed < 100_000, "{texts}: {followed}");
            assert!(target.finish());
        }
    }
}
