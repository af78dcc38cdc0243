//! Retaining paths as reports have them: "Cache::STORE → Hash → Array".

pub(crate) use ledger::ARROW;
use ledger::{ANONYMOUS_CLASS, CODE, CONTAINERS};

/// The classes of maps whose entries go with their keys: their tables grow with objects that others retain.
pub(crate) const WEAK_MAPS: [&str; 2] = ["ObjectSpace::WeakMap", "ObjectSpace::WeakKeyMap"];

/// The root of a path: its first step.
pub(crate) fn root_of(path: &str) -> &str {
    path.split(ARROW).next().unwrap_or(path)
}

/// The class of the objects to which the hidden ones at the end of a path belong. `None` if only containers are known, or variables of
/// threads.
pub(crate) fn class_of_hidden(path: &str) -> Option<&str> {
    let classes: Vec<&str> = path.split(ARROW).skip(1).map(class_of).collect();
    let is_passed =
        |class: &&&str| is_hidden(class) || CONTAINERS.contains(*class) || CODE.contains(*class);
    let class = classes.iter().rev().find(|class| !is_passed(class))?;
    // Steps that are left out, and variables of threads, are no objects.
    (!class.starts_with(['…', '['])).then_some(*class)
}

/// Returns true if a path to hidden objects leads from the root only through objects that refer to others, such as the blocks in a list.
pub(crate) fn is_in_containers(path: &str) -> bool {
    let mut classes = path.split(ARROW).skip(1).map(class_of);
    classes.all(|class| is_hidden(class) || CONTAINERS.contains(&class))
}

/// The class of a step, which may also have a number, a place in the code, or the name of a thread.
pub(crate) fn class_of(step: &str) -> &str {
    match step.split_once(')') {
        Some((name, _)) if step.starts_with('(') => &step[..=name.len()],
        _ => step.split(' ').next().unwrap_or(step),
    }
}

/// Returns true if a path has an object of this class.
#[must_use]
pub fn has_step(path: &str, class: &str) -> bool {
    path.split(ARROW).any(|step| class_of(step) == class)
}

/// Returns true for a path through a method of a thread, which releases what it holds when it returns. A script's main program returns
/// at its end only. The variables of a thread, which stay, are in a hash.
pub(crate) fn leads_through_method(path: &str) -> bool {
    let steps: Vec<&str> = path.split(ARROW).collect();
    let runs = |step: &str| {
        class_of(step) == "Thread" && step.contains(" in ") && !step.contains(" in <main>")
    };
    let is_variable = |step: &str| step.starts_with('[') || class_of(step) == "Hash";
    steps.windows(2).any(|pair| runs(pair[0]) && !is_variable(pair[1]))
}

/// Returns true for the name of a kind of objects that programs never see.
pub(crate) fn is_hidden(class: &str) -> bool {
    class.starts_with('(') && class != ANONYMOUS_CLASS
}

/// Returns true for the root of a constant or variable in this module, whose name begins with that of the module.
#[must_use]
pub fn is_in_module(root: &str, module: &str) -> bool {
    let rest = root.strip_prefix(module);
    rest.is_some_and(|rest| ["::", ".@", "@@"].iter().any(|it| rest.starts_with(it)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_objects_belong_to_those_that_programs_see() {
        for (path, class) in [
            ("$kept → Array → Zlib::GzipReader → (T_STRING)", Some("Zlib::GzipReader")),
            ("POOL → Queue → Array × 2 → (T_ARRAY)", Some("Queue")),
            ("POOL → Queue → … → Array → Hash → (T_ARRAY)", None),
            ("POOL → … → (T_STRING)", None),
            ("(threads) → Thread → [:buffers] → Array → (T_ARRAY)", None),
            ("(threads) → Thread → [thread variable :buffers] → (T_ARRAY)", None),
            ("POOL → Fiber → [fiber storage :buffers] → Array → (T_ARRAY)", None),
            ("POOL → Proc (app.rb:7) → (imemo_env) → (T_ARRAY)", None),
            ("POOL → Array → (T_ARRAY)", None),
            ("Views → Module → Class → bytecode (app/page.erb:10) → (T_ARRAY)", Some("Class")),
            ("App → Class × 2 → method App.audit (base.rb:7) → (T_ARRAY)", Some("Class")),
            ("(threads) → (T_ARRAY)", None),
            ("POOL", None),
        ] {
            assert_eq!(class_of_hidden(path), class, "{path}");
        }
    }

    /// Objects in a variable of a thread stay when its methods return.
    #[test]
    fn variables_of_threads_are_not_released_by_methods() {
        let path = |step: &str| format!("(threads) → Thread in Job#run (job.rb:3) → {step} → Row");
        for variable in ["[:rows]", "[fiber storage :rows]", "[thread variable :rows]", "Hash"] {
            assert!(!leads_through_method(&path(variable)), "{variable}");
        }
        assert!(leads_through_method(&path("Array")));
    }
}
