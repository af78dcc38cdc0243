//! The nodes that refer to others.

use std::collections::HashMap;
use std::ops::Range;

use linux::both;

use crate::ownership::bits::Bits;

use super::ObjectGraph;
use super::paths::{Level, Paths};

/// The number of referrers of a node that are found, with different roots.
const MAX_REFERRERS: usize = 4;

impl ObjectGraph<'_> {
    /// For each node among `wanted` to which nodes refer that were reached, if `counts` accepts both: up to [`MAX_REFERRERS`] such
    /// nodes with different roots. Words on stacks, and words that may be no pointers, do not count.
    pub(crate) fn referrers(
        &self,
        paths: &Paths,
        wanted: &Bits,
        counts: impl Fn(u32, u32) -> bool + Sync,
    ) -> HashMap<u32, Vec<u32>> {
        let add = |found: &mut HashMap<u32, Vec<u32>>, to: u32, from: u32| {
            let known = found.entry(to).or_default();
            let is_new = || known.iter().all(|it| paths.root(*it) != paths.root(from));
            if known.len() < MAX_REFERRERS && is_new() {
                known.push(from);
            }
        };
        let among = |nodes: Range<u32>| {
            let mut found = HashMap::new();
            for from in nodes.filter(|&from| paths.level(from) < Level::Stacks) {
                let is_stack = self.is_stack(from);
                self.references(paths, from, |to, its| {
                    let is_certain = its < Level::Stacks && !is_stack;
                    if is_certain && wanted.contains(to) && counts(from, to) {
                        add(&mut found, to, from);
                    }
                });
            }
            found
        };
        let (all, half) = (self.len() as u32, self.len() as u32 / 2);
        let (mut found, others) = both(|| among(0..half), || among(half..all));
        for (to, referrers) in others {
            referrers.into_iter().for_each(|from| add(&mut found, to, from));
        }
        found
    }
}
