//! Some of the objects of a dump, in groups.

use std::collections::HashMap;

use formats::DumpCount;

use super::GroupNames;
use super::keys::{Hasher, MAX_OBJECTS};
use super::lines::{DumpError, Ignored, Input, Line, read};
use super::names::Names;
use super::paths::{LEFT_OUT, Path, Paths};

/// The classes above a singleton class, to one with a name.
const MAX_SUPERCLASSES: usize = 8;
/// The different classes and lines; further objects have those of others.
const MAX_KINDS: usize = 1 << 20;

/// The number of some objects, and the address of one.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Group {
    pub(super) count: DumpCount,
    pub(super) example: u64,
}

/// Some of the objects of a dump, and what retains them.
pub(super) struct Survey {
    pub(super) groups: HashMap<GroupNames, Group>,
    pub(super) objects: u64,
    pub(super) unreadable_lines: u64,
    pub(super) classes: Classes,
    paths: Paths,
}

/// A class of a dump.
struct Class {
    at: u64,
    name: u32,
    superclass: u64,
}

/// The classes of a dump, by their addresses.
#[derive(Default)]
pub(super) struct Classes(Vec<Class>);

/// What the lines of many objects have in common. The name of a class is known later, if it is not in the line.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    class: u64,
    class_name: u32,
    line: u32,
    root: u32,
}

/// An object of the survey.
struct Chosen {
    at: u64,
    kind: u32,
    bytes: u64,
}

/// Groups the objects of a dump for which `wanted` is true. Garbage is left out.
pub(super) fn survey(
    file: &mut dyn Input,
    hasher: &Hasher,
    names: &mut Names,
    wanted: impl Fn(u64, Option<u64>) -> bool,
) -> Result<Survey, DumpError> {
    let mut classes = Classes::default();
    let (mut chosen, mut addresses) = (Vec::new(), Vec::new());
    let mut kinds: HashMap<Kind, u32> = HashMap::new();
    let mut has_own_fields = false;
    let unreadable_lines = read(file, |line: Line<'_, Ignored>| {
        if !line.is_object() {
            return Ok(());
        }
        addresses.push(line.address.0);
        if addresses.len() > MAX_OBJECTS {
            return Err(DumpError::TooMuch);
        }
        classes.add(&line, names);
        has_own_fields |= line.rbloat.is_some();
        if wanted(hasher.key(&line), line.generation) {
            let kind = Kind::of(&line, names);
            let kind = if kinds.len() < MAX_KINDS { kind } else { Kind::default() };
            let next = kinds.len() as u32;
            let kind = *kinds.entry(kind).or_insert(next);
            let bytes = line.memsize.unwrap_or_default();
            chosen.push(Chosen { at: line.address.0, kind, bytes });
        }
        Ok(())
    })?;
    if addresses.is_empty() {
        return Err(DumpError::NoDump);
    }
    classes.0.sort_unstable_by_key(|it| it.at);
    let objects = addresses.len() as u64;
    addresses.sort_unstable();
    addresses.dedup();
    let paths = match chosen.is_empty() {
        true => Paths::default(),
        false if has_own_fields => Paths::of_parents(file, addresses)?,
        false => Paths::of_references(file, addresses, &classes, names)?,
    };
    let mut by_number = vec![Kind::default(); kinds.len()];
    kinds.into_iter().for_each(|(kind, number)| by_number[number as usize] = kind);
    let mut groups: HashMap<GroupNames, Group> = HashMap::new();
    for it in chosen {
        let Kind { class, class_name, line, root } = by_number[it.kind as usize];
        let root =
            if has_own_fields { Some(root).filter(|it| *it != 0) } else { paths.root(it.at) };
        let Some(root) = root else { continue };
        let class = if class == 0 { class_name } else { classes.name(class).unwrap_or(class_name) };
        let group = groups
            .entry([class, line, root])
            .or_insert(Group { example: it.at, ..Group::default() });
        group.count.objects += 1;
        group.count.bytes = group.count.bytes.saturating_add(it.bytes);
    }
    Ok(Survey { groups, objects, unreadable_lines, classes, paths })
}

