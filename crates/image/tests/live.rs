//! Captures of real processes.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use image::{Memory, elf, freeze, freeze_target, look};
use linux::arch::Cpu;
use linux::proc::wait_until_untraced;
use linux::{Address, Error, PATIENCE};
use testkit::{Target, compile};

const THREADS: &str = "
  30.times { Thread.new { s = []; loop { s << 'x' * rand(4096); s.shift if s.size > 99 } } }
  puts 'ready {}'; $stdout.flush; $stdin.read";

fn thread_states(pid: i32) -> Vec<char> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let state = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    };
    tasks.filter_map(|task| state(task.unwrap())).filter(|state| *state != 'Z').collect()
}

#[test]
fn the_resident_pages_are_the_rss_of_the_stopped_process() {
    let target = Target::bare_ruby(THREADS);
    for _ in 0..20 {
        let frozen = freeze(target.pid(), PATIENCE).unwrap();
        let truth = target.rss_bytes();
        let state = &frozen.image().state;
        let everything = Address(0)..Address(u64::MAX);
        assert_eq!(state.pages.as_ref().unwrap().resident_bytes(&everything), truth);
        // The kernel's other count is less exact on machines with many processors, before Linux 6.16.
        let bounds = state.rss_bounds.as_ref().unwrap();
        assert!(bounds.contains(&truth), "{bounds:?} {truth}");
        frozen.thaw().unwrap();
    }
    assert!(target.finish());
}

/// A report counted guard pages, which every thread's stack has from glibc 2.42 on, as swapped.
#[test]
fn guard_pages_of_a_process_are_neither_swapped_nor_read() {
    let target = Target::bare_ruby(
        "require 'fiddle'
         pointer, long, int = Fiddle::TYPE_VOIDP, Fiddle::TYPE_LONG, Fiddle::TYPE_INT
         libc = Fiddle.dlopen(nil)
         map = Fiddle::Function.new(libc['mmap'], [pointer, long, int, int, int, long], pointer)
         advise = Fiddle::Function.new(libc['madvise'], [pointer, long, int], int)
         at = map.call(nil, 1 << 20, 3, 0x22, -1, 0)
         at[0, 1 << 20] = 'x' * (1 << 20)
         guards = advise.call(at, 1 << 18, 102).zero? # MADV_GUARD_INSTALL
         puts \"ready {\\\"at\\\": #{guards ? at.to_i : 0}}\"; $stdout.flush; $stdin.read",
    );
    let at = target.number("at");
    if at == 0 {
        return testkit::skip("this kernel has no guard pages (Linux 6.13)");
    }
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let image = frozen.image();
    assert_eq!(image.state.swap_bytes(), target.swap_bytes());
    assert_eq!(image.read(Address(at), &mut [0; 16]), 0);
    let mut behind = [0; 16];
    assert_eq!(image.read(Address(at + (1 << 18)), &mut behind), 16);
    assert_eq!(behind, [b'x'; 16]);
    drop(frozen);
    assert!(target.finish());
}

#[test]
fn reading_maps_no_page_into_the_target() {
    let target = Target::bare_ruby(THREADS);
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let before = target.rss_bytes();
    let image = frozen.image();
    let mut bytes = vec![0; 1 << 20];
    let mut read = 0;
    for mapping in image.state.mappings.iter().filter(|mapping| mapping.readable) {
        let length = linux::length(&mapping.range).min(bytes.len() as u64) as usize;
        read += image.read(mapping.range.start, &mut bytes[..length]);
    }
    assert!(read > 10 << 20, "{read} bytes");
    assert_eq!(target.rss_bytes(), before);
}

#[test]
fn every_thread_stands_and_no_signal_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("signals", folder.path(), &["-pthread"]);
    let mut target = Target::start(&mut testkit::command(program));
    let signal = i32::try_from(target.number("signal")).unwrap();
    let mut sent = 0;
    for _ in 0..200 {
        for _ in 0..5 {
            target.signal(signal);
            sent += 1;
        }
        let frozen = freeze(target.pid(), PATIENCE).unwrap();
        let states = thread_states(target.pid());
        assert!(states.iter().all(|&state| state == 't'), "{states:?}");
        assert_eq!(states.len(), frozen.image().state.threads.len());
        frozen.thaw().unwrap();
    }
    target.tell("");
    let truth = target.next_truth();
    assert_eq!(truth["received"], sent);
    assert!(truth["made"].as_u64().unwrap() > 0, "no thread was made meanwhile");
    assert!(target.finish());
}

