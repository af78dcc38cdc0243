//! Compares walks of mimalloc's heap with mimalloc's own count of blocks, and with a program's list of its live pointers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use allocator::{Allocator, Block, BlockState, ExtentState, Finding, HeapMap};
use image::elf;
use linux::{Address, length};
use testkit::Target;

static PROGRAM: LazyLock<PathBuf> =
    LazyLock::new(|| testkit::compile("mimalloc", folder(), &["-pthread", "-ldl"]));

/// The C library has a few blocks of its own, and two for each thread.
const BLOCKS_OF_LIBC: usize = 40;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Starts the program under mimalloc; `None` if there is none where targets run.
fn start(arguments: &[&str]) -> Option<Target> {
    let library = testkit::mimalloc()?;
    let mut command = testkit::command("env");
    command.arg(format!("LD_PRELOAD={}", library.display()));
    Some(Target::start(command.arg(&*PROGRAM).args(arguments)))
}

fn walk(target: &Target) -> HeapMap {
    let frozen = image::freeze(target.pid(), linux::PATIENCE).unwrap();
    let modules = elf::modules(frozen.image());
    let found = allocator::find_allocator(frozen.image(), &modules, None);
    assert_eq!(found.allocator, Allocator::Mimalloc);
    let heap = allocator::walk(frozen.image(), &found, &[]).unwrap();
    frozen.thaw().unwrap();
    heap
}

/// A program that stands still, its live pointers with their usable sizes, and a walk of its heap.
struct Still {
    target: Target,
    live: Vec<(u64, u64)>,
    heap: HeapMap,
}

impl Still {
    fn new(threads: u32, rounds: u32) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder().join(format!("mimalloc-{}-{number}", std::process::id()));
        let library = testkit::outside(&testkit::mimalloc()?).canonicalize().unwrap();
        let mode = if library.ends_with("libmimalloc.so.3.0") { "unaligned" } else { "still" };
        let numbers = [threads.to_string(), rounds.to_string()];
        let target = start(&[mode, &numbers[0], &numbers[1], path.to_str().unwrap()])?;
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let pair = |line: &str| {
            let (at, bytes) = line.split_once(' ').unwrap();
            (at.parse().unwrap(), bytes.parse().unwrap())
        };
        let live = text.lines().map(pair).collect();
        let heap = walk(&target);
        Some(Self { target, live, heap })
    }

    fn truth(&self, name: &str) -> u64 {
        self.target.truth[name].as_u64().unwrap()
    }
}

/// Checks invariants of every walk, even of a process that is never idle.
fn assert_consistent(heap: &HeapMap) {
    let mut end = Address(0);
    for extent in &heap.extents {
        assert!(end <= extent.range.start && length(&extent.range) > 0, "{extent:?}");
        end = extent.range.end;
        let blocks: Vec<Block> = heap.blocks_of(extent).map(|(_, block)| block).collect();
        assert!(blocks.windows(2).all(|pair| pair[0].end() <= pair[1].address), "{extent:?}");
        let is_within =
            |it: &Block| extent.range.start <= it.address && it.end() <= extent.range.end;
        assert!(blocks.iter().all(is_within), "{extent:?}");
        if let Some(bytes) = extent.region_bytes {
            let is_region = |it: &Block| {
                it.bytes() == bytes
                    || it.state() == BlockState::Top && it.bytes().is_multiple_of(bytes)
            };
            assert!(blocks.iter().all(is_region), "{extent:?}");
            assert!(heap.size_classes.contains(&bytes), "{bytes}");
        }
    }
    assert!(heap.blocks.iter().is_sorted_by(|a, b| a.address < b.address));
}

/// Every live pointer lies in a block in use, with its usable size, and there are few other blocks in use.
fn assert_live(still: &Still) {
    let Still { live, heap, .. } = still;
    assert_eq!(heap.findings, []);
    assert!(live.len() > 100);
    for &(pointer, bytes) in live {
        let block = heap.block_around(Address(pointer)).unwrap();
        assert_eq!(block.state(), BlockState::InUse, "{pointer:#x}: {block:?}");
        assert_eq!(block.end() - Address(pointer), bytes, "{pointer:#x}: {block:?}");
    }
    let in_use = heap.blocks.iter().filter(|block| block.state() == BlockState::InUse).count();
    assert_eq!(in_use as u64, heap.totals.in_use_chunks);
    assert!(live.len() <= in_use && in_use <= live.len() + BLOCKS_OF_LIBC, "{in_use}");
    assert!(heap.totals.free_chunks > 1000);
    for state in [ExtentState::Active, ExtentState::Dirty, ExtentState::Metadata] {
        assert!(heap.extents.iter().any(|extent| extent.state == state), "{state:?}");
    }
}

#[test]
fn the_blocks_of_a_thread_are_those_that_mimalloc_visits() {
    let Some(still) = Still::new(1, 100_000) else { return };
    assert_consistent(&still.heap);
    assert_live(&still);
    // 3.0 and 3.1 do not visit all pages. (Their versions have three digits, later ones five.)
    if !(300..400).contains(&still.truth("version")) {
        let totals = still.heap.totals;
        assert_eq!(totals.in_use_chunks, still.truth("visited"));
        assert_eq!(totals.in_use_bytes, still.truth("visited_bytes"));
    }
}

/// Blocks that a thread frees for another one are on other lists.
#[test]
fn many_threads_of_which_some_ended() {
    let Some(still) = Still::new(9, 30_000) else { return };
    assert_consistent(&still.heap);
    assert_live(&still);
}

#[test]
fn a_process_that_never_stands_still() {
    let Some(target) = start(&["busy", "4"]) else { return };
    for _ in 0..testkit::captures() {
        let heap = walk(&target);
        assert_consistent(&heap);
        let is_known = |it: &Finding| matches!(it, Finding::ExtentsChanging { extents: 1..=4, .. });
        assert!(heap.findings.iter().all(is_known), "{:?}", heap.findings);
    }
}
