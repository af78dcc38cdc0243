//! Retaining paths as reports have them: "Cache::STORE → Hash → Array".

/// The separator of the steps of a path.
pub(crate) const ARROW: &str = " → ";

/// The root of a path: its first step.
pub(crate) fn root_of(path: &str) -> &str {
    path.split(ARROW).next().unwrap_or(path)
}

/// The class of the last objects on a path that programs can see: that of the objects themselves, or of those that the hidden ones
/// at its end belong to. `None` if a root leads to hidden objects.
pub(crate) fn visible_class(path: &str) -> Option<&str> {
    path.split(ARROW).skip(1).map(class_of).filter(|class| !is_hidden(class)).last()
}

/// The class of a step, which may also have a number, a place in the code, or the name of a thread.
pub(crate) fn class_of(step: &str) -> &str {
    step.split(' ').next().unwrap_or(step)
}

/// Returns true for the name of a kind of objects that programs never see.
pub(crate) fn is_hidden(class: &str) -> bool {
    class.starts_with('(')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_objects_belong_to_those_that_programs_see() {
        for (path, class) in [
            ("$kept → Array → Zlib::GzipReader → (T_STRING)", Some("Zlib::GzipReader")),
            ("POOL → Queue → Array × 2 → (T_ARRAY)", Some("Array")),
            ("POOL → Proc (app.rb:7) → (imemo_env) → (T_ARRAY)", Some("Proc")),
            ("POOL → Hash", Some("Hash")),
            ("(threads) → (T_ARRAY)", None),
            ("POOL", None),
        ] {
            assert_eq!(visible_class(path), class, "{path}");
        }
    }
}
