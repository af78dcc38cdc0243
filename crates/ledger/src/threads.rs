//! The methods that threads run.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ruby::Frame;

use crate::Facts;
use crate::ownership::class_name;

/// The end of the label of threads that C code started, behind their class.
pub const IN_C: &str = ", in C";

/// Threads that run the same line of the same method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadGroup {
    /// The innermost method of the application; without one, of Ruby code, or else in C. A thread that C code started has none: then the
    /// label is its class.
    pub frame: Frame,
    /// The number of threads.
    pub threads: u64,
    /// The names that the program gave to them, each once, ascending.
    pub names: Vec<String>,
    /// The block that started them: its file and line. `None` if that is unknown, or differs.
    pub started: Option<(String, Option<u32>)>,
}

/// The threads of Ruby by the method that they run, the largest group first; `None` if owners were not wanted, or stacks could
/// not be read.
pub(crate) fn groups(facts: &Facts) -> Option<Vec<ThreadGroup>> {
    let names = &facts.graph.as_ref()?.thread_names;
    let mut groups: BTreeMap<(&str, Option<&str>, Option<u32>), ThreadGroup> = BTreeMap::new();
    let frames = &facts.object_code.current_frames;
    // Then no stack could be read, and not all threads are C code's.
    if frames.is_empty() {
        return None;
    }
    let running = facts.objects().vm_stacks.iter().map(|stack| stack.thread);
    let without = running.filter(|thread| !frames.contains_key(thread));
    let of_c = |thread| {
        let label = class_name(facts.objects(), thread).to_owned() + IN_C;
        (thread, Frame { label, path: None, line: None })
    };
    let without: Vec<(u32, Frame)> = without.map(of_c).collect();
    for (slot, frame) in frames.iter().chain(without.iter().map(|(slot, frame)| (slot, frame))) {
        let place = (frame.label.as_str(), frame.path.as_deref(), frame.line);
        let started = started(facts, *slot);
        let new = || ThreadGroup {
            frame: frame.clone(),
            threads: 0,
            names: Vec::new(),
            started: started.clone(),
        };
        let group = groups.entry(place).or_insert_with(new);
        group.threads += 1;
        if group.started != started {
            group.started = None;
        }
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

/// The file and line of the block that the thread in a slot runs (`invoke_arg` of `rb_thread_t`), the only Proc to which its
/// structure refers.
fn started(facts: &Facts, thread: u32) -> Option<(String, Option<u32>)> {
    let graph = facts.graph.as_ref()?;
    let structures = graph.of_slots.of(thread).iter().filter_map(|edge| graph.block(*edge));
    let slots = structures.flat_map(|structure| graph.slots(structure)).map(|edge| edge.to());
    let mut procs = slots.filter_map(|slot| facts.object_code.closures.of(slot));
    let block = procs.next().filter(|block| procs.all(|other| other == *block))?;
    Some((block.path.clone()?, block.line))
}
