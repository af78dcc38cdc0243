//! The code that uses the constants and variables that retain much.

use std::collections::HashSet;

pub use ruby::RootUses;

use crate::Facts;
use crate::ownership::{ARROW, Dominator, OwnerAccount, Retainer, SlotRoots};

/// The code that uses the roots with which paths to objects begin, those of a map, and the variables of objects on these
/// paths.
pub(crate) fn root_uses(
    facts: &Facts,
    accounts: &[OwnerAccount],
    dominators: Option<&[Dominator]>,
    roots: Option<&SlotRoots>,
) -> Vec<RootUses> {
    let retainers = accounts.iter().flat_map(|account| &account.retainers);
    let of_dominators = dominators.into_iter().flatten().map(|it| it.name.as_str());
    let of_map = roots.into_iter().flat_map(|it| &it.roots).map(|it| it.name.as_str());
    on_paths(facts, retainers, of_dominators.chain(of_map))
}

/// The code that uses the roots with which these paths begin, and others, and the variables of objects on the paths.
pub(crate) fn on_paths<'a>(
    facts: &Facts,
    retainers: impl Iterator<Item = &'a Retainer>,
    roots: impl Iterator<Item = &'a str>,
) -> Vec<RootUses> {
    let paths: Vec<&str> = retainers.filter_map(|it| it.path.as_deref()).collect();
    let steps: HashSet<&str> = paths.iter().flat_map(|path| path.split(ARROW)).collect();
    let of_paths = paths.iter().filter_map(|path| path.split(ARROW).next());
    let named: HashSet<&str> = of_paths.chain(roots).collect();
    let is_named = |it: &&RootUses| match it.class_of_objects() {
        Some(class) => steps.contains(class),
        None => named.contains(it.root.as_str()),
    };
    facts.object_code.uses.iter().filter(is_named).cloned().collect()
}
