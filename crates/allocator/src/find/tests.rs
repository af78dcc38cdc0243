//! The allocator that is found among synthetic modules, in states that the dynamic linker leaves.

use image::elf;
use testkit::{ElfModule, SyntheticMemory};

use super::*;

const EXECUTABLE: u64 = 0x5555_5555_0000;
const LIST: u64 = 0x5555_6000_0000;
/// Lower than all other libraries.
const LOWEST: u64 = 0x7f00_0000_0000;
const LIBRUBY: u64 = 0x7f00_1000_0000;
const PRELOADED: u64 = 0x7f00_2000_0000;
const LIBC: u64 = 0x7f00_3000_0000;
/// The offset of malloc in each module that exports it.
const MALLOC_AT: u64 = 0x2800;
/// The offset of the code that resolves a function at its first call.
const RESOLVER: u64 = 0x2c00;

/// A process with a library that exports malloc, comes late in the order, and lies low in memory.
struct Process {
    /// The target of libruby's calls of malloc.
    called: u64,
    /// The target of its pointers to malloc, if it has any.
    pointed_to: Option<u64>,
    /// The dynamic linker's list; empty if there is none.
    order: Vec<u64>,
    loops: bool,
}

impl Default for Process {
    fn default() -> Self {
        let order = vec![EXECUTABLE, LIBRUBY, LIBC, LOWEST];
        Self { called: LIBC + MALLOC_AT, pointed_to: None, order, loops: false }
    }
}

impl Process {
    fn with_preloaded(mut self) -> Self {
        self.order.insert(1, PRELOADED);
        self
    }

    /// The name of the allocator, the name of its module, and the finding.
    fn find(&self) -> (String, Option<String>, Option<Finding>) {
        let mut memory = SyntheticMemory::default();
        memory.map(LIST, 4096);
        let mut executable = ElfModule::new("/usr/bin/ruby", EXECUTABLE, 4096);
        if !self.order.is_empty() {
            executable.link(&mut memory, LIST, &self.order, self.loops);
        }
        executable.write(&mut memory);
        let mut libruby = ElfModule::new("/usr/lib/libruby.so.0", LIBRUBY, 4096);
        libruby.call("free", LIBC + RESOLVER);
        libruby.call("malloc", self.called);
        if let Some(pointed_to) = self.pointed_to {
            libruby.point_to("malloc", pointed_to);
        }
        libruby.write(&mut memory);
        let exporters = [
            ("/usr/lib/libown.so", LOWEST, "mi_malloc"),
            ("/usr/lib/libjemalloc.so.2", PRELOADED, "mallctl"),
            ("/lib/libc.so.6", LIBC, "free"),
        ];
        for (path, base, beside) in exporters {
            if base == PRELOADED && !self.order.contains(&PRELOADED) {
                continue;
            }
            let mut module = ElfModule::new(path, base, 4096);
            module.symbol("malloc", base + MALLOC_AT);
            module.symbol(beside, base + MALLOC_AT + 64);
            module.write(&mut memory);
        }
        let image = memory.image();
        let modules = elf::modules(&image);
        let caller = modules.iter().find(|module| module.name.starts_with("libruby"));
        let found = find_allocator(&image, &modules, caller);
        let module = found.module.map(|module| module.name.clone());
        (found.allocator.to_string(), module, found.finding)
    }
}

fn answer(
    allocator: &str,
    module: &str,
    finding: Option<Finding>,
) -> (String, Option<String>, Option<Finding>) {
    (allocator.into(), Some(module.into()), finding)
}

/// The finding that this module is only the first one that exports malloc.
fn assumed(module: &str) -> Option<Finding> {
    Some(Finding::AllocatorAssumed { caller: "libruby.so.0".into(), module: module.into() })
}

#[test]
fn the_lowest_module_that_exports_malloc_need_not_serve_it() {
    assert_eq!(Process::default().find(), answer("glibc", "libc.so.6", None));
}

#[test]
fn the_callers_own_reference_decides() {
    // Against the order, as in a process under a debugger or profiler.
    let process = Process { called: LOWEST + MALLOC_AT, ..Process::default() };
    assert_eq!(process.find(), answer("mimalloc", "libown.so", None));
    let process = Process { called: PRELOADED + MALLOC_AT, ..Process::default() };
    assert_eq!(process.with_preloaded().find(), answer("jemalloc", "libjemalloc.so.2", None));
}

#[test]
fn a_call_that_is_not_resolved_yet_is_resolved_as_the_dynamic_linker_would() {
    let lazy = || Process { called: LIBRUBY + RESOLVER, ..Process::default() };
    assert_eq!(lazy().find(), answer("glibc", "libc.so.6", assumed("libc.so.6")));
    let preloaded = "libjemalloc.so.2";
    let expected = answer("jemalloc", preloaded, assumed(preloaded));
    assert_eq!(lazy().with_preloaded().find(), expected);
    // A pointer is resolved at once.
    let process = Process { pointed_to: Some(PRELOADED + MALLOC_AT), ..lazy() };
    assert_eq!(process.with_preloaded().find(), answer("jemalloc", "libjemalloc.so.2", None));
}

#[test]
fn a_reference_to_a_stub_in_the_executable_is_not_taken_for_an_allocator() {
    // A pointer to a function may lead to the executable's code that calls it.
    let process = Process { called: EXECUTABLE + RESOLVER, ..Process::default() };
    assert_eq!(process.find(), answer("glibc", "libc.so.6", assumed("libc.so.6")));
}

#[test]
fn a_list_that_loops_ends() {
    let process = Process { called: 0, loops: true, ..Process::default() };
    assert_eq!(process.find(), answer("glibc", "libc.so.6", assumed("libc.so.6")));
}

#[test]
fn without_the_list_several_modules_are_not_guessed_from() {
    let process = Process { called: 0, order: Vec::new(), ..Process::default() };
    let (allocator, module, finding) = process.find();
    assert_eq!((allocator.as_str(), module), ("unknown", None));
    let Some(Finding::AllocatorUnknown { modules }) = finding else { panic!("{finding:?}") };
    assert_eq!(modules, ["libown.so", "libc.so.6"]);
    let process = Process { order: Vec::new(), ..Process::default() };
    assert_eq!(process.find(), answer("glibc", "libc.so.6", None));
}
