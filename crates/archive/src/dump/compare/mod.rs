//! What two dumps have apart, and of three dumps, what was born between the first two and is still there.
//!
//! - `lines` reads a dump, `keys` tells which objects of two dumps are the same.
//! - `survey` groups some of the objects of a dump, `paths` finds what retains them.

mod keys;
mod lines;
mod names;
mod paths;
mod survey;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use formats::{DumpCount, DumpDiff, DumpGroup, DumpPoint};

use keys::{Hasher, Keys};
pub use lines::{DumpError, Input};
use names::Names;
use survey::{Survey, survey};

/// The groups that are shown.
const MAX_GROUPS: usize = 100;

/// A dump that is open.
pub struct OpenDump {
    /// The name of its file.
    pub name: String,
    /// The file, which is read from its beginning several times.
    pub file: Box<dyn Input>,
}

/// The numbers of the names of a group: its class, its line and its root.
type GroupNames = [u32; 3];

/// The objects of a group that are new, and those that are gone.
#[derive(Default)]
struct Both {
    new: survey::Group,
    gone: survey::Group,
}

/// Compares two or three dumps. Of each some 10 to 40 bytes are kept for an object at a time.
///
/// # Errors
/// If one of them, by its number, cannot be read, or is no dump.
///
/// # Panics
/// If there are fewer than two dumps.
pub fn compare_dumps(dumps: &mut [OpenDump]) -> Result<DumpDiff, (usize, DumpError)> {
    let of = |number: usize| move |error| (number, error);
    let (hasher, mut names) = (Hasher::default(), Names::new());
    let mut points = Vec::new();
    let mut point = |dumps: &[OpenDump], keys: &Keys| {
        let file = dumps[points.len()].name.clone();
        let (objects, unreadable_lines) = (keys.objects, keys.unreadable_lines);
        points.push(DumpPoint { file, objects, unreadable_lines });
    };
    let first = Keys::read(&mut *dumps[0].file, &hasher, |_, _| true).map_err(of(0))?;
    point(dumps, &first);
    let is_of_first = |key, generation| first.has(key, generation);
    let (new, gone) = if dumps.len() > 2 {
        let is_new = |key, generation| !is_of_first(key, generation);
        let second = Keys::read(&mut *dumps[1].file, &hasher, is_new).map_err(of(1))?;
        point(dumps, &second);
        drop(first);
        let stays = |key, generation| second.has(key, generation);
        let new = survey(&mut *dumps[2].file, &hasher, &mut names, stays).map_err(of(2))?;
        points.push(DumpPoint {
            file: dumps[2].name.clone(),
            objects: new.objects,
            unreadable_lines: new.unreadable_lines,
        });
        (new, None)
    } else {
        let is_new = |key, generation| !is_of_first(key, generation);
        let new = survey(&mut *dumps[1].file, &hasher, &mut names, is_new).map_err(of(1))?;
        let second = Keys::read(&mut *dumps[1].file, &hasher, is_of_first).map_err(of(1))?;
        point(dumps, &second);
        let is_gone = |key, generation| !second.has(key, generation);
        (new, Some(survey(&mut *dumps[0].file, &hasher, &mut names, is_gone).map_err(of(0))?))
    };
    let at = if gone.is_some() { 1 } else { 2 };
    let groups = groups(&mut *dumps[at].file, &names, &new, gone.as_ref()).map_err(of(at))?;
    let sum = |survey: &Survey| {
        survey.groups.values().fold(DumpCount::default(), |sum, its| DumpCount {
            objects: sum.objects + its.count.objects,
            bytes: sum.bytes.saturating_add(its.count.bytes),
        })
    };
    Ok(DumpDiff {
        dumps: points,
        new: sum(&new),
        gone: gone.as_ref().map(sum),
        groups,
        sampling: None,
    })
}

/// The groups with most growth.
fn groups(
    file: &mut dyn Input,
    names: &Names,
    new: &Survey,
    gone: Option<&Survey>,
) -> Result<Vec<DumpGroup>, DumpError> {
    let mut all: HashMap<GroupNames, Both> = HashMap::new();
    for (group, its) in &new.groups {
        all.entry(*group).or_default().new = *its;
    }
    for (group, its) in gone.iter().flat_map(|it| &it.groups) {
        all.entry(*group).or_default().gone = *its;
    }
    let text = |number| names.text(number).to_owned();
    let some = |number| Some(text(number)).filter(|it| !it.is_empty());
    let address = |at| (at != 0).then(|| format!("{at:#x}"));
    let group = |([class, line, root], both): ([u32; 3], Both)| DumpGroup {
        class: text(class),
        line: some(line),
        root: some(root),
        new: both.new.count,
        gone: both.gone.count,
        example: address(both.new.example),
        path: Vec::new(),
        samples: 0,
        made_by: Vec::new(),
    };
    let change = |both: &Both| i128::from(both.new.count.bytes) - i128::from(both.gone.count.bytes);
    let mut all: Vec<_> = all.into_iter().collect();
    // Texts have numbers in the order of their lines.
    all.sort_unstable_by_key(|(group, both)| (std::cmp::Reverse(change(both)), *group));
    all.truncate(MAX_GROUPS);
    let examples: Vec<u64> = all.iter().map(|(_, both)| both.new.example).collect();
    let mut groups: Vec<_> = all.into_iter().map(group).collect();
    let paths = new.paths(file, names, &examples)?;
    for (group, (root, mut objects)) in groups.iter_mut().zip(paths) {
        let root = root.or_else(|| group.root.clone()).filter(|_| !objects.is_empty());
        // The name of a constant, or of a variable of a class, has that of its module.
        if let (Some(root), Some(first)) = (&root, objects.first())
            && diagnosis::is_in_module(root, first)
        {
            objects.remove(0);
        }
        group.path = root.into_iter().chain(objects).collect();
    }
    Ok(groups)
}
