use diagnosis::keeps_most_free_slots;
use formats::{Action, Gc, Report};
use ledger::Count;

/// Variables that are listed, at most. A process chooses their number.
const MAX_VARIABLES: usize = 20;

/// The defaults of these variables (gc.c, from 3.4 on gc/default/default.c; the same from 2.7 to 4.0).
const DEFAULTS: [(&str, f64); 15] = [
    ("RUBY_GC_HEAP_INIT_SLOTS", 10_000.0),
    ("RUBY_GC_HEAP_FREE_SLOTS", 4_096.0),
    ("RUBY_GC_HEAP_GROWTH_FACTOR", 1.8),
    ("RUBY_GC_HEAP_GROWTH_MAX_SLOTS", 0.0),
    ("RUBY_GC_HEAP_FREE_SLOTS_MIN_RATIO", 0.2),
    ("RUBY_GC_HEAP_FREE_SLOTS_GOAL_RATIO", 0.4),
    ("RUBY_GC_HEAP_FREE_SLOTS_MAX_RATIO", 0.65),
    ("RUBY_GC_HEAP_OLDOBJECT_LIMIT_FACTOR", 2.0),
    ("RUBY_GC_HEAP_REMEMBERED_WB_UNPROTECTED_OBJECTS_LIMIT_RATIO", 0.01),
    ("RUBY_GC_MALLOC_LIMIT", 16_777_216.0),
    ("RUBY_GC_MALLOC_LIMIT_MAX", 33_554_432.0),
    ("RUBY_GC_MALLOC_LIMIT_GROWTH_FACTOR", 1.4),
    ("RUBY_GC_OLDMALLOC_LIMIT", 16_777_216.0),
    ("RUBY_GC_OLDMALLOC_LIMIT_MAX", 134_217_728.0),
    ("RUBY_GC_OLDMALLOC_LIMIT_GROWTH_FACTOR", 1.2),
];

/// Returns true if a variable has the value that it has by default.
fn is_default(name: &str, value: &str) -> bool {
    let (number, unit) = match value.as_bytes().last() {
        Some(b'k' | b'K') => (&value[..value.len() - 1], 1_024.0),
        Some(b'm' | b'M') => (&value[..value.len() - 1], 1_048_576.0),
        _ => (value, 1.0),
    };
    let value = number.parse::<f64>().map(|number| number * unit);
    DEFAULTS.iter().any(|(of, default)| *of == name && value.as_ref() == Ok(default))
}

/// The state of the garbage collector if it is unusual, and its settings in the environment, a sentence each.
#[must_use]
pub fn gc(report: &Report) -> Vec<String> {
    let Some(Gc { disabled, stress, allow_full_mark, variables, .. }) =
        report.ruby.as_ref().map(|ruby| &ruby.gc)
    else {
        return Vec::new();
    };
    let mut sentences = Vec::new();
    if *disabled == Some(true) {
        sentences.push(
            "The GC is disabled (GC.disable): garbage stays until GC.enable or GC.start.".into(),
        );
    }
    if *stress == Some(true) {
        sentences.push("GC.stress is on: the GC runs at nearly every allocation.".into());
    }
    if *allow_full_mark == Some(false) {
        sentences.push(
            "The GC collects young objects only, because of GC.config(rgengc_allow_full_mark: false): old garbage stays until \
             GC.start."
                .into(),
        );
    }
    let variables = variables.iter().filter(|(name, value)| !is_default(name, value));
    let variables: Vec<_> = variables.map(|(name, value)| format!("{name}={value}")).collect();
    if !variables.is_empty() {
        let more = match variables.len().saturating_sub(MAX_VARIABLES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let shown = &variables[..variables.len().min(MAX_VARIABLES)];
        sentences.push(format!("GC settings in the environment: {}{more}.", shown.join(" ")));
    }
    sentences
}

/// Returns the variables that make the GC keep slots, with their values.
pub(crate) fn initial_slots(report: &Report) -> String {
    let Some(gc) = report.ruby.as_ref().map(|ruby| &ruby.gc) else { return String::new() };
    let variables = gc.variables.iter().filter(|(name, _)| gc.initial_slots.contains_key(*name));
    let variables: Vec<_> = variables.map(|(name, value)| format!("{name}={value}")).collect();
    variables.join(" and ")
}

/// A sentence on variables that delay the GC, if that is advised against; empty without any.
pub(crate) fn malloc_limits(report: &Report) -> String {
    let variables = report.advice.iter().find_map(|step| match &step.action {
        Action::UnsetMallocLimits { variables } => Some(variables),
        _ => None,
    });
    let Some((variables, gc)) = variables.zip(report.ruby.as_ref().map(|ruby| &ruby.gc)) else {
        return String::new();
    };
    let values = gc.variables.iter().filter(|(name, _)| variables.contains(name));
    let values: Vec<_> = values.map(|(name, value)| format!("{name}={value}")).collect();
    let (Some((last, others)), delay) =
        (values.split_last(), "the GC until that much memory was allocated")
    else {
        return String::new();
    };
    match others {
        [] => format!(" {last} delays {delay}."),
        _ => format!(" {} and {last} delay {delay}.", others.join(", ")),
    }
}

/// Returns true if such variables make the GC keep more than half of the free slots.
pub(crate) fn keeps_free_slots(report: &Report) -> bool {
    report.ruby.as_ref().is_some_and(|ruby| {
        keeps_most_free_slots(
            super::total(ruby.gc.initial_slots.values().copied()),
            ruby.slots_free,
        )
    })
}

/// The reason why heap pages have free slots, as a clause.
pub(crate) fn free_slots(report: &Report) -> String {
    let Some(ruby) = &report.ruby else { return "the GC keeps them".into() };
    let initial = super::total(ruby.gc.initial_slots.values().copied());
    if keeps_free_slots(report) {
        return format!(
            "{} {} Ruby keep {} slots, even if they are free",
            initial_slots(report),
            if ruby.gc.initial_slots.len() == 1 { "makes" } else { "make" },
            Count(initial)
        );
    }
    let empty = ruby.slot_bytes_empty.saturating_add(ruby.page_bytes_free);
    if empty > ruby.slot_bytes_free.saturating_add(ruby.page_bytes_free) / 2 {
        return "most of them are on pages without an object, which the GC keeps for new objects"
            .into();
    }
    "few live objects pin many pages".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A platform that sets Ruby's own defaults had them in each report.
    #[test]
    fn settings_that_change_nothing_are_not_shown() {
        for value in ["16777216", "16m", "16384K"] {
            assert!(is_default("RUBY_GC_MALLOC_LIMIT", value), "{value}");
        }
        assert!(is_default("RUBY_GC_HEAP_GROWTH_FACTOR", "1.80"));
        for (name, value) in [
            ("RUBY_GC_MALLOC_LIMIT", "16777217"),
            ("RUBY_GC_MALLOC_LIMIT", ""),
            ("RUBY_GC_HEAP_GROWTH_FACTOR", "1.1"),
            ("RUBY_GC_OTHER", "1.8"),
        ] {
            assert!(!is_default(name, value), "{name}={value}");
        }
    }
}
