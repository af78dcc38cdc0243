//! Synthetic cores, whole and damaged.

use std::path::PathBuf;

use image::{Core, CoreError, Finding, Memory, MissingFile, Origin, open_core};
use linux::arch::Cpu;
use linux::{
    Address, Backing, Machine, Mapping, PageState, Sysroot, Thread, WantedVariables, length,
};
use proptest::prelude::*;
use testkit::{CoreWriter, SyntheticCore, SyntheticMemory};

/// The variables that are kept of the environment.
const VARIABLES: WantedVariables =
    WantedVariables { with_value: &["LD_PRELOAD"], without_value: &[], settings: None };
const PAGE: u64 = linux::MIN_PAGE_SIZE;
const HEAP: u64 = 0x5555_5560_0000;
const GUARD: u64 = 0x7f00_0000_0000;
/// The control block of every thread, according to its registers. A control block begins with its own address.
const CONTROL: u64 = GUARD + PAGE + 0x40;
const LIBRARY: u64 = 0x7f00_1000_0000;
const SHARED: u64 = 0x7f00_2000_0000;
const STACK: u64 = 0x7fff_0000_0000;
const STACK_BYTES: u64 = 64 * PAGE;

fn thread(tid: i32) -> Thread {
    Thread {
        tid,
        cpu: Cpu::X86_64,
        thread_pointer: Address(CONTROL),
        stack_pointer: Address(STACK + 0x3_0008),
        registers: (0..15).map(|number| 100 * u64::from(tid.unsigned_abs()) + number).collect(),
    }
}

/// A process with a heap of eight pages (0 and 2 have contents, 3 has zeros), a guard page, a library of four pages of
/// which the third was written to, shared memory, and a stack with the arguments, environment and auxiliary vector of
/// the kernel.
fn process() -> SyntheticMemory {
    let mut memory = SyntheticMemory::default();
    memory.map(HEAP, 8 * PAGE);
    memory.write(HEAP, b"heap");
    memory.write(HEAP + 2 * PAGE + 100, b"more");
    memory.write_u64(HEAP + 3 * PAGE, 0);
    let guard = Mapping::anonymous(Address(GUARD)..Address(GUARD + PAGE));
    memory.mappings.push(Mapping { readable: false, writable: false, ..guard });
    memory.map(GUARD + PAGE, PAGE);
    memory.write(GUARD + PAGE, b"stack of a thread");
    memory.write_u64(CONTROL, CONTROL);
    let library = |start: u64, bytes: u64, path: &str| Mapping {
        writable: false,
        backing: Backing::File(path.into()),
        ..Mapping::anonymous(Address(start)..Address(start + bytes))
    };
    let path = "/nowhere/libx.so.1 (deleted)";
    memory.mappings.push(Mapping { executable: true, ..library(LIBRARY, 2 * PAGE, path) });
    let data = library(LIBRARY + 2 * PAGE, 2 * PAGE, path);
    memory.mappings.push(Mapping { writable: true, file_offset: 0x2000, ..data });
    memory.write(LIBRARY, b"\x7fELF");
    memory.write(LIBRARY + 2 * PAGE, b"variables");
    let shared = library(SHARED, 2 * PAGE, "/dev/zero (deleted)");
    memory.mappings.push(Mapping { writable: true, shared: true, ..shared });
    memory.write(SHARED, b"shared");
    memory.map(STACK, STACK_BYTES);
    write_first_stack(&mut memory);
    memory
}

/// The strings near the end of the stack. The pointers to them are below.
const STRINGS: u64 = STACK + STACK_BYTES - 0x1000;
const NAME: u64 = STRINGS + 0x200;

fn auxiliary() -> Vec<(u64, u64)> {
    vec![(33, 0x7fff_7000_0000), (16, 7), (6, 4096), (17, 100), (31, NAME)]
}

fn write_first_stack(memory: &mut SyntheticMemory) {
    let arguments: [&[u8]; 3] = [b"/usr/bin/ruby\0", b"-e\0", b"puts 1\nputs 2\0"];
    let variables: [&[u8]; 3] = [b"SECRET=hush\0", b"LD_PRELOAD=/lib/a.so\0", b"EMPTY=\0"];
    let mut at = STRINGS;
    let mut put = |memory: &mut SyntheticMemory, bytes: &[u8]| {
        memory.write(at, bytes);
        at += bytes.len() as u64;
        at - bytes.len() as u64
    };
    let mut words = vec![3];
    words.extend(arguments.map(|it| put(memory, it)));
    words.push(0);
    words.extend(variables.map(|it| put(memory, it)));
    words.push(0);
    words.extend(auxiliary().iter().flat_map(|&(key, value)| [key, value]));
    memory.write(NAME, b"/usr/bin/ruby\0");
    for (index, word) in (0..).zip(words) {
        memory.write_u64(STACK + STACK_BYTES - 0x2000 + 8 * index, word);
    }
}

