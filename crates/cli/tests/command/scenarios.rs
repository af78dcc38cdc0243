//! The whole command against every scenario: the verdict, the balance, and Ruby's own count.

use formats::Action;
use testkit::Target;

use crate::{bytes, rbloat, report};

/// At this size, verdicts exceed their bounds by half.
const SCALE: [&str; 2] = ["--scale", "0.25"];
/// The stacks of threads are smaller from Ruby 3.3 on.
const SCALE_OF_STACKS: [&str; 2] = ["--scale", "0.3"];

/// Reports on a stopped scenario, and compares the report with the figures of the scenario and of the kernel.
fn judge(name: &str) {
    let scale = if name == "stacks" { SCALE_OF_STACKS } else { SCALE };
    // With RubyGems, as users start them.
    let mut command = testkit::scenario(name);
    let target = Target::start(command.args(scale).env("RUBYOPT", "-rrubygems"));
    target.stop_asleep();
    let truth = target.rss_bytes();
    let report = report(target.pid());

    let sum: u64 = report.causes.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, report.process.rss_bytes, "{name}: the rows do not add up");
    assert_eq!(report.process.rss_bytes, truth, "{name}: RSS by smaps_rollup");
    assert_eq!(report.findings, [], "{name}");

    let unknown = bytes(&report, "unknown");
    assert!(unknown < 1 << 20 && unknown * 100 <= truth, "{name}: {unknown} bytes are unknown");
    if name == "healthy" {
        let unreachable = bytes(&report, "native.unreachable");
        assert!(unreachable * 1000 <= truth, "{unreachable} of {truth} bytes are unreachable");
    }
    let cause = report.verdict.cause.map_or("healthy", ledger::Cause::name);
    assert_eq!(cause, target.truth["expect"], "{name}: {:#?}", report.verdict);

    // A block that begins on one page and ends on another counted twice: more Strings than malloc had blocks.
    if let Some(malloc) = &report.malloc {
        let most = malloc.pinned_by.iter().map(|pin| pin.blocks).max().unwrap_or(0);
        assert!(most <= malloc.in_use_chunks, "{name}: {most} of {} blocks", malloc.in_use_chunks);
    }

    let evidence = &render::words::verdict(&report).evidence[0];
    let named = report.causes.iter().filter(|row| evidence.contains(row.cause.name()));
    let bytes: u64 = named.map(|row| row.bytes).sum();
    if report.verdict.cause.is_some() {
        assert_eq!(report.verdict.bytes, bytes, "{name}: {evidence}");
        let is_clear = bytes * 2 >= 3 * diagnosis::MIN_BYTES
            && ledger::percent(bytes, truth) >= 1.5 * diagnosis::MIN_SHARE;
        assert!(is_clear, "{name}: {bytes} is near the bounds");
    }

    target.go_on();
    for step in &report.advice {
        let Some(claim) = step.saves_bytes else { continue };
        if step.action == Action::AutoTrim {
            // Its first trim is this one.
            continue;
        }
        let before = target.rss_bytes();
        match step.action {
            Action::Trim => {
                let trim = rbloat()
                    .args(["trim", &target.pid().to_string(), "--max-pause", "10s"])
                    .output()
                    .unwrap();
                assert!(trim.status.success(), "{}", String::from_utf8_lossy(&trim.stderr));
            }
            _ => panic!("{name}: the test cannot carry out {step:?}"),
        }
        let saved = before.saturating_sub(target.rss_bytes());
        assert!(saved.abs_diff(claim) * 5 <= claim, "{name}: {saved} of {claim}");
    }
    assert!(target.finish(), "{name} did not live on");
}

/// Returns true if a setting is advised in a burst with these variables.
fn is_advised(command: &str, variables: &[(&str, &str)]) -> bool {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/burst.rb");
    let mut ruby = testkit::ruby();
    ruby.args(["--disable-gems", path]).args(["--scale", "0.2"]).envs(variables.iter().copied());
    let target = Target::start(&mut ruby);
    let report = report(target.pid());
    let mut steps = report.advice.iter();
    steps.any(|step| render::words::advice(step, &report).command.contains(command))
}

#[test]
fn what_is_already_set_is_not_advised() {
    if testkit::preload().is_some() {
        return testkit::skip("these settings are glibc's");
    }
    let arenas = "MALLOC_ARENA_MAX=2";
    assert!(is_advised(arenas, &[]));
    assert!(!is_advised(arenas, &[("MALLOC_ARENA_MAX", "2")]));
    assert!(!is_advised(arenas, &[("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")]));
    assert!(is_advised(arenas, &[("MALLOC_ARENA_MAX", "100")]));
    assert!(is_advised("LD_PRELOAD=libjemalloc.so.2", &[("LD_PRELOAD", "/no/libjemalloc.so")]));
    assert!(is_advised("RBLOAT_AUTO_TRIM=1", &[]));
    assert!(!is_advised("RBLOAT_AUTO_TRIM=1", &[("RBLOAT_AUTO_TRIM", "1")]));
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
    big,
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
