//! Programs that allocate and free at random (testkit/rust/c/churn.h) under a preloaded allocator, and walks of their heaps.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use allocator::{Allocator, Block, BlockState, ExtentState, HeapMap};
use image::elf;
use linux::{Address, length};
use testkit::Target;

/// The C library has a few blocks of its own, and two for each thread.
const BLOCKS_OF_LIBC: usize = 40;

/// An allocator, and the program for it.
pub(crate) struct Churn {
    pub(crate) allocator: Allocator,
    pub(crate) program: LazyLock<PathBuf>,
    /// The library where targets run.
    pub(crate) library: fn() -> Option<PathBuf>,
}

pub(crate) fn compile(name: &str) -> PathBuf {
    testkit::compile(name, folder(), &["-pthread", "-ldl"])
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// A program that stands still, its live pointers with their usable sizes, and a walk of its heap.
pub(crate) struct Still {
    pub(crate) target: Target,
    pub(crate) live: Vec<(u64, u64)>,
    pub(crate) heap: HeapMap,
}

impl Churn {
    /// Starts the program under the allocator; `None` if there is none where targets run.
    pub(crate) fn start(&self, arguments: &[&str]) -> Option<Target> {
        let library = (self.library)()?;
        let mut command = testkit::command("env");
        command.arg(format!("LD_PRELOAD={}", library.display()));
        Some(Target::start(command.arg(&*self.program).args(arguments)))
    }

    pub(crate) fn walk(&self, pid: i32) -> HeapMap {
        self.try_walk(pid).unwrap()
    }

    /// The heap of a process that may be in the middle of a change.
    pub(crate) fn try_walk(&self, pid: i32) -> Result<HeapMap, allocator::Error> {
        let frozen = image::freeze(pid, linux::PATIENCE).unwrap();
        let modules = elf::modules(frozen.image());
        let found = allocator::find_allocator(frozen.image(), &modules, None);
        assert_eq!(found.allocator, self.allocator);
        let heap = allocator::walk(frozen.image(), &found, &[]);
        frozen.thaw().unwrap();
        heap
    }

    pub(crate) fn still(&self, mode: &str, threads: u32, rounds: u32) -> Option<Still> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder().join(format!("{}-{}-{number}", self.allocator, std::process::id()));
        let numbers = [threads.to_string(), rounds.to_string()];
        let target = self.start(&[mode, &numbers[0], &numbers[1], path.to_str().unwrap()])?;
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let pair = |line: &str| {
            let (at, bytes) = line.split_once(' ').unwrap();
            (at.parse().unwrap(), bytes.parse().unwrap())
        };
        let live = text.lines().map(pair).collect();
        let heap = self.walk(target.pid());
        Some(Still { target, live, heap })
    }
}

impl Still {
    pub(crate) fn truth(&self, name: &str) -> u64 {
        self.target.truth[name].as_u64().unwrap()
    }
}

/// Checks invariants of every walk, even of a process that is never idle.
pub(crate) fn assert_consistent(heap: &HeapMap) {
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
pub(crate) fn assert_live(still: &Still) {
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