fn core_of(writer: CoreWriter) -> SyntheticCore {
    let mut core = SyntheticCore::new(writer, &process(), &[thread(77), thread(78)]);
    core.auxiliary = auxiliary();
    core
}

struct Written {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn written(core: &SyntheticCore) -> Written {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("core.77");
    core.write(&path);
    Written { _folder: folder, path }
}

fn open(core: &SyntheticCore) -> Core {
    open_core(&written(core).path, &Sysroot::open(None), VARIABLES).unwrap()
}

fn error(path: &std::path::Path) -> CoreError {
    match open_core(path, &Sysroot::open(None), VARIABLES) {
        Ok(_) => panic!("{} was taken for a core", path.display()),
        Err(error) => error,
    }
}

fn read(core: &Core, at: u64, bytes: usize) -> Vec<u8> {
    let mut into = vec![0xee; bytes];
    let read = core.image.read(Address(at), &mut into);
    into.truncate(read);
    into
}

fn resident(core: &Core, start: u64, pages: u64) -> u64 {
    let range = Address(start)..Address(start + pages * PAGE);
    core.image.state.pages.as_ref().unwrap().resident_bytes(&range) / PAGE
}

fn has(core: &Core, finding: &Finding) -> bool {
    core.image.state.findings.contains(finding)
}

/// The finding that the file at this path is missing.
fn missing(path: &str) -> Finding {
    let files = vec![MissingFile { path: path.into(), error: "no such file".into() }];
    Finding::FilesMissing { files, others: 0 }
}

const WRITERS: [CoreWriter; 2] = [CoreWriter::Kernel, CoreWriter::Debugger];

#[test]
fn who_the_process_was_is_in_the_notes_and_on_the_stack() {
    for writer in WRITERS {
        let core = open(&core_of(writer));
        let state = &core.image.state;
        assert_eq!(state.origin, Origin::Core);
        assert_eq!(state.threads, [thread(77), thread(78)]);
        let process = &state.process;
        assert_eq!((process.pid, process.threads), (77, 2));
        assert_eq!(process.command, "/usr/bin/ruby -e puts 1 puts 2");
        let kept = [("LD_PRELOAD".to_owned(), "/lib/a.so".to_owned())];
        assert_eq!(process.environment.as_deref(), Some(&kept[..]), "and no secret");
    }
    let core = open(&core_of(CoreWriter::Kernel));
    assert_eq!(core.origin, "written by the kernel when signal 6 ended the process");
    assert_eq!(open(&core_of(CoreWriter::Debugger)).origin, "written by a debugger");
}

#[test]
fn without_the_first_stack_the_command_is_the_notes() {
    let mut core = core_of(CoreWriter::Kernel);
    core.auxiliary.clear();
    let process = open(&core).image.state.process;
    assert_eq!(process.command, "ruby synthetic.rb");
    assert_eq!(process.environment, None);
}

#[test]
fn mappings_are_those_of_the_process() {
    for writer in WRITERS {
        let core = open(&core_of(writer));
        let find = |at: u64| core.image.state.mappings.find(Address(at)).unwrap().clone();
        assert_eq!(find(STACK).backing, Backing::Stack);
        let code = find(LIBRARY);
        assert_eq!(code.file_name().as_deref(), Some("libx.so.1"));
        assert_eq!((code.file_offset, code.executable, code.writable), (0, true, false));
        assert_eq!((find(LIBRARY + 3 * PAGE).file_offset, find(SHARED).shared), (0x2000, true));
        let guard = find(GUARD);
        assert_eq!((guard.readable, guard.writable), (false, false), "{writer:?}");
        assert!(find(GUARD + PAGE).readable);
        assert!(core.image.state.mappings.find(Address(0x1000)).is_none());
    }
}

/// In the kernel's cores, holes distinguish absent pages from pages of zeros. gdb's cores have no holes.
#[test]
fn pages_are_resident_as_far_as_the_file_tells() {
    for (writer, of_heap) in [(CoreWriter::Kernel, 3), (CoreWriter::Debugger, 2)] {
        let core = open(&core_of(writer));
        assert_eq!(resident(&core, HEAP, 8), of_heap, "{writer:?}");
        assert_eq!(resident(&core, LIBRARY, 2), 0, "the head of a file is dumped anyway");
        assert_eq!(resident(&core, LIBRARY + 2 * PAGE, 2), 1);
        assert_eq!(resident(&core, SHARED, 2), 1);
        let shared = Address(SHARED)..Address(SHARED + PAGE);
        let pages = core.image.state.pages.as_ref().unwrap();
        assert_eq!(pages.runs_in(&shared).next().unwrap().state, PageState::File);
        assert_eq!(read(&core, HEAP, 4), b"heap");
        assert_eq!(read(&core, HEAP + 2 * PAGE + 100, 4), b"more");
        assert_eq!(read(&core, HEAP + PAGE, 4), [0; 4], "absent memory is zeros");
        assert_eq!(read(&core, LIBRARY, 4), b"\x7fELF");
        assert!(read(&core, GUARD, 4).is_empty());
        let evidence = match writer {
            CoreWriter::Kernel => Finding::ResidencyByHoles,
            CoreWriter::Debugger => Finding::ResidencyByContents,
        };
        assert!(has(&core, &evidence));
        let is_unknown = |it: &Finding| matches!(it, Finding::FileResidencyUnknown { .. });
        assert!(core.image.state.findings.iter().any(is_unknown));
        assert!(core.is_partial);
        assert!(has(&core, &missing("/nowhere/libx.so.1 (deleted)")));
    }
}

/// A Ruby that crashed had mapped its executable a second time, to name functions. The memory behind that was taken for the heap, so a
/// chunk of malloc's in it was not found.
#[test]
fn the_heap_follows_the_executable_where_the_program_runs() {
    const AGAIN: u64 = LIBRARY + 0x100_0000;
    let mut memory = process();
    let executable = |start: u64, file_offset: u64| Mapping {
        writable: false,
        file_offset,
        backing: Backing::File("/nowhere/ruby".into()),
        ..Mapping::anonymous(Address(start)..Address(start + PAGE))
    };
    let places = [(HEAP - 4 * PAGE, 0), (HEAP - 3 * PAGE, PAGE), (AGAIN, 0)];
    memory.mappings.extend(places.map(|(start, offset)| executable(start, offset)));
    memory.map(AGAIN + 2 * PAGE, 2 * PAGE);
    memory.mappings.sort_by_key(|mapping| mapping.range.start);
    for writer in [CoreWriter::Kernel, CoreWriter::Debugger] {
        let mut core = SyntheticCore::new(writer, &memory, &[thread(77)]);
        core.auxiliary = auxiliary();
        core.auxiliary.push((3, HEAP - 4 * PAGE + 64));
        let core = open(&core);
        let backing =
            |at: u64| core.image.state.mappings.find(Address(at)).unwrap().backing.clone();
        assert_eq!(backing(HEAP), Backing::Heap, "{writer:?}");
        assert_eq!(backing(AGAIN + 2 * PAGE), Backing::Anonymous, "{writer:?}");
    }
}

#[test]
fn a_file_with_a_strange_name_does_nothing_to_a_terminal() {
    let mut memory = process();
    for mapping in &mut memory.mappings {
        if mapping.file_offset == 0 && mapping.file_name().as_deref() == Some("libx.so.1") {
            mapping.backing = Backing::File("/nowhere/\u{1b}[2Jx.so".into());
        }
    }
    let core = open(&SyntheticCore::new(CoreWriter::Kernel, &memory, &[thread(77)]));
    let findings = &core.image.state.findings;
    assert!(has(&core, &missing("/nowhere/ [2Jx.so")), "{findings:?}");
}

/// Reading such a core used to go on forever.
#[test]
fn a_mapping_that_ends_within_a_page_is_none() {
    let written = written(&core_of(CoreWriter::Kernel));
    let mut bytes = std::fs::read(&written.path).unwrap();
    let stated = [LIBRARY.to_le_bytes(), (LIBRARY + 2 * PAGE).to_le_bytes()].concat();
    let at = bytes.windows(16).position(|words| words == stated).unwrap();
    bytes[at + 8..at + 16].copy_from_slice(&(LIBRARY + 2 * PAGE - 100).to_le_bytes());
    std::fs::write(&written.path, &bytes).unwrap();
    let core = open_core(&written.path, &Sysroot::open(None), VARIABLES).unwrap();
    let mapping = core.image.state.mappings.find(Address(LIBRARY)).unwrap();
    assert_eq!(mapping.backing, Backing::Anonymous);
}

/// cp(1) and pipes write zeros where there were holes.
#[test]
fn a_core_that_lost_its_holes_is_told_by_its_zeros() {
    let written = written(&core_of(CoreWriter::Kernel));
    let bytes = std::fs::read(&written.path).unwrap();
    std::fs::remove_file(&written.path).unwrap();
    std::fs::write(&written.path, bytes).unwrap();
    let core = open_core(&written.path, &Sysroot::open(None), VARIABLES).unwrap();
    assert_eq!(resident(&core, HEAP, 8), 2);
    assert!(has(&core, &Finding::ResidencyByContents));
}

/// gdb writes zeros for memory that it cannot read.
#[test]
fn stacks_that_gdb_could_not_read_are_lost_and_not_zeros() {
    let mut memory = process();
    memory.write(GUARD + PAGE, &[0; 0x100]);
    let core = open(&SyntheticCore::new(CoreWriter::Debugger, &memory, &[thread(77)]));
    assert!(has(&core, &Finding::StacksNotDumped { threads: 1 }));
    assert!(read(&core, GUARD + PAGE, 8).is_empty());
    let core = open(&SyntheticCore::new(CoreWriter::Kernel, &memory, &[thread(77)]));
    assert_eq!(read(&core, GUARD + PAGE, 8), [0; 8]);
}

/// The number of segments then exceeds its field in the header.
#[test]
fn a_process_may_have_more_mappings_than_a_header_counts() {
    let mut memory = process();
    for index in 0..70_000 {
        memory.map(0x1_0000_0000 + index * 2 * PAGE, PAGE);
    }
    memory.write(0x1_0000_0000 + 69_999 * 2 * PAGE, b"last");
    let core = SyntheticCore::new(CoreWriter::Kernel, &memory, &[thread(77)]);
    let core = open(&core);
    assert_eq!(core.image.state.mappings.iter().count(), 70_007);
    assert_eq!(read(&core, 0x1_0000_0000 + 69_999 * 2 * PAGE, 4), b"last");
    assert_eq!(core.origin, "written by the kernel when signal 6 ended the process");
}

#[test]
fn what_was_cut_off_is_lost_and_not_zeros() {
    let written = written(&core_of(CoreWriter::Kernel));
    let whole = std::fs::metadata(&written.path).unwrap().len();
    let file = std::fs::File::options().write(true).open(&written.path).unwrap();
    // The file ends within a page of the stack.
    file.set_len(whole - 10 * PAGE - 100).unwrap();
    let core = open_core(&written.path, &Sysroot::open(None), VARIABLES).unwrap();
    assert!(read(&core, STACK + STACK_BYTES - PAGE, 8).is_empty());
    assert_eq!(read(&core, HEAP, 4), b"heap");
    assert!(has(&core, &Finding::Truncated { bytes: 11 * PAGE }));
    assert_eq!(resident(&core, STACK + STACK_BYTES - 11 * PAGE, 11), 0);
}

#[test]
fn private_memory_that_was_not_to_be_dumped_is_lost() {
    let mut core = core_of(CoreWriter::Kernel);
    core.not_dumped = vec![HEAP, STACK, GUARD + PAGE];
    let core = open(&core);
    assert!(read(&core, HEAP, 4).is_empty());
    assert!(core.image.state.findings.iter().any(|it| matches!(it, Finding::NotDumped { .. })));
    // The core contains the threads' stacks, so private memory that it lacks was never written to.
    let mut core = core_of(CoreWriter::Kernel);
    core.not_dumped = vec![HEAP];
    assert_eq!(read(&open(&core), HEAP, 4), [0; 4]);
}

#[test]
fn a_file_that_is_not_a_core_is_rejected_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for (bytes, said) in [
        (&b""[..], "it is empty"),
        (b"GIF89a", "does not begin as an ELF file"),
        (b"\x7fELF", "in the middle of its header"),
        (b"\x28\xb5\x2f\xfd____", "unpack it with zstd -d"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let told = error(&path).to_string();
        assert!(told.contains("file is not a core file") && told.contains(said), "{told}");
    }
    assert!(error(folder.path()).to_string().contains("it is a folder"));
    let told = error(&folder.path().join("absent")).to_string();
    assert!(told.contains("absent: No such file"), "{told}");
    let mut core = core_of(CoreWriter::Kernel);
    core.kind = 3;
    let program = written(&core);
    assert!(error(&program.path).to_string().contains("it is a program or a library"));
    let mut core = core_of(CoreWriter::Kernel);
    core.machine = 243;
    let told = error(&written(&core).path).to_string();
    assert!(told.contains("is the core of a program for riscv; rbloat reads those of"), "{told}");
}

#[test]
fn a_core_states_its_cpu() {
    for (machine, cpu) in [(62, Cpu::X86_64), (183, Cpu::Aarch64)] {
        let mut core = core_of(CoreWriter::Kernel);
        core.machine = machine;
        let core = open(&core);
        assert_eq!(core.image.state.machine.cpu, cpu);
        let [first, _] = &core.image.state.threads[..] else { panic!("it has two threads") };
        let Thread { thread_pointer, stack_pointer, registers, .. } = thread(77);
        assert_eq!((first.cpu, first.thread_pointer), (cpu, thread_pointer));
        assert_eq!(first.stack_pointer, stack_pointer);
        assert!(first.registers.starts_with(&registers));
    }
}

#[test]
fn a_core_states_the_size_of_its_pages() {
    for kibibytes in [16, 64] {
        let machine = Machine::new(Cpu::OWN, kibibytes << 10).unwrap();
        let page = machine.page_size;
        let mut memory = SyntheticMemory::default();
        memory.machine = machine;
        memory.map(HEAP & !(page - 1), 8 * page);
        let heap = memory.mappings[0].range.start.0;
        // A page has contents in its first 4 KiB, and another one in its last.
        memory.write(heap, b"heap");
        memory.write(heap + 3 * page - 4, b"more");
        for writer in [CoreWriter::Kernel, CoreWriter::Debugger] {
            let core = open(&SyntheticCore::new(writer, &memory, &[thread(77)]));
            assert_eq!(core.image.state.machine, machine);
            let pages = core.image.state.pages.as_ref().unwrap();
            let runs: Vec<_> =
                pages.iter().map(|run| (run.range.start.0, length(&run.range))).collect();
            assert_eq!(runs, [(heap, page), (heap + 2 * page, page)], "{writer:?}");
            assert_eq!(read(&core, heap + 3 * page - 4, 4), b"more");
        }
    }
}

#[test]
fn a_core_with_pages_that_no_kernel_has_is_damaged() {
    for bytes in [0, 1, 8 << 10, 2 << 20, u64::MAX] {
        let mut core = core_of(CoreWriter::Kernel);
        core.auxiliary.retain(|&(key, _)| key != 6);
        core.auxiliary.push((6, bytes));
        let told = error(&written(&core).path).to_string();
        assert!(told.contains(&format!("no kernel has pages of {bytes} bytes")), "{told}");
    }
}

#[test]
fn a_core_without_its_headers_is_damaged() {
    let written = written(&core_of(CoreWriter::Kernel));
    let file = std::fs::File::options().write(true).open(&written.path).unwrap();
    file.set_len(100).unwrap();
    let told = error(&written.path).to_string();
    assert!(told.contains("is damaged: it ends before its program headers do"), "{told}");
}

/// Reads all memory that a walker might read, which must end.
fn look_at_everything(core: &Core) {
    let mut bytes = [0; 256];
    for mapping in &core.image.state.mappings {
        for at in [mapping.range.start, mapping.range.end.before(PAGE), mapping.range.end.before(1)]
        {
            core.image.read(at, &mut bytes);
        }
    }
    let _ = image::elf::modules(&core.image);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(testkit::cases(100)))]

    #[test]
    fn an_altered_core_is_read_or_refused(
        is_kernels in any::<bool>(),
        changes in prop::collection::vec((0_usize..0x2800, prop_oneof![
            Just(0), Just(1), Just(0x7f), Just(0x80), Just(0xff), any::<u8>()
        ]), 1..12),
        end in prop::option::weighted(0.3, 0_u64..0x60_0000),
    ) {
        let writer = if is_kernels { CoreWriter::Kernel } else { CoreWriter::Debugger };
        let written = written(&core_of(writer));
        let mut bytes = std::fs::read(&written.path).unwrap();
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        std::fs::write(&written.path, &bytes).unwrap();
        if let Some(end) = end {
            std::fs::File::options().write(true).open(&written.path).unwrap().set_len(end).unwrap();
        }
        match open_core(&written.path, &Sysroot::open(None), VARIABLES) {
            Ok(core) => look_at_everything(&core),
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }
}
