use std::ops::Range;
use std::sync::LazyLock;
use std::thread::Builder;

use allocator::glibc::Malloc;
use allocator::{Allocator, Libc};
use capture::elf::{self, Module};
use capture::{Address, Finding, Image};
use ruby::{NamedRoot, ObjectSpace};

use crate::owners::Pointers;
use crate::stacks::find_stacks;

/// All that is read of an image before the target goes on: plain data, none of its bytes.
#[derive(Debug)]
pub struct Facts {
    pub(crate) libc: Libc,
    pub(crate) allocator: Allocator,
    /// Or why it could not be read, in a sentence.
    pub(crate) malloc: Result<Malloc, String>,
    /// Or why it could not be read, in a sentence.
    pub(crate) ruby: Result<ObjectSpace, String>,
    torn: bool,
    pub(crate) stacks: Vec<Range<Address>>,
    /// Ascending by address.
    pub(crate) modules: Vec<Module>,
    /// Which memory points to which; `None` where owners are not wanted, or a side is missing.
    pub(crate) pointers: Option<Pointers>,
    /// Objects that a constant or variable of Ruby's names; empty where owners are not wanted.
    pub(crate) named_roots: Vec<NamedRoot>,
    /// What was noticed while the allocator and names were looked for.
    pub(crate) findings: Vec<Finding>,
}

impl Facts {
    /// Reads malloc's side and Ruby's side of `image` at the same time. What cannot be read is
    /// kept with its reason: the rest stands without it. With `owners` also which memory points to
    /// which, for [`Ledger::draw_up`](crate::Ledger::draw_up) to find who holds it.
    #[must_use]
    pub fn read(image: &Image<'_>, owners: bool) -> Self {
        let mut facts = Self::read_sides(image, elf::modules(image));
        if owners
            && !facts.torn
            && let (Ok(malloc), Ok(space)) = (&facts.malloc, &facts.ruby)
        {
            let Facts { modules, stacks, .. } = &facts;
            match Pointers::read(image, modules, malloc, space, stacks) {
                Ok(pointers) => {
                    let (named_roots, findings) = ruby::named_roots(image, space);
                    facts.named_roots = named_roots;
                    facts.findings.extend(findings);
                    facts.pointers = Some(pointers);
                }
                Err(too_many) => facts.findings.push(too_many.finding()),
            }
        }
        facts
    }

    /// No facts, for `reason`, a sentence, of a process whose memory was not read; `running` is an image of it
    /// without stopping it, which tells the libraries that it has loaded.
    #[must_use]
    pub fn unread(running: &Image<'_>, reason: &str) -> Self {
        let mut modules = elf::modules(running);
        let interpreter = ruby::find_in(running, &modules);
        let caller = interpreter.and_then(|it| it.module_among(&modules));
        let allocator = allocator::find_allocator(running, &modules, caller).allocator;
        let libc = allocator::libc(running, &modules);
        modules.sort_by_key(|module| module.range.start);
        Self {
            torn: false,
            libc,
            allocator,
            malloc: Err(reason.into()),
            ruby: Err(reason.into()),
            stacks: Vec::new(),
            modules,
            pointers: None,
            named_roots: Vec::new(),
            findings: Vec::new(),
        }
    }

    /// `modules` are in the order in which the dynamic linker searches them.
    fn read_sides(image: &Image<'_>, mut modules: Vec<Module>) -> Self {
        std::thread::scope(|scope| {
            // Where no thread can be had, it is done in turn.
            let ruby = Builder::new().spawn_scoped(scope, || ruby::read(image));
            let interpreter = ruby::find_in(image, &modules);
            let caller = interpreter.as_ref().and_then(|it| it.module_among(&modules));
            let found = allocator::find_allocator(image, &modules, caller);
            let malloc = read_malloc(image, &found);
            let (allocator, finding) = (found.allocator, found.finding);
            let stacks = find_stacks(image);
            let ruby = ruby.map_or_else(
                |_| ruby::read(image),
                |ruby| ruby.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            );
            let is_torn = |malloc: &Malloc| malloc.arenas.iter().any(|arena| !arena.walked);
            let torn = malloc.as_ref().is_ok_and(is_torn)
                || matches!(ruby, Err(ruby::Error::Layout { .. }));
            let libc = allocator::libc(image, &modules);
            modules.sort_by_key(|module| module.range.start);
            Self {
                torn,
                libc,
                allocator,
                malloc,
                ruby: ruby.map_err(|error| error.to_string()),
                stacks,
                modules,
                pointers: None,
                named_roots: Vec::new(),
                findings: finding.into_iter().collect(),
            }
        })
    }

    /// malloc's side; nothing where it could not be read.
    pub(crate) fn chunks(&self) -> &Malloc {
        static NOTHING: LazyLock<Malloc> = LazyLock::new(Malloc::default);
        self.malloc.as_ref().unwrap_or(&NOTHING)
    }

    /// Ruby's side; nothing where it could not be read.
    pub(crate) fn objects(&self) -> &ObjectSpace {
        static NOTHING: LazyLock<ObjectSpace> = LazyLock::new(ObjectSpace::default);
        self.ruby.as_ref().unwrap_or(&NOTHING)
    }

    /// Whether a part may have been in the midst of a change: a thread stood within malloc, or in a
    /// GC that moves objects. Another look some milliseconds later mostly finds all in order.
    #[must_use]
    pub fn are_torn(&self) -> bool {
        self.torn
    }
}

fn read_malloc(image: &Image<'_>, found: &allocator::Found<'_>) -> Result<Malloc, String> {
    let Some(module) = found.module else {
        return Err("no library that serves malloc was found in the process".into());
    };
    let allocator = &found.allocator;
    if !allocator.is_glibc() {
        return Err(format!(
            "malloc is served by {allocator}, which rbloat does not look into: its memory stands \
             under unknown"
        ));
    }
    allocator::glibc::walk_library(image, module).map_err(|error| error.to_string())
}
