//! The names of single objects in paths: threads with their method, and Procs, methods and bytecode with the line of their code.

use std::collections::HashMap;
use std::sync::OnceLock;

use ruby::{Closure, Closures, CodePaths, Frame};

/// The code that objects are named by.
#[derive(Debug, Default)]
pub(crate) struct ObjectCode {
    /// The current method of each thread, by the slot of the Thread object.
    pub(crate) current_frames: HashMap<u32, Frame>,
    /// The code of Procs and Methods, and of methods that Procs define.
    pub(crate) closures: Closures,
    /// The files and lines of bytecode; `None` if they are unknown.
    pub(crate) paths: Option<CodePaths>,
    /// The code that uses constants and variables.
    pub(crate) uses: Vec<ruby::RootUses>,
}

/// The name of an object, in parts: one object stands for others in a path, which may differ in the later parts.
#[derive(Debug)]
pub(crate) struct ObjectName {
    /// The name of its class; the name of the thread and of the method, with a space before them; and the place in the
    /// program. `Thread`, ` "worker-1"`, ` in Billing::Export#run (/srv/app/export.rb:42)`.
    parts: [String; PARTS],
    /// All parts.
    pub(crate) whole: String,
}

pub(crate) const PARTS: usize = 3;
/// The step of a path that is bytecode.
pub(crate) const BYTECODE: &str = "bytecode";
/// The step of a path that is a method that a Proc defines (`define_method`).
pub(crate) const METHOD: &str = "method";
/// The steps of paths that are code, and no objects.
pub const CODE: [&str; 2] = [BYTECODE, METHOD];

impl ObjectName {
    fn new(parts: [String; PARTS]) -> Self {
        // Arrows separate the steps of a path.
        let parts = parts.map(|part| part.replace('→', "->"));
        Self { whole: parts.concat(), parts }
    }

    /// The parts of the name.
    pub(crate) fn parts(&self) -> [&str; PARTS] {
        self.parts.each_ref().map(String::as_str)
    }

    /// The name of a thread without its method: `Thread "worker-1"`.
    pub(crate) fn thread(&self) -> String {
        self.parts[..2].concat()
    }

    /// The current method of a thread: `Billing::Export#run (/srv/app/export.rb:42)`.
    pub(crate) fn method(&self) -> Option<&str> {
        self.parts[2].strip_prefix(" in ")
    }
}

/// The names of the objects that have more than the name of their class.
pub(crate) struct ObjectNames<'a> {
    threads: HashMap<u32, ObjectName>,
    /// The slots of Procs and Methods, and of methods that Procs define, ascending, and the index of each one's name.
    closures: Vec<(u32, u32)>,
    of_closures: Vec<ObjectName>,
    paths: Option<&'a CodePaths>,
    /// The names of bytecode, in the order of [`CodePaths::iseqs`]. Few of them are ever needed.
    of_bytecode: Vec<OnceLock<Box<ObjectName>>>,
}

impl<'a> ObjectNames<'a> {
    /// The names of threads that have a name of their own (`thread_names`) or a known method, and of objects with code.
    /// `class_of` returns the name of an object's class.
    pub(crate) fn new(
        thread_names: &HashMap<u32, String>,
        code: &'a ObjectCode,
        class_of: impl Fn(u32) -> &'a str,
    ) -> Self {
        let slots = thread_names.keys().chain(code.current_frames.keys());
        let thread = |&slot: &u32| {
            let class = class_of(slot).to_owned();
            let own = thread_names.get(&slot).map_or_else(String::new, |name| format!(" {name:?}"));
            let method = code.current_frames.get(&slot).map(|frame| {
                format!(" in {}{}", frame.label, place(frame.path.as_deref(), frame.line))
            });
            (slot, ObjectName::new([class, own, method.unwrap_or_default()]))
        };
        let threads = slots.map(thread).collect();
        let mut known: HashMap<(&str, u32), u32> = HashMap::new();
        let mut of_closures = Vec::new();
        let closures = code.closures.slots().iter().filter_map(|&(slot, index)| {
            let Closure { method, path, line } = code.closures.all().get(index as usize)?;
            let class = class_of(slot);
            let name = *known.entry((class, index)).or_insert_with(|| {
                let method = method.as_ref().map(|method| format!(" {method}"));
                let place = place(path.as_deref(), *line);
                let parts = [class.to_owned(), method.unwrap_or_default(), place];
                of_closures.push(ObjectName::new(parts));
                of_closures.len() as u32 - 1
            });
            Some((slot, name))
        });
        let closures = closures.collect();
        let paths = code.paths.as_ref();
        let iseqs = paths.map_or(0, |paths| paths.iseqs().len());
        let of_bytecode = (0..iseqs).map(|_| OnceLock::new()).collect();
        Self { threads, closures, of_closures, paths, of_bytecode }
    }

    /// The name of the method in a slot that a Proc defines; `None` for other objects.
    pub(crate) fn of_method(&self, slot: u32) -> Option<&ObjectName> {
        self.of(slot).filter(|name| name.parts[0] == METHOD)
    }

    /// The name of the bytecode in a slot, as of a step that leads to its literals; `None` for other objects.
    pub(crate) fn of_bytecode(&self, slot: u32) -> Option<&ObjectName> {
        let paths = self.paths?;
        let number = paths.number(slot)?;
        let source = paths.iseqs()[number];
        let path = paths.paths.get(source.path as usize)?;
        let line = Some(source.line).filter(|line| *line > 0);
        let name = || ObjectName::new([BYTECODE.into(), String::new(), place(Some(path), line)]);
        Some(self.of_bytecode[number].get_or_init(|| Box::new(name())))
    }

    /// The name of the object in a slot; `None` if it is that of its class.
    pub(crate) fn of(&self, slot: u32) -> Option<&ObjectName> {
        self.of_thread(slot).or_else(|| {
            let found = self.closures.binary_search_by_key(&slot, |it| it.0).ok()?;
            self.of_closures.get(self.closures[found].1 as usize)
        })
    }

    /// The name of the thread in a slot; `None` for other objects.
    pub(crate) fn of_thread(&self, slot: u32) -> Option<&ObjectName> {
        self.threads.get(&slot)
    }
}

/// A file and a line behind a name: ` (/srv/app/export.rb:42)`.
fn place(path: Option<&str>, line: Option<u32>) -> String {
    match (path, line) {
        (Some(path), Some(line)) => format!(" ({path}:{line})"),
        (Some(path), None) => format!(" ({path})"),
        (None, _) => String::new(),
    }
}
