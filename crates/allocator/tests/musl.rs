//! Compares walks of musl's heap with what programs know of their own blocks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use allocator::{Allocator, BlockState, HeapMap};
use image::elf;
use linux::{Address, intersection, length};
use testkit::Target;

/// The program `mallocs` with musl; none if there is no compiler for that. It is compiled once: a program that another
/// test has started cannot be written.
static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testkit/rust/c/mallocs.c");
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mallocs-musl");
    let mut command = Command::new("musl-gcc");
    command.args(["-O1", "-g", "-o"]).arg(&output).arg(source);
    let status = command.status().ok()?;
    assert!(status.success(), "{command:?}");
    Some(output)
});

/// Starts that program. Without a compiler it says that the test is skipped.
fn start() -> Option<Target> {
    let Some(program) = &*PROGRAM else {
        testkit::skip("musl-gcc is not installed");
        return None;
    };
    Some(Target::start(&mut Command::new(program)))
}

fn walk(target: &Target) -> HeapMap {
    let frozen = image::freeze(target.pid(), linux::PATIENCE).unwrap();
    let modules = elf::modules(frozen.image());
    let found = allocator::find_allocator(frozen.image(), &modules, None);
    assert_eq!(found.allocator, Allocator::Musl);
    let heap = allocator::walk(frozen.image(), &found, &[]).unwrap();
    frozen.thaw().unwrap();
    heap
}

/// The main thread's control block is a variable of musl, and malloc has the rest of that page.
#[test]
fn no_stack_is_memory_of_malloc() {
    let Some(target) = start() else { return };
    let frozen = image::freeze(target.pid(), linux::PATIENCE).unwrap();
    let modules = elf::modules(frozen.image());
    let stacks = allocator::thread_stacks(frozen.image(), &modules);
    frozen.thaw().unwrap();
    for extent in walk(&target).extents {
        let overlaps = |stack: &&Range<Address>| !intersection(stack, &extent.range).is_empty();
        assert_eq!(stacks.iter().find(overlaps), None, "{:?}", extent.range);
    }
}

#[test]
fn a_walk_finds_all_blocks_of_a_program_and_no_others() {
    let Some(target) = start() else { return };
    let heap = walk(&target);
    assert_eq!(heap.findings, []);
    assert!(heap.arenas[0].walked);
    let mut end = Address(0);
    for extent in &heap.extents {
        assert!(end <= extent.range.start && extent.range.start < extent.range.end);
        end = extent.range.end;
        for (_, block) in heap.blocks_of(extent) {
            assert!(extent.range.start <= block.address && block.end() <= extent.range.end);
        }
    }
    let in_use = heap.all_blocks().filter(|(_, block)| block.state().is_in_use());
    let mut in_use: BTreeMap<Address, u64> =
        in_use.map(|(_, block)| (block.address, length(&heap.header.usable(block)))).collect();
    let blocks = target.truth["blocks"].as_array().unwrap();
    assert!(blocks.len() > 1000);
    for block in blocks {
        let [address, size] = [0, 1].map(|at| block[at].as_u64().unwrap());
        let usable = in_use.remove(&Address(address)).unwrap_or_else(|| panic!("{address:#x}"));
        assert!(size <= usable, "{address:#x}: {size} of {usable}");
        assert!(heap.block_of(Address(address)).is_some());
    }
    // The C library has a block or two of its own.
    assert!(in_use.len() < 5, "{in_use:?}");
    let states: Vec<_> = heap.blocks.iter().map(allocator::Block::state).collect();
    for state in [BlockState::Free, BlockState::Mmapped, BlockState::Overhead] {
        assert!(states.contains(&state), "{state:?}");
    }
    // Groups lie in slots of other groups.
    assert!(heap.extents.iter().any(|extent| {
        let sizes = heap.blocks_of(extent).map(|(_, block)| block.bytes());
        extent.region_bytes.is_none() && sizes.collect::<std::collections::BTreeSet<_>>().len() > 3
    }));
    assert!(target.finish());
}