/// In a process that keeps starting and ending threads, a thread was sometimes left running: the listed threads had
/// ended, and the thread that they had started was not searched for.
#[test]
fn a_thread_that_ends_during_a_look_leaves_none_running() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("chains", folder.path(), &["-pthread"]);
    let target = Target::start(&mut testkit::command(program));
    for _ in 0..200 {
        let frozen = freeze(target.pid(), PATIENCE).unwrap();
        let states = thread_states(target.pid());
        assert!(states.iter().all(|&state| state == 't'), "{states:?}");
        assert_eq!(states.len(), frozen.image().state.threads.len());
        frozen.thaw().unwrap();
    }
    assert!(target.finish());
}

#[test]
fn a_stopped_process_stays_stopped() {
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    target.stop();
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    assert!(target.status("State:").starts_with('t'));
    frozen.thaw().unwrap();
    target.wait_until_stopped();
    target.go_on();
    assert!(target.finish());
}

#[test]
fn a_target_that_dies_while_it_is_looked_at_is_an_error() {
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    target.signal(9);
    while thread_states(target.pid()).contains(&'t') {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(frozen.thaw(), Err(Error::Ended { .. })));
}

/// It had the start time of the program before, so the memory of one was read by the mappings of the other.
#[test]
fn a_program_that_was_replaced_by_an_exec_is_not_read() {
    // Each exec has the same arguments and environment, so without random addresses only the random bytes differ.
    let script = r#"echo 'ready {}'; read line; exec sh -c "$SCRIPT""#;
    for random in [true, false] {
        let mut command = testkit::command(if random { "sh" } else { "setarch" });
        if !random {
            command.args(["-R", "sh"]);
        }
        let mut target = Target::start(command.args(["-c", script]).env("SCRIPT", script));
        target.tell("");
        target.next_truth();
        let vector = || fs::read(format!("/proc/{}/auxv", target.pid())).unwrap();
        let (examined, before) = (
            image::Target::open(target.pid(), linux::WantedVariables::default()).unwrap(),
            vector(),
        );
        freeze_target(&examined, PATIENCE).unwrap().thaw().unwrap();
        target.tell("");
        target.next_truth();
        let vector = || fs::read(format!("/proc/{}/auxv", target.pid())).unwrap();
        assert_eq!(before == vector(), !random);
        let refused = freeze_target(&examined, PATIENCE).map(drop).unwrap_err();
        assert!(refused.to_string().contains("became another program"), "{refused}");
        freeze(target.pid(), PATIENCE).unwrap().thaw().unwrap();
    }
}

