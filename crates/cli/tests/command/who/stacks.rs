//! Stacks at the time of a page fault, and those that are read later.

use std::collections::BTreeMap;
use std::process::Command;

use formats::{SamplingMethod, Who};
use serde_json::Value;
use testkit::{Server, Target};

use super::{GROWTH, assert_adds_up, document_of, share, watch_work, who};
use crate::rbloat;

/// A method that grows by mmap with MAP_POPULATE, which makes no page faults, and one that grows by strings.
const POPULATE: &str = r##"
    require 'fiddle'
    MMAP = Fiddle::Function.new(Fiddle.dlopen(nil)['mmap'], [Fiddle::TYPE_VOIDP, Fiddle::TYPE_SIZE_T, *[Fiddle::TYPE_INT] * 3, Fiddle::TYPE_LONG], Fiddle::TYPE_VOIDP)
    KEPT = []
    def small
      KEPT << Array.new(20) { "s" * 1000 }
    end
    # Private, anonymous, populated.
    def large
      MMAP.call(nil, 4 << 20, 3, 0x8022, -1, 0)
    end
    puts 'ready {}'; $stdout.flush
    $stdin.gets
    50.times { small; large }
    puts 'ready {}'; $stdout.flush
    $stdin.read
"##;

#[test]
fn growth_without_page_faults_is_not_that_of_other_code() {
    let has_fiddle = testkit::ruby().args(["-e", "require 'fiddle'"]).output().unwrap();
    if !has_fiddle.status.success() {
        return testkit::skip("Ruby has no fiddle");
    }
    let mut target = Target::bare_ruby(POPULATE);
    let (output, _) = watch_work(&mut target);
    let found = document_of(&output);
    assert_adds_up(&found);
    assert!(found.growth_bytes > 200 << 20, "{}", found.growth_bytes);
    assert!(share(&found, "Object#small") < 0.05, "{:#?}", found.methods);
    assert!(found.unsampled_bytes * 100 > found.growth_bytes * 90, "{}", found.unsampled_bytes);
    assert!(target.finish());
}

/// By the time at which the stack of a thread is read that allocates and sleeps in turn, it often sleeps.
#[test]
fn no_growth_is_that_of_a_method_that_only_waits() {
    let program = "KEPT = []
        def work; KEPT << ('x' * 60_000); end
        Thread.new { loop { work; sleep 0.002 } }
        puts 'ready {}'; $stdout.flush
        $stdin.read";
    let target = Target::bare_ruby(program);
    let found = document_of(&who(&[&target.pid().to_string(), "--json"]));
    assert_adds_up(&found);
    assert!(found.growth_bytes > 4 << 20, "{}", found.growth_bytes);
    assert!(share(&found, "Kernel#sleep") < 0.05, "{:#?}", found.methods);
    assert!(found.sampling.prompt_bytes <= found.growth_bytes - found.unknown_bytes);
    assert!(target.finish());
}

/// The share of growth in the wrong method, by the program's own truth, as `scripts/who` computes it.
fn wrong_share(who: &Who, truth: &Value) -> f64 {
    let own = truth["bytes"].as_object().unwrap();
    let mut growth = BTreeMap::from([(None, who.unknown_bytes)]);
    for stack in &who.stacks {
        let mut methods = stack.frames.iter().map(|&frame| &who.frames[frame as usize].method);
        let method = methods.rfind(|&method| own.contains_key(method));
        *growth.entry(method).or_default() += stack.bytes;
    }
    let whole: u64 = own.values().map(|bytes| bytes.as_u64().unwrap()).sum();
    let difference = |method: Option<&String>| {
        let truth = method.map_or(0, |method| own[method].as_u64().unwrap());
        let found = growth.get(&method).copied().unwrap_or(0);
        (truth as f64 / whole as f64 - found as f64 / who.growth_bytes as f64).abs()
    };
    own.keys().map(Some).chain([None]).map(difference).sum::<f64>() / 2.0
}

/// Stacks that were read after the fault attributed 8 to 38 % of the growth of these programs to the wrong code: their threads
/// wait or end at once.
#[test]
fn the_kernel_copies_the_stacks_of_page_faults() {
    for program in ["who/pauses", "who/threads", "who/fibers", "who/native", "who/burst"] {
        let mut target = Target::scenario(program, &[]);
        let (output, truth) = watch_work(&mut target);
        let found = document_of(&output);
        if found.sampling.copied == 0 {
            return testkit::skip("the kernel loads no programs for page faults");
        }
        let sampling = &found.sampling;
        assert!(sampling.copied * 10 > sampling.samples * 9, "{program}: {sampling:?}");
        let wrong = wrong_share(&found, &truth);
        assert!(wrong < 0.08, "{program}: {wrong} {sampling:?} {truth} {:#?}", found.methods);
        let text = render::who(&found, 100);
        assert!(text.contains(" of the stacks were copied at the page fault"), "{text}");
        assert!(target.finish());
    }
}

/// Watches a scenario that counts its own growth by method. Skips aloud if the kernel copies no stacks.
fn assert_copied_stacks_are_right(mut target: Target) {
    let (output, truth) = watch_work(&mut target);
    let found = document_of(&output);
    assert_adds_up(&found);
    if found.sampling.copied == 0 {
        return testkit::skip("the kernel loads no programs for page faults");
    }
    let wrong = wrong_share(&found, &truth);
    assert!(wrong < 0.08, "{wrong} {:?} {truth} {:#?}", found.sampling, found.methods);
    assert!(target.finish());
}

/// A JIT compiler writes the program counter of a frame only where it must.
#[test]
fn stacks_are_right_with_a_jit_compiler() {
    for option in super::jit_options() {
        for program in ["who/burst", "who/fibers", "who/pauses"] {
            let target = Target::start(testkit::scenario(program).env("RUBYOPT", option));
            assert_copied_stacks_are_right(target);
        }
    }
}

/// The memory of libpq, and of strings that are copied from it. The function that waits for a result runs without the GVL.
#[test]
fn results_of_a_database_are_those_of_the_method_that_asked() {
    let can = testkit::ruby().args(["-rpg", "-e", ""]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        return testkit::skip("ruby-pg is not installed where targets run");
    }
    let server = Server::postgres();
    let variables = server.variables().iter().map(|(name, value)| (name, value));
    let target = Target::start(testkit::scenario("who/postgres").envs(variables));
    assert_copied_stacks_are_right(target);
}

/// Without CAP_BPF stacks are read after the fault.
#[test]
fn stacks_are_read_if_the_kernel_copies_none() {
    // It computes between two pieces of work: the stack of a thread that sleeps by then is unknown.
    let growth = GROWTH.replace("sleep 0.01", "x = 0; x += 1 while x < 400_000");
    let target = Target::bare_ruby(&format!("{growth}; grow"));
    let rbloat = rbloat();
    let output = Command::new("setpriv")
        .args(["--bounding-set=-bpf,-sys_admin", rbloat.get_program().to_str().unwrap(), "who"])
        .args(["--for", "3s", "--max-pause", "10s", "--json", &target.pid().to_string()])
        .output()
        .unwrap();
    let found = document_of(&output);
    assert_eq!(found.sampling.copied, 0);
    assert_ne!(found.sampling.method, SamplingMethod::Polling, "the tests run as root");
    assert_adds_up(&found);
    assert!(share(&found, "ReportsController#export") > 0.4, "{:#?}", found.methods);
    assert!(target.finish());
}
