//! Forked copies: their contents, and their effects on the target.

use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use image::{Image, Memory, elf, freeze, look};
use inferior::{CallOutcome, Error, ForkPlan, ForkedCopy, FunctionCall, MemoryLimits, Refusal};
use linux::{Address, PATIENCE};
use testkit::Target;

/// The signal for which CRuby has a handler that does nothing.
const SIGNAL: i32 = libc::SIGVTALRM;

const WAITING: &str = "
  Thread.new { sleep }
  puts 'ready {}'; $stdout.flush; $stdin.read";

/// The target as rbloat examines it, and the plan of a copy.
fn plan(target: &Target) -> Result<(image::Target, ForkPlan), Refusal> {
    let examined = image::Target::open(target.pid(), linux::WantedVariables::default()).unwrap();
    let limits = MemoryLimits::of(&examined)?;
    let plan = ForkPlan::make(&examined, examined.pause_factors(), &limits, SIGNAL, 0)?;
    Ok((examined, plan))
}

fn fork(target: &Target) -> ForkedCopy {
    let (examined, plan) = plan(target).unwrap();
    loop {
        match inferior::fork(&examined, PATIENCE, &plan).unwrap() {
            Ok(forked) => return forked,
            // The target is ready, but may not wait yet. Then the only thread that waits may be one with a filter.
            Err(Refusal::NoSafePoint | Refusal::Seccomp) => {}
            Err(refusal) => panic!("{refusal}"),
        }
    }
}

/// Returns the reason why no copy is made of the target when it waits. The target continues.
fn refusal(target: &Target) -> Refusal {
    let (examined, plan) = match plan(target) {
        Ok(plan) => plan,
        Err(refusal) => return refusal,
    };
    loop {
        match inferior::fork(&examined, PATIENCE, &plan).unwrap() {
            Ok(_) => panic!("a copy was made"),
            Err(Refusal::NoSafePoint) => {}
            Err(refusal) => return refusal,
        }
    }
}

