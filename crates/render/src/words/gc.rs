use diagnosis::keeps_most_free_slots;
use formats::{Action, Gc, Report};
use ledger::Count;

/// Variables that are listed, at most. A process chooses their number.
const MAX_VARIABLES: usize = 20;

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
    if !variables.is_empty() {
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
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
    if ruby.slot_bytes_empty > ruby.slot_bytes_free / 2 {
        return "most of them are on pages without an object, which the GC keeps for new objects"
            .into();
    }
    "few live objects pin many pages".into()
}