/// A process that computes was read while it was paused, which took 50 ms for the smallest one.
#[test]
fn a_copy_has_what_the_process_has_changed_since() {
    let mut target = Target::bare_ruby(
        "require 'fiddle'
         text = 'before, ' * 400_000
         puts %({\"at\": #{Fiddle::Pointer[text].to_i}}).prepend('ready '); $stdout.flush
         $stdin.gets
         text.bytesize.times { |at| text.setbyte(at, 0x58) if at % 4096 == 0 }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let (at, bytes) = (Address(target.number("at")), 3_200_000);
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let room = frozen.changeable_bytes();
    assert!(room >= bytes && room <= target.rss_bytes());
    let before = frozen.image().read_u64(at);
    let copied = frozen.copy(vec![1; room as usize]).unwrap();
    assert!(!copied.expired);
    target.tell("");
    target.next_truth();
    let live = freeze(target.pid(), PATIENCE).unwrap();
    let mut text = vec![0; bytes as usize];
    live.image().read_exact(at, &mut text).unwrap();
    assert_eq!(text[..8], *b"Xefore, ");
    live.thaw().unwrap();
    copied.image.read_exact(at, &mut text).unwrap();
    assert!(text.chunks(8).all(|part| part == b"before, "));
    assert_eq!((copied.image.read_u64(at), before.is_ok()), (before, true));
    // The symbols of libraries come from their files.
    let modules = elf::modules(&copied.image);
    assert!(
        modules
            .iter()
            .any(|it| it.symbol(&copied.image, "rb_cObject").is_ok_and(|it| it.is_some()))
    );
    assert!(target.finish());
}

#[test]
fn what_cannot_be_looked_at_is_named() {
    let of = |pid| freeze(pid, PATIENCE).map(drop).unwrap_err();
    assert!(matches!(of(0x3fff_ffff), Error::NoSuchProcess { .. }));
    assert!(matches!(of(-1), Error::NoSuchProcess { .. }));
    assert!(matches!(of(std::process::id().cast_signed()), Error::Itself { .. }));
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        assert!(matches!(of(2), Error::KernelThread { .. }));
    } else {
        testkit::skip("in part: no thread of the kernel is visible here");
    }

    let mut ended = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
    let pid = ended.id().cast_signed();
    while !thread_states(pid).is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let zombie = of(pid).to_string();
    assert!(zombie.contains("zombie"), "{zombie}");
    ended.wait().unwrap();
}

/// An exec waits until the tracer of the ended threads has noticed their end, and a tracer that seizes another thread meanwhile
/// waits for the exec. Both waited until the pause reached its limit, or for ever.
#[test]
fn a_process_whose_threads_make_execs_hangs_neither_itself_nor_us() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("execs", folder.path(), &["-pthread"]);
    let target = Target::start(&mut testkit::command(program));
    let (mut frozen, mut replaced) = (0, 0);
    while frozen < 300 || replaced == 0 {
        frozen += 1;
        match freeze(target.pid(), PATIENCE).map(drop) {
            Err(error @ Error::DoesNotStop { .. }) => panic!("{error}"),
            Err(Error::Ended { how: "became another program", .. }) => replaced += 1,
            _ => {}
        }
    }
}

#[test]
fn a_thread_is_no_process() {
    let target = Target::bare_ruby(THREADS);
    let mut tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
    let tid = tasks
        .find_map(|task| {
            let tid: i32 = task.unwrap().file_name().to_str()?.parse().ok()?;
            (tid != target.pid()).then_some(tid)
        })
        .unwrap();
    let error = freeze(tid, PATIENCE).map(drop).unwrap_err();
    assert!(matches!(error, Error::Thread { process, .. } if process == target.pid()), "{error}");
}

#[test]
fn a_process_that_is_traced_already_is_an_error_and_not_a_hang() {
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let pid = target.pid();
    let second = std::thread::spawn(move || freeze(pid, PATIENCE).map(drop).unwrap_err());
    assert!(matches!(second.join().unwrap(), Error::Traced { .. }));
    assert!(!wait_until_untraced(pid, Duration::from_millis(10)));
    let waits = std::thread::spawn(move || wait_until_untraced(pid, Duration::from_hours(1)));
    frozen.thaw().unwrap();
    assert!(waits.join().unwrap());
    assert!(target.finish());
}

#[test]
fn symbols_and_thread_local_offsets_come_from_the_targets_memory() {
    let target = Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let image = look(target.pid()).unwrap();
    let modules = elf::modules(&image);
    let module = |prefix: &str| modules.iter().find(|module| module.name.starts_with(prefix));
    // A static Ruby is the executable itself.
    let ruby = module("libruby").or_else(|| module("ruby")).unwrap();
    let version = ruby.symbol(&image, "ruby_version").unwrap().expect("Ruby exports it");
    let version = image.read_c_string(version.address, 64).unwrap();
    assert!(version[0].is_ascii_digit() && version[1] == b'.', "{version:?}");
    assert_eq!(ruby.symbol(&image, "no_such_symbol").unwrap(), None);
    // Up to 2.33, the name of the file contains the version.
    let libc = module("libc.so").or_else(|| module("libc-2")).unwrap();
    let offsets = libc.tls_offsets(&image).unwrap();
    let pointer = Address(1 << 20);
    let are_below = Cpu::OWN.thread_locals(pointer, 8).start < pointer;
    assert!(offsets.len() > 3 && offsets.iter().all(|&it| (it < 0) == are_below), "{offsets:?}");
    assert!(!libc.writable.is_empty());
}

/// The names of the modules that own the variable at `at`.
fn owners_of(modules: &[elf::Module], at: u64) -> Vec<&str> {
    let has = |module: &&elf::Module| module.variables.iter().any(|it| it.contains(&Address(at)));
    modules.iter().filter(has).map(|module| module.name.as_str()).collect()
}

#[test]
fn a_variable_that_the_executable_copied_belongs_to_its_library() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = compile("linked", folder.path(), &["-no-pie", "-fno-pie"]);
    let target = Target::start(&mut testkit::command(&program));
    let environ = target.truth["environ"].as_u64().unwrap();
    let modules = elf::modules(&look(target.pid()).unwrap());
    assert_eq!(modules[0].name, "linked");
    let within = |it: &std::ops::Range<Address>| it.contains(&Address(environ));
    assert!(modules[0].writable.iter().any(within), "the linker made no copy");
    let owners = owners_of(&modules, environ);
    assert!(owners.len() == 1 && owners[0].starts_with("libc"), "{owners:?}");
    assert!(target.finish());
}

