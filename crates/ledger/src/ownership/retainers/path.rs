//! Paths as steps with names: what most of some paths have in common, and their text.

#[cfg(test)]
mod tests;

use crate::ownership::names::{BYTECODE, CODE, METHOD, PARTS};
use crate::size::Count;

/// The number of steps of a path that are shown; those in the middle are left out.
const MAX_STEPS: usize = 8;

/// A path names a thread, or a variable of one, only if this part of the compared paths have it: a clear majority, since few are compared, and
/// a thread retains only its own objects.
const COMMON_OF_THREADS: (usize, usize) = (3, 4);
/// The first part of the names of threads, and of their variables.
const THREAD: [&str; 2] = ["Thread", "["];
/// The separator of the steps of a path.
pub const ARROW: &str = " → ";
/// Classes of Ruby whose objects only refer to others. They say less about a program than the objects in them.
pub const CONTAINERS: [&str; 8] =
    ["Array", "Hash", "Set", "Proc", "Method", "Binding", "Enumerator", "Enumerator::Lazy"];
/// The shortest beginning of the names of variables of threads that says what they are.
const MIN_COMMON_NAME: usize = 4;
/// The ends of such names of which only the beginning is common: without and with quotes.
const SO_ON: [&str; 2] = ["…]", "…\"]"];
/// The step in place of others.
const OTHERS: &str = "…";

/// A step of a path: the name of an object, and the number of its repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step<'a> {
    parts: [&'a str; PARTS],
    count: usize,
}

pub(super) type Path<'a> = Vec<Step<'a>>;

impl<'a> Step<'a> {
    pub(super) fn of(parts: [&'a str; PARTS]) -> Self {
        Self { parts, count: 1 }
    }

    /// The part of the name that objects have in common.
    fn class(&self) -> &'a str {
        self.parts[0]
    }

    /// Returns true for an object of a class of the program, or of a library.
    fn is_owner(&self) -> bool {
        let class = self.class();
        !class.starts_with(['(', '[', '.', '@'])
            && !CODE.contains(&class)
            && !CONTAINERS.contains(&class)
            && class != "Class"
    }

    /// Returns true for bytecode to which a closure or a thread refers, and for the Proc that defines a method, if the name with these parts
    /// has its place.
    fn is_code_of(&self, parts: [&str; PARTS]) -> bool {
        let place = parts[PARTS - 1];
        match parts[0] {
            METHOD => self.class() == "Proc" && self.parts[PARTS - 1] == place,
            _ => self.class() == BYTECODE && !place.is_empty(),
        }
    }

    /// Returns true if the name has the line of a closure.
    fn has_place(&self) -> bool {
        self.parts[PARTS - 1].starts_with(" (")
    }
}

/// Paths, those with the same classes together.
#[derive(Default)]
pub(super) struct Alike<'a>(Vec<Vec<Path<'a>>>);

impl<'a> Alike<'a> {
    pub(super) fn add(&mut self, path: Path<'a>) {
        // The numbers of repeated steps may differ, as in a list, and so may the names of threads and lines of code.
        let has_classes = |known: &&mut Vec<Path<'a>>| classes(&known[0]).eq(classes(&path));
        match self.0.iter_mut().find(has_classes) {
            Some(known) => known.push(path),
            None => self.0.push(vec![path]),
        }
    }

    /// The path that most of them have, as text.
    pub(super) fn typical(self, has_one_root: bool) -> String {
        let all: Vec<Path<'a>> = self.0.iter().flatten().cloned().collect();
        // The first one of several.
        let typical = self.0.into_iter().rev().max_by_key(Vec::len);
        typical.map_or_else(String::new, |paths| {
            let mut path = common(&paths, &all, has_one_root);
            // What is said of most objects must be known of most: the first steps that the paths of more than half have.
            if paths.len() * 2 <= all.len() && path.len() > 2 {
                let known = steps_of_most(&path, &all).clamp(1, path.len() - 1);
                if known + 1 < path.len() {
                    path.splice(known..path.len() - 1, [Step::of([OTHERS, "", ""])]);
                }
            }
            shown(path)
        })
    }
}

/// Adds a step, or counts its repetition.
pub(super) fn add_step<'a>(path: &mut Path<'a>, parts: [&'a str; PARTS]) {
    match path.last_mut() {
        // Objects of one class share its name, and a list may have millions. So the texts are rarely compared.
        Some(last) if is_same(last.parts, parts) => last.count += 1,
        _ => path.push(Step::of(parts)),
    }
}

/// Adds the step before the last one, of a path that is followed from its end to its root. A step that has a place in the code takes the
/// place of the code behind it, unless the path ends there.
pub(super) fn add_step_before<'a>(path: &mut Path<'a>, parts: [&'a str; PARTS]) {
    if path.len() > 1 {
        path.pop_if(|step| step.is_code_of(parts));
    }
    add_step(path, parts);
}

/// Returns true if names are equal.
fn is_same(one: [&str; PARTS], other: [&str; PARTS]) -> bool {
    one.into_iter().zip(other).all(|(one, other)| is_same_part(one, other))
}

/// Returns true if these parts of names are equal.
fn is_same_part(one: &str, other: &str) -> bool {
    std::ptr::eq(one, other) || one == other
}

/// The classes of a path's steps, each once if it is repeated.
fn classes<'a>(path: &Path<'a>) -> impl Iterator<Item = &'a str> {
    path.chunk_by(|one, next| one.class() == next.class()).map(|steps| steps[0].class())
}