/// A call of getppid(2).
fn harmless_call(image: &Image<'_>) -> FunctionCall<'static> {
    let modules = elf::modules(image);
    let getppid = modules.iter().find_map(|it| it.symbol(image, "getppid").ok().flatten());
    let function = getppid.unwrap().address;
    FunctionCall { function, arguments: &[], system_calls: &[] }
}

/// Becomes another Ruby program when its input has a line.
const EXECS: &str = "
  Thread.new { sleep }
  puts 'ready {}'; $stdout.flush; $stdin.gets
  require 'rbconfig'
  exec RbConfig.ruby, '-e', %q(Thread.new { sleep }; puts 'ready {}'; $stdout.flush; $stdin.read)";

#[test]
fn a_process_that_became_another_program_since_it_was_looked_at_is_not_touched() {
    let mut target = Target::bare_ruby(EXECS);
    let (examined, plan) = plan(&target).unwrap();
    let call = harmless_call(examined.image());
    target.tell("");
    target.next_truth();
    let refused = inferior::fork(&examined, PATIENCE, &plan).map(drop).unwrap_err();
    assert!(refused.to_string().contains("became another program"), "{refused}");
    let called = inferior::call(examined.program(), SIGNAL, call, PATIENCE, PATIENCE);
    assert_eq!(called, Err(Refusal::OtherProgram));
    fork(&target).end().unwrap();
    assert!(target.finish());
}

/// The end of a thread is a reason to try again, the end of the process is not.
#[test]
fn the_wait_for_a_safe_point_ends_with_the_process() {
    let target = Target::bare_ruby(WAITING);
    let image = look(target.pid()).unwrap();
    let call = harmless_call(&image);
    let status = format!("/proc/{}/status", target.pid());
    // SAFETY: kill(2) takes numbers.
    assert_eq!(unsafe { libc::kill(target.pid(), libc::SIGKILL) }, 0);
    while !fs::read_to_string(&status).unwrap().contains("State:\tZ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    let called = inferior::call(&image.state.program, SIGNAL, call, PATIENCE, PATIENCE);
    assert_eq!(called, Err(Refusal::OtherProgram));
}

/// The system call that reaps the copy was made at an address of the program before.
#[test]
fn a_process_that_becomes_another_program_while_its_copy_is_read_runs_on() {
    let mut target = Target::bare_ruby(EXECS);
    let forked = fork(&target);
    target.tell("");
    target.next_truth();
    assert_eq!(forked.end().unwrap().left, Some(Refusal::OtherProgram));
    // The next copy lets both be reaped.
    assert_eq!(fork(&target).end().unwrap().left, None);
    assert!(target.finish());
}

/// The kernel goes on with poll(2), and with waits that have a timeout, by another system call. An earlier freeze is such a stop.
#[test]
fn a_process_that_was_stopped_while_it_waited_is_copied() {
    let target = Target::bare_ruby(
        "require 'fiddle'
         int = Fiddle::TYPE_INT
         poll = Fiddle::Function.new(Fiddle::Handle::DEFAULT['poll'], [Fiddle::TYPE_VOIDP, Fiddle::TYPE_LONG, int], int)
         puts 'ready {}'; $stdout.flush
         nil until poll.call([0, 1, 0].pack('iss'), 1, -1) > 0",
    );
    let call = || {
        let line = fs::read_to_string(format!("/proc/{}/syscall", target.pid())).unwrap();
        line.split(' ').next().and_then(|number| number.parse::<i64>().ok())
    };
    testkit::wait_until_asleep(target.pid());
    while call() != Some(libc::SYS_restart_syscall) {
        target.stop();
        target.go_on();
        testkit::wait_until_asleep(target.pid());
    }
    let (examined, plan) = plan(&target).unwrap();
    inferior::fork(&examined, PATIENCE, &plan).unwrap().unwrap().end().unwrap();
    assert!(target.finish());
}

#[test]
fn a_copy_keeps_what_the_target_changes_meanwhile() {
    let mut target = Target::bare_ruby(
        "require 'fiddle'
         $text = 'a' * (1 << 20)
         Thread.new { sleep }
         puts \"ready {\\\"at\\\": #{Fiddle::Pointer[$text].to_i}}\"; $stdout.flush
         $stdin.gets
         (0...$text.bytesize).each { |index| $text.setbyte(index, 98) }
         puts 'ready {}'; $stdout.flush
         $stdin.read",
    );
    let at = Address(target.number("at"));
    let forked = fork(&target);
    let everything = Address(0)..Address(u64::MAX);
    let pages = forked.image().state.pages.clone().unwrap();
    let resident = pages.resident_bytes(&everything);
    target.tell("");
    target.next_truth();
    let mut bytes = vec![0; 1 << 20];
    assert_eq!(forked.image().read(at, &mut bytes), 1 << 20);
    assert!(bytes.iter().all(|&byte| byte == b'a'));
    let ended = forked.end().unwrap();
    assert_eq!(ended.left, None);
    let pages = ended.state.pages.unwrap();
    assert_eq!(pages.resident_bytes(&everything), resident);
    assert!(target.finish());
}

#[test]
fn the_pages_of_a_copy_are_those_of_the_target() {
    let target = Target::bare_ruby(
        "4.times { Thread.new { Array.new(10_000) { 'x' * 3000 }; nil }.join }
         GC.start
         Thread.new { sleep }
         puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    let everything = Address(0)..Address(u64::MAX);
    let forked = fork(&target);
    let by_copy = forked.image().state.pages.as_ref().unwrap().resident_bytes(&everything);
    forked.end().unwrap();
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let by_freeze = frozen.image().state.pages.as_ref().unwrap().resident_bytes(&everything);
    frozen.thaw().unwrap();
    // An interrupted thread has run for a moment.
    assert!(by_copy.abs_diff(by_freeze) <= 8 * 4096, "{by_copy} {by_freeze}");
    assert!(target.finish());
}

#[test]
fn what_is_copied_for_the_target_is_counted() {
    let mut target = Target::bare_ruby(
        "text = 'a' * (8 << 20)
         Thread.new { sleep }
         puts 'ready {}'; $stdout.flush
         $stdin.gets
         (0...(8 << 20)).step(4096) { |at| text.setbyte(at, 98) }
         puts 'ready {}'; $stdout.flush
         $stdin.read",
    );
    let forked = fork(&target);
    target.tell("");
    target.next_truth();
    let copied = forked.end().unwrap().copied_bytes.unwrap();
    assert!((8 << 20..12 << 20).contains(&copied), "{copied}");
    assert!(target.finish());
}

#[test]
fn the_target_does_not_notice_its_copy() {
    // It closes a pipe, takes and releases locks, and waits for children, all with the same results as without a copy.
    let mut target = Target::bare_ruby(
        "$heard = 0
         trap('CHLD') { $heard += 1 }
         at_exit { puts 'ready {\"hook\": 1}' }
         Thread.new { sleep }
         reader, writer = IO.pipe
         file = File.open('/dev/null')
         file.flock(File::LOCK_EX)
         puts 'ready {}'; $stdout.flush
         $stdin.gets
         writer.close
         rest = reader.read
         file.close
         File.open('/dev/null').flock(File::LOCK_EX | File::LOCK_NB) or abort 'locked'
         children = Process.waitall.size
         puts \"ready {\\\"rest\\\": #{rest.size}, \\\"children\\\": #{children}, \\\"heard\\\": #{$heard}}\"
         $stdout.flush
         $stdin.gets
         puts \"ready {\\\"heard\\\": #{$heard}}\"
         $stdout.flush
         exit!(0)",
    );
    let forked = fork(&target);
    target.tell("");
    let truth = target.next_truth();
    assert_eq!(truth, serde_json::json!({"rest": 0, "children": 0, "heard": 0}));
    assert_eq!(forked.end().unwrap().left, None);
    let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
    for task in tasks {
        let children = fs::read_to_string(task.unwrap().path().join("children")).unwrap();
        assert_eq!(children, "");
    }
    target.tell("");
    assert_eq!(target.next_truth(), serde_json::json!({"heard": 0}));
    assert!(target.finish());
}

#[test]
fn a_call_that_waits_goes_on_without_a_sign_of_the_copy() {
    let folder = tempfile::tempdir().unwrap();
    let program = testkit::compile("waits", folder.path(), &["-pthread"]);
    for call in ["read", "accept", "wait"] {
        let mut target = Target::start(testkit::command(&program).arg(call));
        for _ in 0..3 {
            assert_eq!(fork(&target).end().unwrap().left, None);
        }
        target.tell("");
        assert_eq!(target.next_truth(), serde_json::json!({"interrupted": 0}), "{call}");
    }
}

#[test]
fn a_copy_that_is_killed_is_an_error_and_leaves_nothing() {
    let target = Target::bare_ruby(WAITING);
    let forked = fork(&target);
    let children = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
        let read = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap();
        tasks.map(|task| read(task.unwrap())).collect::<String>()
    };
    let copy: i32 = children().trim().parse().unwrap();
    testkit::command("sh").args(["-c", &format!("kill -9 {copy}")]).status().unwrap();
    let is_dead = || fs::read_to_string(format!("/proc/{copy}/stat")).unwrap().contains(") Z ");
    while !is_dead() {
        std::thread::yield_now();
    }
    assert!(matches!(forked.end(), Err(Error::CopyKilled { .. })));
    assert_eq!(children(), "");
    assert!(target.finish());
}

#[test]
fn a_target_that_is_stopped_is_not_touched() {
    let target = Target::bare_ruby(WAITING);
    target.stop();
    assert_eq!(refusal(&target), Refusal::Suspended);
    target.go_on();
    fork(&target).end().unwrap();
    assert!(target.finish());
}

#[test]
fn a_process_without_the_handler_is_not_touched() {
    let sleeper = Target::start(testkit::command("sh").args(["-c", "echo 'ready {}'; read line"]));
    assert_eq!(refusal(&sleeper), Refusal::NoHandler { signal: SIGNAL });
    drop(sleeper);
}

/// The kernel kills a process that writes to a copied huge page if it has no other one for it. The memory was read as zeros.
#[test]
fn private_memory_of_hugetlbfs_is_read_but_not_copied() {
    let target = Target::bare_ruby(
        "require 'fiddle'
         pointer, long, int = Fiddle::TYPE_VOIDP, Fiddle::TYPE_LONG, Fiddle::TYPE_INT
         map = Fiddle::Function.new(Fiddle.dlopen(nil)['mmap'], [pointer, long, int, int, int, long], pointer)
         bytes = File.read('/proc/meminfo')[/^Hugepagesize: +(\\d+)/, 1].to_i * 1024
         private_anonymous_hugetlb = 0x40022
         at = map.call(nil, bytes, 3, private_anonymous_hugetlb, -1, 0)
         found = bytes > 0 && ![-1, 2**64 - 1].include?(at.to_i)
         at[0, 4] = 'huge' if found
         Thread.new { sleep }
         puts \"ready {\\\"at\\\": #{found ? at.to_i : 0}}\"; $stdout.flush; $stdin.read",
    );
    let at = target.number("at");
    if at == 0 {
        return testkit::skip("no huge page of hugetlbfs is free");
    }
    assert_eq!(refusal(&target), Refusal::HugePages);
    let frozen = freeze(target.pid(), PATIENCE).unwrap();
    let mut bytes = [0; 8];
    assert_eq!(frozen.image().read(Address(at), &mut bytes), 8);
    assert_eq!(&bytes, b"huge\0\0\0\0");
    drop(frozen);
    assert!(target.finish());
}

#[test]
fn a_process_under_seccomp_is_copied_if_its_filter_is_known_to_allow_it() {
    let folder = tempfile::tempdir().unwrap();
    let library = testkit::compile("seccomp", folder.path(), &["-shared", "-fPIC"]);
    let mut command = testkit::ruby();
    command.args(["-e", WAITING]).env("LD_PRELOAD", library);
    let target = Target::start(&mut command);
    if fs::read_to_string("/proc/self/status").unwrap().contains("CapEff:\t0000000000000000") {
        assert_eq!(refusal(&target), Refusal::Seccomp);
        return testkit::skip("the filters of a process cannot be read here");
    }
    fork(&target).end().unwrap();
    assert!(target.finish());
    let target = Target::start(command.env("SECCOMP_KILLS", "1"));
    assert_eq!(refusal(&target), Refusal::Seccomp);
    assert!(target.finish());
}

/// Only a worker thread, which would notice a signal the least, has a filter. The filter kills the process for the
/// system call `KILLED`.
const FILTERED_WORKER: &str = r#"
  require 'fiddle'
  numbers = [Fiddle::TYPE_INT] + [Fiddle::TYPE_LONG] * 4
  prctl = Fiddle::Function.new(Fiddle.dlopen(nil)['prctl'], numbers, Fiddle::TYPE_INT)
  filter = [[0x20, 0, 0, 0], [0x15, 0, 1, KILLED], [0x06, 0, 0, 0x8000_0000], [0x06, 0, 0, 0x7fff_0000]]
  filter = Fiddle::Pointer[filter.map { |step| step.pack('SCCL') }.join]
  program = Fiddle::Pointer[[4].pack('Q') + [filter.to_i].pack('Q')]
  Thread.new do
    prctl.call(38, 1, 0, 0, 0)
    abort 'no filter' unless prctl.call(22, 2, program.to_i, 0, 0).zero?
    puts 'ready {}'; $stdout.flush; Queue.new.pop
  end
  $stdin.read"#;

#[test]
fn a_thread_with_a_filter_of_its_own_neither_makes_nor_reaps_a_copy() {
    for killed in [libc::SYS_clone, libc::SYS_wait4] {
        let target = Target::bare_ruby(&FILTERED_WORKER.replace("KILLED", &killed.to_string()));
        let filtered = |task: &fs::DirEntry| {
            let status = fs::read_to_string(task.path().join("status")).unwrap();
            status.contains("Seccomp:\t2")
        };
        let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
        assert_eq!(tasks.map(Result::unwrap).filter(filtered).count(), 1);
        assert_eq!(target.status("Seccomp:"), "0");
        for _ in 0..5 {
            assert_eq!(fork(&target).end().unwrap().left, None);
        }
        assert!(target.finish());
    }
}

#[test]
fn a_limit_of_processes_is_reported_as_the_kernels_reason() {
    let folder = format!("/sys/fs/cgroup/pids/rbloat-test-{}", std::process::id());
    if fs::create_dir(&folder).is_err() {
        return testkit::skip("not root, or no control groups of version 1");
    }
    let target = Target::bare_ruby(WAITING);
    fs::write(format!("{folder}/cgroup.procs"), target.pid().to_string()).unwrap();
    let now = fs::read_to_string(format!("{folder}/pids.current")).unwrap();
    fs::write(format!("{folder}/pids.max"), now).unwrap();
    let refused = refusal(&target);
    assert!(target.finish());
    while fs::remove_dir(&folder).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(matches!(refused, Refusal::Kernel { call: "clone", .. }), "{refused}");
}

#[test]
fn a_memory_limit_without_room_is_a_refusal_before_the_target_is_stopped() {
    let Some(group) = testkit::ControlGroup::make() else { return };
    let target = Target::bare_ruby(WAITING);
    group.limit(1_150_000);
    group.adopt(target.pid());
    let refused = refusal(&target);
    assert!(target.finish());
    assert!(matches!(refused, Refusal::NoRoom { .. }), "{refused}");
}

#[test]
fn a_thread_that_does_not_stop_is_detached_before_we_end() {
    let folder = format!("/sys/fs/cgroup/freezer/rbloat-test-{}", std::process::id());
    if fs::create_dir(&folder).is_err() {
        return testkit::skip("not root, or no control groups of version 1");
    }
    let target = Target::bare_ruby(WAITING);
    let tasks = fs::read_dir(format!("/proc/{}/task", target.pid())).unwrap();
    let tids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let others: Vec<_> = tids.filter(|tid| *tid != target.pid().to_string()).collect();
    for tid in &others {
        fs::write(format!("{folder}/tasks"), tid).unwrap();
    }
    fs::write(format!("{folder}/freezer.state"), "FROZEN").unwrap();
    while fs::read_to_string(format!("{folder}/freezer.state")).unwrap().trim() != "FROZEN" {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The target is ready, but may not read yet.
    let reads = format!("/proc/{0}/task/{0}/syscall", target.pid());
    while !fs::read_to_string(&reads).unwrap().starts_with("0 ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The frozen threads, which wait for an event, are tried first. The main thread, which reads, makes the call.
    let image = look(target.pid()).unwrap();
    let call = harmless_call(&image);
    let called = inferior::call(&image.state.program, SIGNAL, call, PATIENCE, PATIENCE);
    let status = |tid: &String, key: &str| {
        let text = fs::read_to_string(format!("/proc/{}/task/{tid}/status", target.pid())).unwrap();
        text.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_string()
    };
    let wait_for = |key: &str, value: &str| {
        (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            others.iter().all(|tid| status(tid, key).starts_with(value))
        })
    };
    let untraced = wait_for("TracerPid:", "0");
    fs::write(format!("{folder}/freezer.state"), "THAWED").unwrap();
    let runs = wait_for("State:", "S");
    let finished = target.finish();
    while fs::remove_dir(&folder).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(matches!(called, Ok(CallOutcome::Returned(_))), "{called:?}");
    assert!(!others.is_empty() && untraced && runs && finished, "{untraced} {runs} {finished}");
}

/// It was given up after a second, and made three times more.
#[test]
fn a_copy_that_takes_longer_than_the_limit_is_used() {
    const MAX_PAUSE: Duration = Duration::from_millis(1000);
    const HELD: Duration = Duration::from_millis(1100);
    let folder = tempfile::tempdir().unwrap();
    let program = testkit::compile("slow_copy", folder.path(), &[]);
    let target = Target::start(&mut testkit::command(program));
    let Ok(events) = i32::try_from(target.truth["events"].as_i64().unwrap()) else { panic!() };
    let Some(events) = descriptor_of(target.pid(), events) else {
        return testkit::skip("the target may have no userfaultfd, or we may not read it");
    };
    let (examined, plan) = plan(&target).unwrap();
    let is_over = AtomicBool::new(false);
    let forked = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_readable(&events) {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
            }
            // The kernel is making the copy.
            std::thread::sleep(HELD);
            let mut event = [0; 32];
            assert_eq!((&events).read(&mut event).unwrap(), event.len());
        });
        loop {
            match inferior::fork(&examined, MAX_PAUSE, &plan) {
                Ok(Ok(forked)) => break forked,
                // On a busy machine it may not begin in time.
                Ok(Err(refusal)) if !is_readable(&events) && refusal.is_transient() => {}
                Err(Error::Capture(linux::Error::DoesNotStop { .. })) => {}
                other => {
                    is_over.store(true, Ordering::SeqCst);
                    panic!("{:?}", other.map(|copy| copy.map(drop)))
                }
            }
        }
    });
    let ended = forked.end().unwrap();
    assert!(ended.pause >= HELD && ended.left.is_none(), "{ended:?}");
    assert!(target.finish());
}

