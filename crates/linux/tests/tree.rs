//! The memory and time that are counted for a process and all its descendants.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use linux::proc::{
    GroupMemory, Tree, command_line, group_memory, own_cpu_time, own_thread_cpu_time, rollup,
};
use testkit::Target;

/// A function with which a Ruby program reports facts about itself.
const LIBRARY: &str = "
  require 'json'
  def tell(**facts)
    puts \"ready #{JSON.generate(facts)}\"
    $stdout.flush
  end
";

fn ruby(source: &str) -> Target {
    Target::bare_ruby(&format!("{LIBRARY}{source}"))
}

fn pids(tree: &mut Tree) -> BTreeSet<i32> {
    tree.look().into_iter().map(|member| member.pid).collect()
}

fn pid(target: &Target, name: &str) -> i32 {
    i32::try_from(target.truth[name].as_i64().unwrap()).unwrap()
}

fn smaps_rollup(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap()
}

/// A row of /proc/PID/smaps_rollup, in bytes.
fn row(text: &str, key: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(&format!("{key}:"))).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn the_sums_are_those_of_smaps() {
    // The child shares pages with its parent, and ends with it.
    let target = ruby(
        "$kept = Array.new(20_000) { 'x' * 500 }
         reader, writer = IO.pipe
         told, tells = IO.pipe
         child = fork do
           $own = 'y' * (8 << 20)
           $stdin.close
           writer.close
           tells.write('.')
           reader.read
         end
         told.read(1)
         tell(child: child)
         $stdin.read",
    );
    let child = pid(&target, "child");
    target.stop();
    // Every process that maps the same libraries and starts or ends meanwhile changes the share.
    let (truth, rollup) = loop {
        let before = smaps_rollup(child);
        let rollup = rollup(child).unwrap();
        if smaps_rollup(child) == before {
            break (before, rollup);
        }
    };
    assert_eq!(rollup.rss_bytes, row(&truth, "Rss"));
    assert_eq!(rollup.pss_bytes, row(&truth, "Pss"));
    let own = row(&truth, "Private_Clean") + row(&truth, "Private_Dirty");
    assert_eq!((rollup.uss_bytes, rollup.swap_bytes), (own, row(&truth, "Swap")));
    assert!(8 << 20 < rollup.uss_bytes && rollup.uss_bytes < rollup.pss_bytes);
    assert!(rollup.pss_bytes < rollup.rss_bytes);
    target.go_on();
}