/// A path with one step for neighbours of one class, which has the further parts of their names that are the same.
fn joined<'a>(path: &Path<'a>) -> Path<'a> {
    let mut joined = Path::new();
    for steps in path.chunk_by(|one, next| one.class() == next.class()) {
        let mut step = Step { count: steps.iter().map(|step| step.count).sum(), ..steps[0] };
        for part in 1..PARTS {
            if steps.iter().any(|it| it.parts[part] != step.parts[part]) {
                step.parts[part] = "";
            }
        }
        joined.push(step);
    }
    joined
}

/// The path of median length among these, which have the same classes, with the further parts of names that most of `all` compared paths
/// have, and of threads those that [`COMMON_OF_THREADS`] of them have. The name of the root remains if all of them have one root.
fn common<'a>(paths: &[Path<'a>], all: &[Path<'a>], has_one_root: bool) -> Path<'a> {
    let is_alike = paths.iter().all(|path| path.len() == paths[0].len());
    if !is_alike {
        let joined = |paths: &[Path<'a>]| paths.iter().map(joined).collect::<Vec<_>>();
        return common(&joined(paths), &joined(all), has_one_root);
    }
    let mut by_length: Vec<&Path<'a>> = paths.iter().collect();
    by_length.sort_by_key(|path| path.iter().map(|step| step.count).sum::<usize>());
    let mut common = by_length[by_length.len() / 2].clone();
    for (index, step) in common.iter_mut().enumerate().skip(usize::from(has_one_root)) {
        let class = step.class();
        let is_enough = |count: usize| match THREAD.contains(&class) {
            true => count * COMMON_OF_THREADS.1 >= all.len() * COMMON_OF_THREADS.0,
            false => count * 2 > all.len(),
        };
        for part in 1..PARTS {
            let of_paths = || paths.iter().map(|path| path[index].parts[part]);
            let most = of_paths()
                .max_by_key(|it| of_paths().filter(|other| is_same_part(other, it)).count());
            let has = |path: &&Path<'_>, name: &str| {
                let same = path.get(index).filter(|it| is_same_part(it.class(), class));
                same.is_some_and(|it| is_same_part(it.parts[part], name))
            };
            let is_common = |name: &&str| is_enough(all.iter().filter(|it| has(it, name)).count());
            step.parts[part] = most.filter(is_common).unwrap_or_default();
        }
        if let ["[", "", _] = step.parts
            && let Some(name) = beginning(paths.iter().map(|path| path[index].parts[1]))
            && is_enough(paths.len())
        {
            step.parts = ["[", name, SO_ON[usize::from(name.contains('"'))]];
        }
        let is_number = |name: &str| !name.is_empty() && name.bytes().all(|it| it.is_ascii_digit());
        if let (0, [begin, "", ""]) = (index, step.parts)
            && paths.iter().all(|path| is_number(path[0].parts[1]))
        {
            step.parts = [begin, "", OTHERS];
        }
    }
    // Steps whose names were the only difference are one.
    common.dedup_by(|next, last| {
        let is_same = next.parts == last.parts;
        last.count += if is_same { next.count } else { 0 };
        is_same
    });
    common
}

/// What the names of variables have in common, if they begin alike: each request may have one with a number of its own.
fn beginning<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let first = names.next()?;
    let common = |one: &'a str, other: &str| {
        let alike =
            one.char_indices().zip(other.chars()).take_while(|((_, one), other)| one == other);
        &one[..alike.last().map_or(0, |((at, last), _)| at + last.len_utf8())]
    };
    let begin = names.fold(first, common).trim_end_matches(|it: char| it.is_ascii_digit());
    (begin.chars().count() >= MIN_COMMON_NAME).then_some(begin)
}

/// The number of first steps of a path whose classes more than half of all paths have.
fn steps_of_most(path: &Path<'_>, all: &[Path<'_>]) -> usize {
    let mut alike: Vec<&Path<'_>> = all.iter().collect();
    (0..path.len())
        .take_while(|&index| {
            let class = path[index].class();
            alike.retain(|it| it.get(index).is_some_and(|step| step.class() == class));
            alike.len() * 2 > all.len()
        })
        .count()
}

/// A path as text, without the steps in the middle if there are many. Of those, the last closure stays: its line is the one to change. So does
/// the last object that is no container: it is what the objects belong to.
pub(super) fn shown(mut path: Path<'_>) -> String {
    if path.len() > MAX_STEPS {
        let middle = MAX_STEPS / 2..path.len() - MAX_STEPS / 2 + 1;
        let closure = middle.clone().rfind(|&index| path[index].has_place());
        let owner = middle.clone().rfind(|&index| path[index].is_owner());
        let is_left_out = |index: usize| {
            middle.contains(&index) && closure != Some(index) && owner != Some(index)
        };
        // From the end on, so that the other places stay the same.
        let mut end = middle.end;
        for start in middle.clone().rev() {
            if !is_left_out(start) {
                end = start;
            } else if start == middle.start || !is_left_out(start - 1) {
                // The mark is no shorter than one step.
                if end - start > 1 {
                    path.splice(start..end, [Step::of([OTHERS, "", ""])]);
                }
            }
        }
    }
    text(&path)
}

fn text(path: &Path<'_>) -> String {
    let step = |step: &Step<'_>| {
        let name = match step.parts {
            // Variables of threads whose names differ, or are too few to be named.
            ["[", "", _] => "[…]".to_owned(),
            // Constants of a module whose names differ.
            [module, "", ""] if module.ends_with("::") => format!("{module}…"),
            // Variables of classes, whose names may differ.
            [variable, class, ""] if variable.starts_with(".@") || variable.starts_with("@@") => {
                format!("{}{variable}", if class.is_empty() { "…" } else { class })
            }
            parts => parts.concat(),
        };
        match step.count {
            1 => name,
            count => format!("{name} × {}", Count(count as u64)),
        }
    };
    path.iter().map(step).collect::<Vec<_>>().join(ARROW)
}
