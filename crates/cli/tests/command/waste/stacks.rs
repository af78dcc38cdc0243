//! The parts of stacks that no call uses.

use formats::KeptStacks;
use testkit::Target;

use crate::{report_of, run};

const MANY: u64 = 30;

/// Nothing told how much of the stacks of threads and fibers was left over from deeper calls. Blocks are called through C, so a recursion
/// takes both stacks.
#[test]
fn stacks_are_unused_after_deep_calls_and_not_during_these() {
    let stacks = |program: &str| -> KeptStacks {
        let target = Target::bare_ruby(&format!(
            "def dig(depth, &bottom); depth.zero? ? bottom&.call : [1].each {{ dig(depth - 1, &bottom) }}; end
             {program}
             4.times {{ GC.start }}
             puts 'ready {{}}'; $stdout.flush; $stdin.read; exit!(true)"
        ));
        let stacks = report_of(&run(target.pid(), &["--json"])).kept_stacks.unwrap();
        let text = String::from_utf8(run(target.pid(), &["--waste"]).stdout).unwrap();
        let is_much = stacks.unused_fiber_bytes.unwrap() + stacks.unused_thread_bytes > 2 << 20;
        assert!(!is_much || text.contains(" that no call uses now: "), "{text}");
        assert!(target.finish());
        stacks
    };
    let fibers = |body: &str| {
        let fibers =
            format!("FIBERS = Array.new({MANY}) {{ Fiber.new {{ {body} }}.tap(&:resume) }}");
        let stacks = stacks(&fibers);
        assert_eq!(stacks.fibers, Some(MANY));
        stacks.unused_fiber_bytes.unwrap()
    };
    let (after, during) = (fibers("dig(150); Fiber.yield"), fibers("dig(150) { Fiber.yield }"));
    assert!(after > during + MANY * (32 << 10), "{after} {during}");
    assert!(during < MANY * (16 << 10), "{during}");
    let threads = |body: &str| {
        let threads = format!(
            "THREADS = Array.new({MANY}) {{ Thread.new {{ {body} }} }}
             THREADS.each {{ |it| Thread.pass until it.stop? }}"
        );
        stacks(&threads).unused_thread_bytes
    };
    let (after, during) = (threads("dig(150); sleep"), threads("dig(150) { sleep }"));
    assert!(after > during + MANY * (16 << 10), "{after} {during}");
    assert!(during < MANY * (16 << 10), "{during}");
}
