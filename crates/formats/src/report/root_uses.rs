use ledger::{ARROW, Frame, Gem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::WhoFrame;

/// The lines of a root in a report, at most: who knows eight will find the others.
const MAX_PLACES: usize = 8;

/// The code that uses a constant or variable that retains objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RootUses {
    /// The root, as paths begin: `"Cache::STORE"`. Or a variable with which objects of a class on a path hold a collection of 64 elements
    /// or more: `"Registry#@rows"`.
    pub root: String,
    /// The number of lines that use it. Code counts if it has found the constant, or is in a method of the variable's class. What names
    /// a constant by a string, such as `const_get`, is not seen, nor is code that was given the object.
    pub lines: u64,
    /// At most eight of them, those of the application first.
    pub places: Vec<WhoFrame>,
}

impl From<&ledger::RootUses> for RootUses {
    fn from(uses: &ledger::RootUses) -> Self {
        let place = |it: &Frame| WhoFrame {
            method: it.label.clone(),
            path: it.path.clone(),
            line: it.line.map(u64::from),
        };
        let mut places: Vec<WhoFrame> = uses.places.iter().map(place).collect();
        places.sort_by_key(|it| Gem::of(it.path.as_deref()).is_library());
        places.truncate(MAX_PLACES);
        Self { root: uses.root.clone(), lines: uses.places.len() as u64, places }
    }
}

impl RootUses {
    /// The rows of `all` about the roots of these paths, and about variables of objects on them.
    pub fn of_paths<'a>(paths: impl Iterator<Item = &'a str>, all: &[Self]) -> Vec<Self> {
        let paths: Vec<&str> = paths.collect();
        let is_on = |it: &&Self| paths.iter().any(|path| it.is_on(path));
        all.iter().filter(is_on).cloned().collect()
    }

    /// The row about the last variable on a path if that is the only one of its class, or else about its root.
    pub fn of_path<'a>(path: &str, all: &'a [Self]) -> Option<&'a Self> {
        let of_class = |class: &str| {
            let mut rows = all.iter().filter(|it| it.variable().is_some_and(|it| it.0 == class));
            rows.next().filter(|_| rows.next().is_none())
        };
        let root = || all.iter().find(|it| it.variable().is_none() && it.is_on(path));
        path.split(ARROW)
            .skip(1)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .find_map(of_class)
            .or_else(root)
    }

    /// The class of the objects and the name of their variable; `None` for a root.
    pub fn variable(&self) -> Option<(&str, &str)> {
        let at = self.root.find("#@")?;
        Some((&self.root[..at], &self.root[at + 1..]))
    }

    fn is_on(&self, path: &str) -> bool {
        match self.variable() {
            Some((class, _)) => path.split(ARROW).skip(1).any(|step| step == class),
            None => path.split(ARROW).next() == Some(&self.root),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_variable_on_a_path_comes_before_its_root() {
        let row = |root: &str| RootUses { root: root.into(), lines: 0, places: Vec::new() };
        let of =
            |path: &str, all: &[RootUses]| RootUses::of_path(path, all).map(|it| it.root.clone());
        let path = "Registry.@instance → Registry → Array → Entry → Hash → String";
        let root = row("Registry.@instance");
        let [rows, items] = [row("Registry#@rows"), row("Entry#@items")];
        assert_eq!(of(path, std::slice::from_ref(&root)).as_deref(), Some("Registry.@instance"));
        let all = [items.clone(), rows.clone(), root.clone()];
        assert_eq!(of(path, &all).as_deref(), Some("Entry#@items"));
        assert_eq!(
            of("Registry.@instance → Registry → Array", &all).as_deref(),
            Some("Registry#@rows")
        );
        // It is not known which of two variables has what the path leads to.
        let two = [items.clone(), row("Entry#@others"), root.clone()];
        assert_eq!(of(path, &two).as_deref(), Some("Registry.@instance"));
        assert_eq!(of("LOG → Array → String", &all), None);
        let on_path = RootUses::of_paths([path].into_iter(), &[items, row("Other#@rows"), root]);
        let roots: Vec<_> = on_path.into_iter().map(|it| it.root).collect();
        assert_eq!(roots, ["Entry#@items", "Registry.@instance"]);
    }
}
