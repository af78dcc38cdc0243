//! The whole command against every scenario: the verdict, the balance, and Ruby's own count.

use crate::{bytes, report};
use testbed::Target;

/// Reports on a scenario, stopped, and holds the report against what the scenario and the kernel
/// say.
fn judge(name: &str) {
    let target = Target::scenario(name, &[]);
    target.stop();
    let truth = target.rss_bytes();
    let report = report(target.pid());

    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, report.process.rss_bytes, "{name}: the rows do not add up");
    assert_eq!(report.process.rss_bytes, truth, "{name}: RSS by smaps_rollup");
    assert_eq!(report.findings, [], "{name}");

    let unknown = bytes(&report, "unknown");
    assert!(unknown < 1 << 20, "{name}: {unknown} bytes are unknown");
    assert_eq!(report.verdict.cause, target.truth["expect"], "{name}: {:#?}", report.verdict);

    target.go_on();
    assert!(target.finish(), "{name} did not live on");
}

macro_rules! scenarios {
    ($($name:ident),*) => { $(
        #[test]
        fn $name() {
            judge(stringify!($name));
        }
    )* };
}

scenarios!(
    burst,
    churn,
    free_slots,
    healthy,
    huge_strings,
    leak,
    mapped_file,
    native,
    objects,
    pin,
    sieve,
    stacks
);
