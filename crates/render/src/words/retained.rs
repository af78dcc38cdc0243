//! What retains objects, in words.

use formats::{KeptBy, Owner};
use ledger::Count;

/// A path to most objects of an owner, and that of another root which has them, too.
pub(super) fn with_other(path: &str, owner: Option<&Owner>) -> String {
    let kept = owner.and_then(|owner| owner.kept_by.first());
    let other = kept.filter(|kept| kept.path.as_deref() == Some(path));
    match other.and_then(|kept| kept.other_path.as_deref()) {
        Some(other) => format!("{path}, and also by {other} (all roots have to let them go)"),
        None => path.to_owned(),
    }
}

/// The part of `all` objects that a root retains, and the path from another one that has them, too.
pub(crate) fn retained_share(kept: &KeptBy, all: u64) -> String {
    let other = kept.other_path.as_ref();
    let also = other.map_or_else(String::new, |other| format!(", also retained by {other}"));
    format!("({} of {}){also}", Count(kept.objects), Count(all))
}
