//! The methods that threads run.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ruby::Frame;

use crate::Facts;

/// Threads that run the same line of the same method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadGroup {
    /// The innermost method of the application; without one, of Ruby code, or else in C.
    pub frame: Frame,
    /// The number of threads.
    pub threads: u64,
    /// The names that the program gave to them, each once, ascending.
    pub names: Vec<String>,
}

/// The threads of Ruby by the method that they run, the largest group first; `None` if owners were not wanted, or stacks could
/// not be read.
pub(crate) fn groups(facts: &Facts) -> Option<Vec<ThreadGroup>> {
    let names = &facts.graph.as_ref()?.thread_names;
    let mut groups: BTreeMap<(&str, Option<&str>, Option<u32>), ThreadGroup> = BTreeMap::new();
    for (slot, frame) in &facts.current_frames {
        let place = (frame.label.as_str(), frame.path.as_deref(), frame.line);
        let new = || ThreadGroup { frame: frame.clone(), threads: 0, names: Vec::new() };
        let group = groups.entry(place).or_insert_with(new);
        group.threads += 1;
        group.names.extend(names.get(slot).cloned());
    }
    let mut groups: Vec<ThreadGroup> = groups.into_values().collect();
    for group in &mut groups {
        group.names.sort_unstable();
        group.names.dedup();
    }
    groups.sort_by_key(|group| Reverse(group.threads));
    (!groups.is_empty()).then_some(groups)
}
