//! The causes as pictures show them, in a legend of groups, since readers cannot distinguish twenty colours.

use ledger::Cause;
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use super::Colour;

/// Causes that share a colour and an entry in the legend.
#[derive(Debug)]
pub(crate) struct LegendEntry {
    pub(crate) label: &'static str,
    pub(crate) colour: Colour,
    pub(crate) causes: &'static [Cause],
}

/// All groups, from the bottom of a stack to its top.
pub(crate) const CAUSE_LEGEND: [LegendEntry; 17] = [
    group("files", Colour::Files, &[Cause::FilePrivate, Cause::FileShared, Cause::FileShmem]),
    group("stacks", Colour::Stacks, &[Cause::StackThreads, Cause::StackFibers]),
    group("interpreter", Colour::Vm, &[Cause::RubyVm]),
    group("JIT", Colour::Jit, &[Cause::RubyJit]),
    group("live objects", Colour::LiveSlots, &[Cause::RubyLiveSlots]),
    group("memory of objects", Colour::RubyMalloc, &[Cause::RubyMalloc]),
    group("retained by extensions", Colour::Extensions, &[Cause::NativeHeld]),
    group("libraries and threads", Colour::Libraries, &[Cause::NativeGlobal]),
    group("unreachable", Colour::Unreachable, &[Cause::NativeUnreachable]),
    group("in use, owner not traced", Colour::Untraced, &[Cause::MallocInUse]),
    group("unknown", Colour::Unknown, &[Cause::Unknown]),
    group("headers and metadata", Colour::Overhead, &[Cause::MallocOverhead, Cause::RubyOverhead]),
    group(
        "free, in Ruby's heaps",
        Colour::FreeSlots,
        &[Cause::RubyFreeSlots, Cause::RubyTransient],
    ),
    group("free, in malloc's caches", Colour::Cached, &[Cause::MallocCached]),
    group("free, kept for growth", Colour::Top, &[Cause::MallocTop]),
    group("free, on pages in use", Colour::Fragmented, &[Cause::MallocFragmented]),
    group(
        "free, a trim returns it",
        Colour::Unreturned,
        &[Cause::MallocUnreturned, Cause::MallocMuzzy],
    ),
];

const fn group(label: &'static str, colour: Colour, causes: &'static [Cause]) -> LegendEntry {
    LegendEntry { label, colour, causes }
}

/// Returns the index of a cause's group.
pub(crate) fn group_of(cause: Cause) -> usize {
    let group = CAUSE_LEGEND.iter().position(|group| group.causes.contains(&cause));
    group.expect("each cause has a group, as a test checks")
}

impl Serialize for LegendEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let causes: Vec<&str> = self.causes.iter().map(|cause| cause.name()).collect();
        let mut group = serializer.serialize_struct("LegendEntry", 3)?;
        group.serialize_field("label", self.label)?;
        group.serialize_field("colour", &self.colour)?;
        group.serialize_field("causes", &causes)?;
        group.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_exactly_one_group() {
        for cause in Cause::ALL {
            let groups = CAUSE_LEGEND.iter().flat_map(|group| group.causes);
            assert_eq!(groups.filter(|&&it| it == cause).count(), 1, "{cause}");
        }
    }
}
