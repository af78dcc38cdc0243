//! What is drawn in which colour: those of `rbloat map`.

use ledger::Cause;

use crate::map::PALETTE;

/// The groups of causes, from the bottom of the stack to its top: what they are called, their colour, and the
/// causes.
pub(super) const GROUPS: [(&str, &str, &[Cause]); 17] = [
    ("files", "files", &[Cause::FilePrivate, Cause::FileShared]),
    ("stacks", "stacks", &[Cause::StackThreads, Cause::StackFibers]),
    ("interpreter", "vm", &[Cause::RubyVm]),
    ("JIT", "jit", &[Cause::RubyJit]),
    ("live objects", "live-slots", &[Cause::RubyLiveSlots]),
    ("memory of objects", "ruby-malloc", &[Cause::RubyMalloc]),
    ("held by extensions", "held", &[Cause::NativeHeld]),
    ("of libraries, threads", "global", &[Cause::NativeGlobal]),
    ("unreachable", "unreachable", &[Cause::NativeUnreachable]),
    ("other memory in use", "untraced", &[Cause::MallocInUse]),
    ("unknown", "unknown", &[Cause::Unknown]),
    ("headers, structures", "overhead", &[Cause::MallocOverhead, Cause::RubyOverhead]),
    ("free slots", "free-slots", &[Cause::RubyFreeSlots]),
    ("cached by malloc", "cached", &[Cause::MallocCached]),
    ("top of arenas", "top", &[Cause::MallocTop]),
    ("free, pinned", "fragmented", &[Cause::MallocFragmented]),
    ("free, a trim returns it", "unreturned", &[Cause::MallocUnreturned]),
];

/// The colours of runs, one after the other.
pub(super) const RUNS: [&str; 12] = [
    "stacks",
    "ruby-malloc",
    "held",
    "vm",
    "jit",
    "untraced",
    "unreachable",
    "global",
    "live-slots",
    "files",
    "overhead",
    "swapped",
];

/// Returns the index of a cause's group.
pub(super) fn group(cause: Cause) -> usize {
    let group = GROUPS.iter().position(|(.., causes)| causes.contains(&cause));
    group.expect("each cause has a group, as a test checks")
}

/// A colour by its name, as `#rrggbb`, on a light or dark ground.
pub(super) fn colour(name: &str, dark: bool) -> &'static str {
    let (light, darker) = PALETTE.split_once('}').unwrap_or((PALETTE, ""));
    let find = |part: &'static str| {
        let value = part.split([';', '{', '}']).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim().strip_prefix("--") == Some(name)).then(|| value.trim())
        })?;
        // Short forms are of the same digits twice.
        Some(if value == "#fff" { "#ffffff" } else { value })
    };
    let found = if dark { find(darker).or_else(|| find(light)) } else { find(light) };
    found.unwrap_or("#808080")
}

/// A colour by its name on a light ground, as red, green and blue.
pub(super) fn rgb(name: &str) -> [u8; 3] {
    let digits = colour(name, false).trim_start_matches('#');
    let number = u32::from_str_radix(digits, 16).unwrap_or(0x80_8080);
    let [_, red, green, blue] = number.to_be_bytes();
    [red, green, blue]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_a_group_and_each_colour_a_value() {
        for cause in Cause::ALL {
            let known = GROUPS.iter().any(|(.., causes)| causes.contains(&cause));
            assert!(known, "{}", cause.name());
        }
        let names = GROUPS
            .iter()
            .map(|it| it.1)
            .chain(RUNS)
            .chain(["ground", "ink", "dim", "line", "in-use"]);
        for name in names {
            for dark in [false, true] {
                let value = colour(name, dark);
                assert!(value.len() == 7 && value != "#808080", "{name} {value}");
            }
        }
        assert_ne!(colour("ground", false), colour("ground", true));
        assert_eq!(rgb("ground"), [0xfb, 0xfa, 0xf8]);
    }
}
