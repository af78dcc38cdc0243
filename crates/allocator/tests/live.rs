//! Compares walks with the figures of real processes about their own heaps, to the byte.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use allocator::{Allocator, BlockState, Finding, HeapMap, ThreadList, Totals};
use image::{ProcessState, elf};
use linux::{Address, Thread};
use serde_json::Value;
use testkit::Target;

static HEAPS: LazyLock<PathBuf> = LazyLock::new(|| {
    testkit::compile("heaps", Path::new(env!("CARGO_TARGET_TMPDIR")), &["-pthread"])
});

fn start(scenario: &[&str]) -> Target {
    Target::start(testkit::command(&*HEAPS).args(scenario))
}

fn walk(target: &Target) -> (HeapMap, ProcessState) {
    let frozen = image::freeze(target.pid(), linux::PATIENCE).unwrap();
    let modules = elf::modules(frozen.image());
    let found = allocator::find_allocator(frozen.image(), &modules, None);
    let malloc = allocator::walk(frozen.image(), &found, &[]).unwrap();
    (malloc, frozen.thaw().unwrap().state)
}

fn number(truth: &Value, name: &str) -> u64 {
    truth[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {truth}"))
}

/// Compares the totals of an arena, or of all arenas, with malloc_info(3).
fn assert_info(walked: &Totals, truth: &Value) {
    let same = |name: &str, walked: u64| assert_eq!(walked, number(truth, name), "{name}: {truth}");
    same("system_bytes", walked.system_bytes);
    same("free_chunks", walked.free_chunks);
    same("fastbin_chunks", walked.fastbin_chunks);
    same("fastbin_bytes", walked.fastbin_bytes);
    // malloc_info(3) does not mask the flags out of the sizes of binned chunks: 1, and in other arenas 4 if the chunk
    // was allocated before.
    let flags = number(truth, "free_bytes") - walked.free_bytes;
    let binned = walked.free_chunks - truth["arenas"].as_array().map_or(1, Vec::len) as u64;
    assert!((binned..=5 * binned).contains(&flags), "{flags} for {binned} chunks");
    assert_eq!((flags - binned) % 4, 0);
}

/// Compares a walk with the target's own truth. The only finding allowed is a note on foreign memory.
fn assert_walked(malloc: &HeapMap, truth: &Value, foreign_bytes: u64) {
    let findings = &malloc.findings;
    let is_foreign = |it: &Finding| matches!(it, Finding::ForeignMemory { bytes, .. } if *bytes == foreign_bytes);
    assert_eq!(findings.len(), usize::from(foreign_bytes > 0), "{findings:?}");
    assert!(findings.iter().all(is_foreign), "{foreign_bytes}: {findings:?}");
    assert_consistent(malloc);
    let arenas = truth["arenas"].as_array().unwrap();
    assert_eq!(malloc.arenas.len(), arenas.len());
    for (index, truth) in arenas.iter().enumerate() {
        assert_info(&malloc.arenas[index].totals, truth);
    }
    let totals = malloc.totals;
    let all = truth["mallinfo"].clone();
    assert_eq!(totals.system_bytes, number(&all, "arena"));
    assert_eq!(totals.free_chunks, number(&all, "ordblks"));
    assert_eq!(totals.fastbin_chunks, number(&all, "smblks"));
    assert_eq!(totals.fastbin_bytes, number(&all, "fsmblks"));
    assert_eq!(totals.free_bytes + totals.fastbin_bytes, number(&all, "fordblks"));
    assert_eq!(totals.mmapped_chunks, number(&all, "hblks"));
    let main = malloc.extents.iter().filter(|extent| extent.arena == Some(0));
    let mut chunks = main.flat_map(|extent| malloc.blocks_of(extent)).map(|(_, chunk)| chunk);
    let top = chunks.find(|chunk| chunk.state() == BlockState::Top).unwrap();
    assert_eq!(top.bytes(), number(&all, "keepcost"));
    // On 2.43, each mremap adds an error of 16 bytes to glibc's own count.
    let drift = number(&all, "hblkhd").abs_diff(totals.mmapped_bytes);
    assert!(drift == 0 || drift.is_multiple_of(16) && drift < 1 << 20, "{drift}");
}

/// Checks invariants of every walk, even of a process that is never idle.
fn assert_consistent(malloc: &HeapMap) {
    let mut end = linux::Address(0);
    for extent in &malloc.extents {
        assert!(end <= extent.range.start && extent.range.start < extent.range.end);
        end = extent.range.end;
        let chunks: Vec<_> = malloc.blocks_of(extent).map(|(_, chunk)| chunk).collect();
        if let (Some(first), Some(last)) = (chunks.first(), chunks.last()) {
            assert!(extent.range.start <= first.address);
            assert_eq!(last.end(), extent.range.end);
        }
        assert!(chunks.windows(2).all(|pair| pair[0].end() == pair[1].address));
        if let Some(arena) = extent.arena {
            assert_eq!(malloc.arenas[arena as usize].walked, !chunks.is_empty());
        }
    }
    assert!(malloc.trimmable.iter().all(|range| range.start < range.end));
    assert!(malloc.trimmable.windows(2).all(|pair| pair[0].end <= pair[1].start));
}

/// Walks an idle target, and then makes it trim itself.
fn assert_walk_and_trim(scenario: &[&str]) -> HeapMap {
    assert_walk_beside_foreign_memory(scenario, 0)
}

fn assert_walk_beside_foreign_memory(scenario: &[&str], foreign_bytes: u64) -> HeapMap {
    let mut target = start(scenario);
    let (malloc, state) = walk(&target);
    assert_walked(&malloc, &target.truth, foreign_bytes);

    let pages = state.pages.unwrap();
    let predicted: u64 = malloc.trimmable.iter().map(|range| pages.resident_bytes(range)).sum();
    target.tell("trim");
    let trimmed = target.next_truth();
    let dropped = (number(&trimmed, "before_kb") - number(&trimmed, "after_kb")) * 1024;
    assert_eq!(predicted, dropped, "of {} kB", number(&trimmed, "before_kb"));
    malloc
}

/// Checks that every thread's cache is full.
fn assert_caches_full(malloc: &HeapMap, threads: u64) {
    const BINS: u64 = 64;
    let count = malloc.tuning.unwrap().tcache_count.unwrap();
    let totals = malloc.totals;
    assert_eq!(totals.tcache_chunks, threads * count * BINS);
    assert_eq!(
        totals.tcache_bytes,
        threads * count * (0..BINS).map(|bin| 32 + 16 * bin).sum::<u64>()
    );
}

#[test]
fn a_single_thread() {
    let malloc = assert_walk_and_trim(&["single"]);
    assert_eq!(malloc.arenas.len(), 1);
    assert_eq!(malloc.extents.iter().filter(|extent| extent.arena.is_some()).count(), 1);
    assert_caches_full(&malloc, 1);
}

#[test]
fn many_threads_in_many_arenas() {
    let malloc = assert_walk_and_trim(&["threads", "12"]);
    assert!(malloc.arenas.len() > 4, "{:?}", malloc.arenas);
    assert_caches_full(&malloc, 13);
}

#[test]
fn an_arena_of_several_heaps() {
    let malloc = assert_walk_and_trim(&["threads", "2", "400000"]);
    assert!(malloc.arenas.iter().any(|arena| arena.heaps > 1 && !arena.is_main));
}

#[test]
fn strangers_that_move_the_break() {
    // The bytes that heaps.c takes by sbrk, rounded up to the 16 bytes that chunks are aligned to.
    let strangers = [4096, 40, 8, 70_000, 4096 * 3 + 24, 16].map(|it: u64| it.next_multiple_of(16));
    let malloc = assert_walk_beside_foreign_memory(&["foreign"], strangers.iter().sum());
    assert_eq!(malloc.arenas[0].heaps, 7, "one before, between and behind six strangers");
    assert_caches_full(&malloc, 1);
}

#[test]
fn a_break_that_is_blocked() {
    let malloc = assert_walk_and_trim(&["blocked"]);
    assert!(malloc.arenas[0].heaps > 5, "{:?}", malloc.arenas);
    assert_caches_full(&malloc, 1);
}

#[test]
fn chunks_with_alignments() {
    let malloc = assert_walk_and_trim(&["aligned"]);
    assert_caches_full(&malloc, 1);
    let mmapped = malloc.extents.iter().filter(|extent| extent.arena.is_none());
    let is_aligned = |extent: &&allocator::Extent| {
        let chunk = malloc.block(extent.blocks.start).unwrap();
        chunk.address != extent.range.start && malloc.header.pointer(chunk).is_aligned(4096)
    };
    assert!(mmapped.filter(is_aligned).count() > 10);
}

#[test]
fn mappings_that_grew_and_shrank() {
    let malloc = assert_walk_and_trim(&["huge"]);
    assert_eq!(malloc.totals.mmapped_chunks, 45);
}

#[test]
fn a_process_that_never_stands_still() {
    let target = start(&["busy"]);
    let mut in_order = 0;
    for _ in 0..50 {
        let (malloc, _) = walk(&target);
        assert_consistent(&malloc);
        for arena in &malloc.arenas {
            assert!(arena.walked || arena.locked, "{arena:?}: {:?}", malloc.findings);
            in_order += usize::from(arena.walked);
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(in_order > 50 * 3, "{in_order}");
}

#[test]
fn the_library_and_the_allocator_are_named() {
    let target = start(&["single", "10", "10"]);
    let frozen = image::freeze(target.pid(), linux::PATIENCE).unwrap();
    let modules = elf::modules(frozen.image());
    let libc = allocator::libc(frozen.image(), &modules).to_string();
    assert!(libc.starts_with("glibc 2."), "{libc}");
    let allocator = allocator::find_allocator(frozen.image(), &modules, None).allocator;
    assert!(allocator.is_glibc());
    assert_eq!(allocator.to_string(), "glibc");
}

#[test]
fn another_allocator_is_recognised() {
    let Some(jemalloc) = testkit::jemalloc() else { return };
    let mut command = testkit::command("env");
    command
        .arg(format!("LD_PRELOAD={}", jemalloc.display()))
        .arg(&*HEAPS)
        .args(["single", "10", "10"]);
    let target = Target::start(&mut command);
    let frozen = image::freeze(target.pid(), linux::PATIENCE).unwrap();
    let modules = elf::modules(frozen.image());
    let found = allocator::find_allocator(frozen.image(), &modules, None);
    assert_eq!(found.allocator, Allocator::Jemalloc);
    assert!(allocator::libc(frozen.image(), &modules).to_string().starts_with("glibc 2."));
}

#[test]
fn a_reference_that_no_call_has_resolved_yet_is_followed_as_the_dynamic_linker_would() {
    let Some(jemalloc) = testkit::jemalloc() else { return };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let lazy = testkit::compile("linked", folder, &["-Wl,-z,lazy"]);
    for (arguments, is_resolved) in [(&[][..], false), (&["call"], true)] {
        let mut command = testkit::command("env");
        command.arg(format!("LD_PRELOAD={}", jemalloc.display())).arg(&lazy).args(arguments);
        let target = Target::start(&mut command);
        let image = image::look(target.pid()).unwrap();
        let modules = elf::modules(&image);
        let found = allocator::find_allocator(&image, &modules, modules.first());
        assert_eq!(found.allocator, Allocator::Jemalloc);
        assert_eq!(found.finding.is_none(), is_resolved, "{:?}", found.finding);
        assert!(target.finish());
    }
}

/// The threads of `pid` that run, with their descriptors, by registers and by the list.
fn listed_and_true(
    pid: i32,
    list: &mut ThreadList,
    known: &[Address],
) -> [BTreeSet<(i32, Address)>; 2] {
    let running = image::look(pid).unwrap();
    let frozen = image::freeze(pid, linux::PATIENCE).unwrap();
    let threads = frozen.image().state.threads.iter();
    let expected: BTreeSet<_> = threads.map(|it| (it.tid, it.descriptor_base())).collect();
    frozen.thaw().unwrap();
    // Threads that have ended stay in the list until they are joined.
    let is_alive = |&(tid, _): &(i32, Address)| expected.iter().any(|it| it.0 == tid);
    let listed = list.threads(&running, known).into_iter().filter(is_alive).collect();
    [listed, expected]
}

#[test]
fn threads_that_begin_later_and_those_of_forked_children_are_listed() {
    let program = "
        puts 'ready {}'; $stdout.flush; $stdin.gets
        threads = Array.new(20) { Thread.new { sleep } }
        Array.new(20) { Thread.new {} }.each(&:join)
        Thread.pass until threads.all?(&:stop?)
        child = Thread.new { fork { Thread.new { sleep }; $stdin.read } }.value
        sleep 0.01 while Dir.children(\"/proc/#{child}/task\").size < 2
        puts \"ready {\\\"child\\\": #{child}}\"; $stdout.flush; $stdin.read";
    let mut target = Target::bare_ruby(program);
    let frozen = image::freeze(target.pid(), linux::PATIENCE).unwrap();
    let mut list = ThreadList::derive(frozen.image()).unwrap();
    let known: Vec<Address> =
        frozen.image().state.threads.iter().map(Thread::descriptor_base).collect();
    frozen.thaw().unwrap();
    target.tell("");
    let truth = target.next_truth();
    let [listed, expected] = listed_and_true(target.pid(), &mut list, &known);
    assert_eq!(listed, expected);
    assert!(expected.len() >= 21, "{expected:?}");
    // The child's first thread was another one in its parent.
    let known: Vec<Address> = expected.iter().map(|it| it.1).collect();
    let child = i32::try_from(number(&truth, "child")).unwrap();
    let [listed, expected] = listed_and_true(child, &mut list, &known);
    assert_eq!(listed, expected);
    assert!(expected.len() >= 2, "{expected:?}");
    let running = image::look(child).unwrap();
    for &(tid, descriptor) in &expected {
        assert!(list.is(&running, descriptor, tid));
        assert!(!list.is(&running, descriptor, tid + 1));
    }
    assert!(target.finish());
}