/// Returns our own descriptor of an open file of process `pid`.
fn descriptor_of(pid: i32, descriptor: i32) -> Option<fs::File> {
    // SAFETY: both calls take numbers alone, and return a new descriptor or -1.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        let own = libc::syscall(libc::SYS_pidfd_getfd, process, descriptor, 0);
        (own >= 0).then(|| fs::File::from_raw_fd(own as i32))
    }
}

/// Waits for a moment for an event.
fn is_readable(events: &fs::File) -> bool {
    let mut entry = libc::pollfd { fd: events.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the entry outlives the call.
    unsafe { libc::poll(&raw mut entry, 1, 10) == 1 }
}

#[test]
fn requests_to_end_wait_until_the_copy_has_ended() {
    let blocked = || {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let set = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let set = u64::from_str_radix(set.trim(), 16).unwrap();
        [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].map(|signal| set & 1 << (signal - 1) != 0)
    };
    let target = Target::bare_ruby(WAITING);
    let forked = fork(&target);
    assert_eq!(blocked(), [true; 3]);
    forked.end().unwrap();
    assert_eq!(blocked(), [false; 3]);
    drop(fork(&target));
    assert_eq!(blocked(), [false; 3]);
    target.stop();
    assert_eq!(refusal(&target), Refusal::Suspended);
    assert_eq!(blocked(), [false; 3]);
    target.go_on();
    assert!(target.finish());
}
