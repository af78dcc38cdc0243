//! What is drawn in which colour: those of `rbloat map`.

use report::PALETTE;

/// The groups of causes, from the bottom of the stack to its top: what they are called, their colour, and the
/// causes.
pub(super) const GROUPS: [(&str, &str, &[&str]); 17] = [
    ("files", "files", &["file.private", "file.shared"]),
    ("stacks", "stacks", &["stack.threads", "stack.fibers"]),
    ("interpreter", "vm", &["ruby.vm"]),
    ("JIT", "jit", &["ruby.jit"]),
    ("live objects", "live-slots", &["ruby.live_slots"]),
    ("memory of objects", "ruby-malloc", &["ruby.malloc"]),
    ("held by extensions", "held", &["native.held"]),
    ("of libraries, threads", "global", &["native.global"]),
    ("unreachable", "unreachable", &["native.unreachable"]),
    ("other memory in use", "untraced", &["malloc.in_use"]),
    ("unknown", "unknown", &["unknown"]),
    ("headers, structures", "overhead", &["malloc.overhead", "ruby.overhead"]),
    ("free slots", "free-slots", &["ruby.free_slots"]),
    ("cached by malloc", "cached", &["malloc.cached"]),
    ("top of arenas", "top", &["malloc.top"]),
    ("free, pinned", "fragmented", &["malloc.fragmented"]),
    ("free, a trim returns it", "unreturned", &["malloc.unreturned"]),
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

/// The group of a cause. What a later rbloat may know stands with what is unknown.
pub(super) fn group(cause: &str) -> usize {
    let of = |name: &str| GROUPS.iter().position(|(.., causes)| causes.contains(&name));
    of(cause).or_else(|| of("unknown")).unwrap_or(0)
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
        for cause in ledger::Cause::ALL {
            let known = GROUPS.iter().any(|(.., causes)| causes.contains(&cause.name()));
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
