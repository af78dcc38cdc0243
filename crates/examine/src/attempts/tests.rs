use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::process::open_target;
use crate::sandbox::SandboxOptions;

/// What each copy shows of a target that always changes its heap, when it paused the target for this time.
fn incomplete(pause: Duration) -> Attempt<()> {
    Attempt { found: (), is_incomplete: true, pause }
}

/// Each further copy would have paused it for as long.
#[test]
fn a_copy_that_took_longer_than_the_limit_is_not_made_again() {
    let ruby = testkit::Target::bare_ruby("puts 'ready {}'; $stdout.flush; $stdin.read");
    let target = open_target(ruby.pid()).unwrap();
    let limit = Duration::from_secs(1);
    let how = CaptureOptions {
        mode: CaptureMode::Fork,
        max_pause: Some(limit),
        max_own_bytes: None,
        sandbox: SandboxOptions { is_enabled: true, complain: |_| {} },
    };
    let examination = Examination::new(&target, how, Detail::CAUSES, None);
    for (pause, expected) in [(limit, MAX_ATTEMPTS), (limit + Duration::from_millis(1), 1)] {
        let copies = AtomicU32::new(0);
        let fork = |_: &ForkPlan| {
            copies.fetch_add(1, Ordering::Relaxed);
            Ok(incomplete(pause))
        };
        let done = examination.repeat(fork, |_| panic!("a copy was asked for")).unwrap();
        assert_eq!(copies.into_inner(), expected);
        assert_eq!(done.pause, pause * expected);
        assert_eq!(done.reason.contains("longer for the copy than the limit"), pause > limit);
    }
    assert!(ruby.finish());
}
