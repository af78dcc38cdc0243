//! The lines of the program that set constants and define classes.

use std::collections::BTreeSet;
use std::sync::Arc;

use ruby::{NamedRoot, RootKind};

use crate::ownership::{ARROW, OwnerAccount, SpareAccount, WasteAccounts};

/// The maximum number of classes whose places are found, those with most memory.
const MAX_CLASSES: usize = 30;

/// The line of the program that set a constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The name of the constant, which may be a class.
    pub name: String,
    /// The path of the file.
    pub file: Arc<str>,
    /// The number of the line.
    pub line: u32,
}

/// The places of the constants and classes with which paths begin, and of the classes with most memory, by name.
pub(crate) fn find(
    roots: &[NamedRoot],
    owners: &[OwnerAccount],
    spare: &[SpareAccount],
    waste: &WasteAccounts,
) -> Vec<Place> {
    let classes = owners.iter().take(MAX_CLASSES);
    let contents = waste.contents.iter();
    let paths = classes
        .clone()
        .flat_map(|it| it.retainers.iter().filter_map(|it| it.path.as_deref()))
        .chain(spare.iter().map(|it| &*it.path))
        .chain(waste.groups.iter().map(|it| &*it.path))
        .chain(contents.clone().flat_map(|it| it.copies.iter().map(|it| &*it.path)))
        .chain(contents.clone().flat_map(|it| it.few.iter().map(|it| &*it.path)));
    let mut wanted: BTreeSet<&str> = paths.map(constant_of).collect();
    wanted.extend(classes.map(|it| &*it.name));
    wanted.extend(waste.groups.iter().map(|it| &*it.class));
    let place = |root: &NamedRoot| {
        let (file, line) = root.file.clone().filter(|(_, line)| *line > 0)?;
        Some(Place { name: root.name.clone(), file, line })
    };
    let is_wanted =
        |root: &&NamedRoot| root.kind == RootKind::Constant && wanted.contains(root.name.as_str());
    let mut places: Vec<Place> = roots.iter().filter(is_wanted).filter_map(place).collect();
    places.sort_by(|one, other| one.name.cmp(&other.name));
    // A class that was loaded again has a constant of the same name.
    places.dedup_by(|next, first| next.name == first.name);
    places
}

/// The constant that begins a path, or the class whose variable does: `Cache` for `Cache.@items → Hash`.
fn constant_of(path: &str) -> &str {
    let root = path.split(ARROW).next().unwrap_or(path);
    let variable = root.find(".@").or_else(|| root.find("@@"));
    &root[..variable.unwrap_or(root.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_classes_lead_to_these() {
        let paths = ["Cache.@items → Hash", "Shop::Cache@@all", "ROWS → Array × 2", "$rows"];
        assert_eq!(paths.map(constant_of), ["Cache", "Shop::Cache", "ROWS", "$rows"]);
    }
}
