//! Import circles: no more than two files of a crate may import each other in a circle. Larger circles have no beginning from
//! which a reader could understand them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;

/// The path of a module, from the root of its crate.
type Module = Vec<String>;

/// The most re-exports between a name and its module.
const MAX_REEXPORTS: usize = 8;

/// The modules of a crate.
#[derive(Default)]
struct Crate {
    /// The text of each file, without comments, tests and re-exports.
    texts: BTreeMap<Module, String>,
    /// The names that each module exports from elsewhere, and their paths.
    reexports: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
}

impl Crate {
    fn read(&mut self, folder: &Path, module: &Module) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let inner = || module.iter().cloned().chain([name.to_owned()]).collect::<Module>();
            if path.is_dir() {
                self.read(&path, &inner());
            } else if path.extension().is_some_and(|it| it == "rs") {
                let module = match name {
                    "lib" | "main" | "mod" => module.clone(),
                    _ => inner(),
                };
                self.add(module, &fs::read_to_string(&path).unwrap());
            }
        }
    }

    fn add(&mut self, module: Module, text: &str) {
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let lines = text.lines().map(|line| line.split("//").next().unwrap());
        let text = lines.collect::<Vec<_>>().join("\n");
        let (mut rest, mut exported) = (String::new(), BTreeMap::new());
        for statement in text.split_inclusive(';') {
            let start = statement.rfind("pub").map_or("", |at| &statement[at..]);
            let tree =
                start.split_once(" use ").filter(|(visibility, _)| !visibility.contains(' '));
            match tree {
                Some((_, tree)) => {
                    rest.push_str(&statement[..statement.len() - start.len()]);
                    exported
                        .extend(paths(tree).into_iter().map(|it| (it[it.len() - 1].clone(), it)));
                }
                None => rest.push_str(statement),
            }
        }
        self.texts.insert(module.clone(), rest);
        self.reexports.insert(module, exported);
    }

    /// The module that a path in `module` leads to; `None` if it leads out of the crate.
    fn target(&self, module: &Module, path: &[String], reexports: usize) -> Option<Module> {
        let mut at = match path[0].as_str() {
            "crate" => Module::new(),
            "self" | "super" => module.clone(),
            first => {
                let inner: Module = module.iter().cloned().chain([first.to_owned()]).collect();
                self.texts.contains_key(&inner).then(|| module.clone())?
            }
        };
        for (index, name) in path.iter().enumerate() {
            match name.as_str() {
                "crate" | "self" => continue,
                "super" => {
                    at.pop();
                    continue;
                }
                _ => at.push(name.clone()),
            }
            if !self.texts.contains_key(&at) {
                at.pop();
                let Some(path_of_name) = self.reexports[&at].get(name) else { break };
                if reexports == MAX_REEXPORTS {
                    break;
                }
                let whole = [path_of_name, &path[index + 1..]].concat();
                return self.target(&at, &whole, reexports + 1).or(Some(at));
            }
        }
        Some(at)
    }

    /// The modules that each module imports from.
    fn imports(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let imports = self.texts.iter().map(|(module, text)| {
            let paths = paths(text).into_iter().filter(|path| path.len() > 1);
            let targets = paths.filter_map(|path| self.target(module, &path, 0));
            (module, targets.filter(|target| target != module).collect())
        });
        imports.collect()
    }
}

/// All paths in a text, those of `a::{b, c::d}` one by one.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(|it: char| it.is_alphabetic() || it == '_') {
        rest = tree(&rest[at..], &[], &mut found);
    }
    found
}

/// Reads one path or tree at the beginning of a text, and returns the rest of the text.
fn tree<'t>(text: &'t str, outer: &[String], found: &mut Vec<Vec<String>>) -> &'t str {
    let text = text.trim_start();
    let end = text.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(text.len());
    let path = [outer, &[text[..end].to_owned()]].concat();
    let rest = &text[end..];
    let Some(inner) = rest.strip_prefix("::") else {
        found.push(path);
        return rest;
    };
    let Some(mut inner) = inner.strip_prefix('{') else { return tree(inner, &path, found) };
    loop {
        inner = tree(inner, &path, found).trim_start();
        match inner.strip_prefix(',').map(str::trim_start) {
            Some(next) if !next.starts_with('}') => inner = next,
            _ => return inner,
        }
    }
}

/// Returns a circle of more than two modules that begins with an import of `to` by `from`.
fn circle<'m>(
    imports: &'m BTreeMap<&Module, BTreeSet<Module>>,
    from: &'m Module,
    to: &'m Module,
) -> Option<Vec<String>> {
    let mut before = BTreeMap::from([(to, to)]);
    let mut waiting = VecDeque::from([to]);
    while let Some(module) = waiting.pop_front() {
        for next in &imports[module] {
            if (module, next) != (to, from) && !before.contains_key(next) {
                before.insert(next, module);
                waiting.push_back(next);
            }
        }
    }
    let mut circle = vec![from];
    while *circle.last()? != to {
        circle.push(before.get(circle.last()?)?);
    }
    Some(circle.into_iter().rev().map(|module| format!("crate::{}", module.join("::"))).collect())
}

#[test]
fn no_circle_of_imports_has_more_than_two_files() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for entry in fs::read_dir(crates).unwrap() {
        let folder = entry.unwrap().path();
        let mut read = Crate::default();
        read.read(&folder.join("src"), &Module::new());
        let imports = read.imports();
        for (from, targets) in &imports {
            for to in targets {
                let found = circle(&imports, from, to);
                assert_eq!(found, None, "a circle in {}", folder.display());
            }
        }
    }
}

#[test]
fn a_circle_through_a_reexport_is_found() {
    let mut read = Crate::default();
    for (module, text) in [
        ("", "mod a;\nmod b;\nmod c;\npub use a::A;"),
        ("a", "use crate::b::{self, B};"),
        ("b", "fn f() { crate::c::g() }"),
        ("c", "use crate::A;"),
    ] {
        let module = module.split("::").filter(|it| !it.is_empty()).map(str::to_owned);
        read.add(module.collect(), text);
    }
    let imports = read.imports();
    let [a, b] = ["a", "b"].map(|name| vec![name.to_owned()]);
    let found = circle(&imports, &a, &b);
    assert_eq!(found, Some(["crate::b", "crate::c", "crate::a"].map(str::to_owned).to_vec()));
}