#[test]
fn children_of_any_thread_and_generation_belong_to_the_tree_until_they_end() {
    let mut target = ruby(
        "reader, writer = IO.pipe
         child = Thread.new do
           spawn('ruby', '-e', 'puts spawn(%(sleep), %(1000)); $stdout.flush; sleep', out: writer)
         end.value
         grandchild = reader.gets.to_i
         tell(child: child, grandchild: grandchild)
         $stdin.gets
         # The grandchild is an orphan from now on.
         Process.kill(:KILL, child)
         Process.wait(child)
         tell
         $stdin.gets
         Process.kill(:KILL, grandchild)
         sleep 0.01 while File.read(\"/proc/#{grandchild}/stat\").split(') ')[1] !~ /^[ZX]/ rescue nil
         tell
         $stdin.gets
         zombie = fork { exit!(0) }
         sleep 0.01 until File.read(\"/proc/#{zombie}/stat\").split(') ')[1].start_with?('Z')
         tell
         $stdin.read",
    );
    let (root, child) = (target.pid(), pid(&target, "child"));
    let grandchild = pid(&target, "grandchild");
    let mut tree = Tree::new(root);
    assert_eq!(pids(&mut tree), BTreeSet::from([root, child, grandchild]));
    target.tell("");
    target.next_truth();
    assert_eq!(pids(&mut tree), BTreeSet::from([root, grandchild]));
    target.tell("");
    target.next_truth();
    assert_eq!(pids(&mut tree), BTreeSet::from([root]));
    target.tell("");
    target.next_truth();
    assert_eq!(pids(&mut tree), BTreeSet::from([root]));
    assert!(target.finish());
    assert_eq!(tree.look(), []);
    // It does not start again either.
    assert_eq!(tree.look(), []);
}

#[test]
fn what_a_process_computed_and_faulted_is_counted() {
    let mut target = ruby(
        "tell
         $stdin.gets
         Thread.new { sleep }
         until Process.times.utime > 0.3; Array.new(1000) { 'x' * 1000 }; end
         big = 'y' * (16 << 20)
         times = Process.times
         faults = File.read('/proc/self/stat').split(') ')[1].split[7].to_i
         tell(user: (times.utime * 1000).to_i, faults: faults, big: big.bytesize)
         $stdin.read",
    );
    let mut tree = Tree::new(target.pid());
    let before = tree.look().remove(0);
    target.tell("");
    let truth = target.next_truth();
    let after = tree.look().remove(0);
    let user = Duration::from_millis(truth["user"].as_u64().unwrap());
    // The kernel counts CPU time in ticks of 10 ms.
    assert!(after.user_time + Duration::from_millis(10) >= user && before.user_time < user);
    assert!(after.minor_faults >= truth["faults"].as_u64().unwrap());
    assert!(after.minor_faults - before.minor_faults > 4000);
    assert_eq!(after.threads - before.threads, 1);
    assert!(after.rss_bytes > before.rss_bytes + (15 << 20));
    assert_eq!((after.pid, after.program), (before.pid, before.program));
}

#[test]
fn another_program_in_the_same_process_is_seen() {
    let mut target = ruby("tell; $stdin.gets; exec('sh', '-c', 'echo ready {}; exec cat')");
    let mut tree = Tree::new(target.pid());
    let before = tree.look().remove(0);
    assert!(command_line(target.pid()).unwrap().contains("exec('sh'"));
    target.tell("");
    target.next_truth();
    let after = tree.look().remove(0);
    assert_eq!(before.started_ticks, after.started_ticks);
    assert_ne!(before.program, after.program);
}

#[test]
fn a_stopped_process_is_read_like_any_other() {
    let target = ruby("tell; $stdin.read");
    target.stop();
    let member = Tree::new(target.pid()).look().remove(0);
    assert_eq!(member.state, 'T');
    assert_eq!(rollup(target.pid()).unwrap().rss_bytes, target.rss_bytes());
    target.go_on();
}

#[test]
fn a_group_says_its_use_its_limit_and_its_kills() {
    let Some(group) = testkit::ControlGroup::make() else { return };
    group.limit(80 << 20);
    for without_swap in [("memory.memsw.limit_in_bytes", "83886080"), ("memory.swap.max", "0")] {
        let _ = fs::write(group.folder().join(without_swap.0), without_swap.1);
    }
    let mut target = ruby(
        "tell
         $stdin.gets
         eater = fork { $kept = []; loop { $kept << 'x' * (1 << 20) } }
         Process.wait(eater)
         tell(signal: $?.termsig)
         $stdin.read",
    );
    group.adopt(target.pid());
    let before = group_memory(target.pid()).unwrap().unwrap();
    assert_eq!((before.limit_bytes, before.oom_kills), (Some(80 << 20), Some(0)));
    let GroupMemory { usage_bytes, cache_bytes, .. } = before;
    assert!(
        usage_bytes <= 80 << 20
            && before.room_bytes() == Some((80 << 20) - usage_bytes + cache_bytes)
    );
    target.tell("");
    assert_eq!(target.next_truth()["signal"], 9);
    assert_eq!(group_memory(target.pid()).unwrap().unwrap().oom_kills, Some(1));
    assert!(target.finish());
}

#[test]
fn our_own_time_is_what_we_compute() {
    const COMPUTED: Duration = Duration::from_millis(20);
    let (before, waited) = (own_cpu_time(), own_thread_cpu_time());
    let computing = std::thread::spawn(|| {
        let mut sum = 0_u64;
        while own_thread_cpu_time() < COMPUTED {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
        }
    });
    computing.join().unwrap();
    assert!(own_cpu_time() >= before + COMPUTED);
    assert!(own_thread_cpu_time() < waited + COMPUTED);
}