/// A path: its root, unless that is in the lines, and the names of its objects.
pub(super) type NamedPath = (Option<String>, Vec<String>);

impl Survey {
    /// The paths to these objects.
    pub(super) fn paths(
        &self,
        file: &mut dyn Input,
        names: &Names,
        objects: &[u64],
    ) -> Result<Vec<NamedPath>, DumpError> {
        let paths: Vec<_> = objects.iter().map(|at| self.paths.to(*at, names)).collect();
        let on_paths = paths.iter().flat_map(|(_, objects)| objects);
        let mut known: HashMap<u64, String> = on_paths.map(|at| (*at, String::new())).collect();
        if !known.is_empty() {
            read(file, |line: Line<'_, Ignored>| {
                if line.is_object()
                    && let Some(name) = known.get_mut(&line.address.0)
                {
                    *name = self.classes.name_of_object(&line, names);
                }
                Ok(())
            })?;
        }
        let name = |at: &u64| match known.get(at) {
            Some(name) if *at != LEFT_OUT => name.clone(),
            _ => "…".to_owned(),
        };
        let named = |(root, objects): Path| (root, objects.iter().map(name).collect());
        Ok(paths.into_iter().map(named).collect())
    }
}

impl Kind {
    fn of<R>(line: &Line<'_, R>, names: &mut Names) -> Self {
        let own = line.rbloat.as_ref().filter(|it| !it.owner.is_empty());
        let what = match line.imemo_type.is_empty() {
            true => line.kind.bytes().to_vec(),
            false => [line.kind.bytes(), b" ", line.imemo_type.bytes()].concat(),
        };
        let is_internal = line.kind.is("IMEMO");
        Self {
            class: if own.is_some() || is_internal { 0 } else { line.class.0 },
            class_name: names.number(own.map_or(&what, |it| it.owner.bytes())),
            line: match line.line {
                _ if line.file.is_empty() => 0,
                Some(number) => {
                    names.number(&[line.file.bytes(), format!(":{number}").as_bytes()].concat())
                }
                None => names.number(line.file.bytes()),
            },
            root: line.rbloat.as_ref().map_or(0, |it| names.number(it.retaining_root.bytes())),
        }
    }
}

impl Classes {
    fn add<R>(&mut self, line: &Line<'_, R>, names: &mut Names) {
        if line.is_class() {
            let name = if line.name.is_empty() { &line.real_class_name } else { &line.name };
            let (at, superclass) = (line.address.0, line.superclass.0);
            self.0.push(Class { at, name: names.number(name.bytes()), superclass });
        }
    }

    /// The number of the name of a class, or for a class without a name, of the next class above it that has one.
    pub(super) fn name(&self, at: u64) -> Option<u32> {
        let find =
            |at: u64| self.0.binary_search_by_key(&at, |it| it.at).ok().map(|it| &self.0[it]);
        let above = std::iter::successors(find(at), |it| find(it.superclass));
        above.take(MAX_SUPERCLASSES).map(|it| it.name).find(|it| *it != 0)
    }

    /// The name of a class or module, and of another object that of its class.
    fn name_of_object<R>(&self, line: &Line<'_, R>, names: &Names) -> String {
        let lossy = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let own = line.rbloat.as_ref().map(|it| &it.owner).filter(|it| !it.is_empty());
        match () {
            () if line.is_class() && !line.name.is_empty() => lossy(line.name.bytes()),
            () if let Some(own) = own => lossy(own.bytes()),
            () if line.kind.is("IMEMO") => format!("IMEMO {}", lossy(line.imemo_type.bytes())),
            () => match self.name(line.class.0) {
                Some(name) => names.text(name).to_owned(),
                None => lossy(line.kind.bytes()),
            },
        }
    }
}
