//! Retaining paths as reports have them: "Cache::STORE → Hash → Array".

/// The separator of the steps of a path.
pub(crate) const ARROW: &str = " → ";

/// The root of a path: its first step.
pub(crate) fn root_of(path: &str) -> &str {
    path.split(ARROW).next().unwrap_or(path)
}