/// Its hash table has no symbols, so it does not tell how many undefined ones there are.
#[test]
fn references_of_a_program_that_exports_nothing_are_found() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = compile("linked", folder.path(), &["-fPIC", "-no-pie"]);
    let target = Target::start(&mut testkit::command(&program));
    let image = look(target.pid()).unwrap();
    let modules = elf::modules(&image);
    assert_eq!(modules[0].symbol(&image, "environ"), Ok(None), "the linker made a copy");
    assert_eq!(modules[0].references(&image, "malloc").unwrap().len(), 1);
    assert_eq!(modules[0].references(&image, "no_such_function"), Ok(vec![]));
    assert!(target.finish());
}

#[test]
fn copied_variables_are_cut_out_of_the_executables() {
    const EXECUTABLE: u64 = 0x40_0000;
    const LIBRARIES: [u64; 2] = [0x7f00_0000_0000, 0x7f00_1000_0000];
    let mut memory = testkit::SyntheticMemory::default();
    memory.map(0x50_0000, 4096);
    let mut executable = testkit::ElfModule::new("/bin/program", EXECUTABLE, 4096);
    let own = [executable.variables(None, &[1; 4]), executable.copy("environ", 7)];
    let own = [own[0], own[1], executable.copy("nowhere", 8), executable.variables(None, &[2])];
    executable.link(&mut memory, 0x50_0000, &[EXECUTABLE, LIBRARIES[1], LIBRARIES[0]], false);
    executable.write(&mut memory);
    for (base, path) in LIBRARIES.into_iter().zip(["/lib/late.so", "/lib/early.so"]) {
        let mut library = testkit::ElfModule::new(path, base, 4096);
        library.variables(Some("environ"), &[9]);
        library.write(&mut memory);
    }
    let modules = elf::modules(&memory.image());
    let names: Vec<_> = modules.iter().map(|module| module.name.as_str()).collect();
    assert_eq!(names, ["program", "early.so", "late.so"]);
    let owners = own.map(|at| owners_of(&modules, at));
    assert_eq!(owners, [["program"], ["early.so"], ["program"], ["program"]]);
}

#[test]
fn a_thread_whose_name_is_no_text_is_stopped_too() {
    let target = Target::bare_ruby(
        "thread = Thread.new { Thread.current.name = 'a' * 14 + 'é'; s = nil; loop { s = 'x' * rand(4096) } }
         Thread.pass until thread.name
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap().count();
    for _ in 0..5 {
        let frozen = freeze(target.pid(), PATIENCE).unwrap();
        assert_eq!(frozen.image().state.threads.len(), tasks);
        frozen.thaw().unwrap();
    }
    assert!(target.finish());
}
