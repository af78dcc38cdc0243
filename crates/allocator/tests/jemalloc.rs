//! Compares walks of jemalloc's heap with jemalloc's own figures, to the byte, and with a program's list of its live
//! pointers.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use allocator::{Allocator, Block, BlockState, Extent, ExtentState, Finding, HeapMap};
use image::{ProcessState, elf};
use linux::arch::page_size;
use linux::{Address, length};
use testkit::Target;

static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
    let mut flags = vec!["-pthread", "-ldl"];
    let archive = testkit::jemalloc_archive();
    if let Some(archive) = &archive {
        // The program exports the functions that it links, like an interpreter with its own jemalloc.
        flags.extend([archive.to_str().unwrap(), "-rdynamic", "-lm"]);
    }
    testkit::compile("jemalloc", folder(), &flags)
});

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Starts the program under jemalloc; `None` if there is no jemalloc where targets run.
fn start(settings: &str, arguments: &[&str]) -> Option<Target> {
    let library = match testkit::jemalloc_archive() {
        None => Some(testkit::jemalloc()?),
        Some(_) => None,
    };
    Some(start_under(library.as_deref(), settings, arguments))
}

/// Starts the program under the jemalloc of this library, or under the one that is linked into it.
fn start_under(library: Option<&Path>, settings: &str, arguments: &[&str]) -> Target {
    let mut command = testkit::command("env");
    if let Some(library) = library {
        command.arg(format!("LD_PRELOAD={}", library.display()));
    }
    command.arg(format!("MALLOC_CONF={settings}"));
    Target::start(command.arg(&*PROGRAM).args(arguments))
}

fn walk(target: &Target) -> (HeapMap, ProcessState) {
    let frozen = image::freeze(target.pid(), linux::PATIENCE).unwrap();
    let modules = elf::modules(frozen.image());
    let found = allocator::find_allocator(frozen.image(), &modules, None);
    assert_eq!(found.allocator, Allocator::Jemalloc);
    let heap = allocator::walk(frozen.image(), &found, &[]).unwrap();
    (heap, frozen.thaw().unwrap().state)
}

/// The facts that a program under jemalloc wrote about its own heap.
struct Truth {
    target: Target,
    /// The values of mallctl(3), by name.
    figures: HashMap<String, i64>,
    /// The live pointers and their usable sizes.
    live: Vec<(u64, u64)>,
}

impl Truth {
    fn of(settings: &str, threads: u32, rounds: u32) -> Option<Self> {
        Self::written_by(threads, rounds, |arguments| start(settings, arguments))
    }

    /// Reads the facts of the program that `start` starts with these arguments.
    fn written_by(
        threads: u32,
        rounds: u32,
        start: impl FnOnce(&[&str]) -> Option<Target>,
    ) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder().join(format!("jemalloc-{}-{number}", std::process::id()));
        let path = path.to_str().unwrap();
        let arguments = ["still", &threads.to_string(), &rounds.to_string(), path];
        let target = start(&arguments)?;
        let [figures, live] = ["figures", "live"].map(|suffix| {
            let file = format!("{path}.{suffix}");
            let text = fs::read_to_string(&file).unwrap();
            fs::remove_file(&file).unwrap();
            text
        });
        let pair = |line: &str| {
            let (name, value) = line.split_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        };
        let live = live.lines().map(pair).map(|(at, bytes)| (at.parse().unwrap(), bytes as u64));
        let live = live.collect();
        Some(Self { target, figures: figures.lines().map(pair).collect(), live })
    }

    fn figure(&self, name: &str) -> i64 {
        self.figures.get(name).copied().unwrap_or_else(|| panic!("no figure {name}"))
    }

    fn number(&self, name: &str) -> u64 {
        self.figure(name).try_into().unwrap()
    }

    /// The values of `name` with 0, 1, … for the star.
    fn numbers(&self, name: &str) -> Vec<u64> {
        let values = (0..).map_while(|it| self.figures.get(&name.replace('*', &it.to_string())));
        values.map(|value| u64::try_from(*value).unwrap()).collect()
    }

    /// The numbers of the arenas that exist.
    fn arenas(&self) -> Vec<u64> {
        let exists = |it: &u64| self.figures.contains_key(&format!("stats.arenas.{it}.pactive"));
        (0..self.number("narenas")).filter(exists).collect()
    }

    fn has_version(&self, beginning: &str) -> bool {
        self.target.truth["version"].as_str().unwrap().starts_with(beginning)
    }
}

fn in_state(heap: &HeapMap, arena: u32, state: ExtentState) -> impl Iterator<Item = &Extent> {
    let is_it =
        move |it: &&Extent| it.arena == Some(arena) && it.state == state && !is_kept(heap, it);
    heap.extents.iter().filter(is_it)
}

fn uses_huge_pages(finding: &Finding) -> bool {
    matches!(finding, Finding::HugePages { .. })
}

/// Returns true if the allocator of huge pages keeps an extent for later. jemalloc does not count it as active. Allocations
/// do not take their whole extents then, because they are padded.
fn is_kept(heap: &HeapMap, extent: &Extent) -> bool {
    let is_whole =
        |it: &Block| it.state() == BlockState::Tcache && it.bytes() == length(&extent.range);
    extent.region_bytes.is_none()
        && heap.findings.iter().any(uses_huge_pages)
        && blocks(heap, extent).iter().any(is_whole)
}

fn bytes_in(heap: &HeapMap, arena: u32, state: ExtentState) -> u64 {
    in_state(heap, arena, state).map(|extent| length(&extent.range)).sum()
}

fn blocks(heap: &HeapMap, extent: &Extent) -> Vec<Block> {
    heap.blocks_of(extent).map(|(_, block)| block).collect()
}

fn is_allocated(block: &Block) -> bool {
    block.state() != BlockState::Free
}

/// The size that jemalloc counts for the block of an extent that is no slab.
///
/// A region that the profiler sampled (`prof:true`) has an extent of its own although its class is one of slabs. Up to
/// 5.3.0 it counts as the first class of others. 5.3.1 counts the whole pages that it takes, if slabs have no class of
/// that size, and otherwise nothing (`arena_large_malloc_stats_update`).
fn counted_bytes(block: Block, truth: &Truth) -> u64 {
    let page = truth.number("arenas.page");
    // The first class of extents that are no slabs.
    let min_large = 4 * page;
    match block.bytes() {
        bytes if bytes >= min_large => bytes,
        bytes if truth.has_version("5.3.1") && bytes.next_multiple_of(page) < min_large => 0,
        _ => min_large,
    }
}

/// The figures of a walk under the names of mallctl(3): all figures that a [`HeapMap`] contains.
fn figures(heap: &HeapMap, truth: &Truth) -> Vec<(String, i64)> {
    let mut rows = Vec::new();
    let mut row = |name: String, value: u64| rows.push((name, i64::try_from(value).unwrap()));
    let mut totals = [0; 5];
    let page = truth.number("arenas.page");
    let bins = truth.numbers("arenas.bin.*.size");
    let larges = truth.numbers("arenas.lextent.*.size");
    for (index, number) in (0..).zip(truth.arenas()) {
        let arena = &heap.arenas[index as usize];
        let of = |name: &str| format!("stats.arenas.{number}.{name}");
        let [active, dirty, muzzy, retained, metadata] = [
            ExtentState::Active,
            ExtentState::Dirty,
            ExtentState::Muzzy,
            ExtentState::Retained,
            ExtentState::Metadata,
        ]
        .map(|state| bytes_in(heap, index, state));
        row(of("pactive"), active / page);
        row(of("pdirty"), dirty / page);
        row(of("pmuzzy"), muzzy / page);
        row(of("retained"), retained);
        row(of("mapped"), active + dirty + muzzy + metadata);
        row(of("mapped"), arena.system_bytes);
        row(of("nthreads"), u64::from(arena.threads.unwrap()));

        let mut regions = vec![0; bins.len()];
        let mut slabs = vec![0; bins.len()];
        let mut extents = vec![0; larges.len()];
        let (mut small, mut large) = (0, 0);
        for extent in in_state(heap, index, ExtentState::Active) {
            let blocks = blocks(heap, extent);
            let allocated = blocks.iter().filter(|block| is_allocated(block));
            if let Some(bytes) = extent.region_bytes {
                let bin = bins.iter().position(|it| *it == bytes).unwrap();
                slabs[bin] += 1;
                let count = allocated.count() as u64;
                regions[bin] += count;
                small += count * bytes;
                continue;
            }
            for block in allocated {
                let bytes = counted_bytes(*block, truth);
                if bytes == 0 {
                    continue;
                }
                extents[larges.partition_point(|it| *it < bytes)] += 1;
                large += bytes;
            }
        }
        row(of("small.allocated"), small);
        row(of("large.allocated"), large);
        for (bin, (regions, slabs)) in regions.iter().zip(&slabs).enumerate() {
            row(of(&format!("bins.{bin}.curregs")), *regions);
            row(of(&format!("bins.{bin}.curslabs")), *slabs);
        }
        for (class, count) in extents.iter().enumerate() {
            row(of(&format!("lextents.{class}.curlextents")), *count);
        }
        let mapped = active + dirty + muzzy + metadata;
        for (total, of_arena) in totals.iter_mut().zip([small + large, active, mapped, retained]) {
            *total += of_arena;
        }
    }
    for (name, total) in ["allocated", "active", "mapped", "retained"].into_iter().zip(totals) {
        row(format!("stats.{name}"), total);
    }
    let decay = heap.tuning.unwrap().decay.unwrap();
    rows.push(("stats.arenas.0.dirty_decay_ms".into(), decay.dirty_ms));
    rows.push(("stats.arenas.0.muzzy_decay_ms".into(), decay.muzzy_ms));
    rows.push(("background_thread".into(), i64::from(decay.in_background)));
    rows
}

/// Checks invariants of every walk, even of a process that is never idle.
fn assert_consistent(heap: &HeapMap) {
    let mut end = Address(0);
    let mut is_changing = false;
    for extent in &heap.extents {
        let Range { start, end: extent_end } = extent.range;
        assert!(end <= start && start < extent_end, "{extent:?} begins before {end}");
        end = extent_end;
        let blocks = blocks(heap, extent);
        assert!(blocks.windows(2).all(|pair| pair[0].end() <= pair[1].address), "{extent:?}");
        let is_within = |block: &Block| start <= block.address && block.end() <= extent_end;
        assert!(blocks.iter().all(is_within), "{extent:?}: {blocks:?}");
        let arena = &heap.arenas[extent.arena.unwrap() as usize];
        // Base blocks do not depend on the tree of extents.
        if !arena.walked && extent.state != ExtentState::Metadata {
            assert!(blocks.is_empty(), "{extent:?} of an arena that was not walked: {blocks:?}");
            continue;
        }
        if blocks.is_empty() && extent.state == ExtentState::Active {
            is_changing = true;
            continue;
        }
        if let Some(bytes) = extent.region_bytes {
            assert_eq!(extent.state, ExtentState::Active);
            let slack = length(&extent.range) - bytes * blocks.len() as u64;
            assert!(slack < bytes, "{slack} bytes of {extent:?} in no region");
            assert!(blocks.iter().all(|block| block.bytes() == bytes));
            assert_eq!(blocks[0].address, start);
            continue;
        }
        let [block] = blocks[..] else { panic!("{extent:?}: {blocks:?}") };
        let whole = |state| Block::new(start, length(&extent.range), state);
        match extent.state {
            ExtentState::Active => assert_ne!(block.state(), BlockState::Free),
            ExtentState::Metadata => assert_eq!(block, whole(BlockState::Overhead)),
            ExtentState::Dirty | ExtentState::Muzzy | ExtentState::Retained => {
                assert_eq!(block, whole(BlockState::Free));
            }
        }
    }
    assert!(!is_changing || !heap.findings.is_empty(), "an active extent has no block");
    assert!(heap.blocks.iter().is_sorted_by(|a, b| a.address < b.address));
    let named = heap.findings.len();
    let unwalked = heap.arenas.iter().filter(|arena| !arena.walked).count();
    assert!(unwalked <= named, "{unwalked} arenas without blocks, and {:?}", heap.findings);

    assert!(heap.trimmable.windows(2).all(|pair| pair[0].end <= pair[1].start));
    let is_trimmable = |extent: &&Extent| {
        matches!(extent.state, ExtentState::Dirty | ExtentState::Muzzy)
            && heap.arenas[extent.arena.unwrap() as usize].walked
    };
    let trimmable = heap.extents.iter().filter(is_trimmable).map(|extent| length(&extent.range));
    assert_eq!(heap.trimmable.iter().map(length).sum::<u64>(), trimmable.sum::<u64>());
}

/// Compares a walk with all facts that the program knows of its heap. `except` are names of figures that differ for a
/// known reason.
fn assert_true(heap: &HeapMap, truth: &Truth, except: &[&str]) {
    assert!(heap.findings.iter().all(uses_huge_pages), "{:#?}", heap.findings);
    assert_consistent(heap);
    assert_eq!(heap.arenas.len(), truth.arenas().len());
    for (index, arena) in heap.arenas.iter().enumerate() {
        assert!(arena.walked && !arena.locked, "{arena:?}");
        assert_eq!(arena.is_main, index == 0);
    }

    let walked = figures(heap, truth);
    let differences: Vec<_> = walked
        .iter()
        .map(|(name, value)| (name, *value, truth.figure(name)))
        .filter(|(name, walked, figure)| {
            walked != figure && !except.iter().any(|end| name.ends_with(end))
        })
        .collect();
    assert!(differences.is_empty(), "of {}: {differences:#?}", walked.len());

    let bins = truth.numbers("arenas.bin.*.size");
    for extent in &heap.extents {
        let Some(bytes) = extent.region_bytes else { continue };
        let bin = bins.iter().position(|it| *it == bytes).unwrap();
        let of = |name| truth.number(&format!("arenas.bin.{bin}.{name}"));
        assert_eq!(length(&extent.range), of("slab_size"));
        assert_eq!(extent.blocks.len() as u64, of("nregs"));
    }

    let is_cached = |block: &Block| block.state() == BlockState::Tcache;
    let cached: u64 = heap.blocks.iter().filter(is_cached).map(|block| block.bytes()).sum();
    assert_eq!(cached, heap.totals.tcache_bytes);
    let names: Vec<_> =
        truth.arenas().iter().map(|it| format!("stats.arenas.{it}.tcache_bytes")).collect();
    let counted: u64 = names.iter().map(|name| truth.number(name)).sum();
    // 5.2.1 reads its counts of large regions from the wrong place (arena_stats_merge).
    if !truth.has_version("5.2.1") && !except.contains(&"tcache_bytes") {
        assert_eq!(cached, counted);
    }

    assert_live(heap, truth);
}

/// Every live pointer must be the address of a block in use with its usable size.
fn assert_live(heap: &HeapMap, truth: &Truth) {
    assert!(truth.live.len() > 100);
    let mut wrong = Vec::new();
    for &(pointer, bytes) in &truth.live {
        let block = heap.block_of(Address(pointer)).and_then(|number| heap.block(number));
        if block != Some(Block::new(Address(pointer), bytes, BlockState::InUse)) {
            wrong.push((Address(pointer), bytes, block));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}: {:?}",
        wrong.len(),
        truth.live.len(),
        &wrong[..wrong.len().min(10)]
    );
}

/// Makes the program purge all arenas, and compares the prediction with the decrease of its RSS.
fn assert_purge(heap: &HeapMap, state: &ProcessState, target: &mut Target) {
    let pages = state.pages.as_ref().unwrap();
    let predicted: u64 = heap.trimmable.iter().map(|range| pages.resident_bytes(range)).sum();
    target.tell("purge");
    let purged = target.next_truth();
    let kilobytes = |name: &str| purged[name].as_u64().unwrap();
    let dropped = (kilobytes("before_kb") - kilobytes("after_kb")) * 1024;
    let is_exact = predicted.abs_diff(dropped) <= page_size();
    // A purge also returns free memory within huge pages, which is in no extent.
    let is_more = predicted < dropped && heap.findings.iter().any(uses_huge_pages);
    assert!(is_exact || is_more, "{predicted} predicted, RSS lost {dropped}");
}

fn assert_all(settings: &str, threads: u32, rounds: u32, except: &[&str]) -> Option<HeapMap> {
    let mut truth = Truth::of(settings, threads, rounds)?;
    let (heap, state) = walk(&truth.target);
    assert_true(&heap, &truth, except);
    assert_purge(&heap, &state, &mut truth.target);
    Some(heap)
}

#[test]
fn a_single_thread() {
    let Some(heap) = assert_all("", 1, 20_000, &[]) else { return };
    assert!(heap.extents.iter().any(|extent| extent.state == ExtentState::Dirty));
    assert!(heap.totals.tcache_chunks > 0);
}

#[test]
fn many_threads_of_which_some_ended() {
    let Some(heap) = assert_all("", 12, 30_000, &[]) else { return };
    assert!(heap.arenas.len() > 4, "{:?}", heap.arenas);
    // Larger pages make fewer extents.
    assert!(heap.extents.len() > 200, "{}", heap.extents.len());
}

#[test]
fn dirty_and_muzzy_pages() {
    let Some(heap) = assert_all("muzzy_decay_ms:60000", 6, 20_000, &[]) else { return };
    for state in [ExtentState::Dirty, ExtentState::Muzzy, ExtentState::Retained] {
        assert!(heap.extents.iter().any(|extent| extent.state == state), "{state:?}");
    }
}

#[test]
fn background_threads() {
    let settings = "background_thread:true,dirty_decay_ms:50,muzzy_decay_ms:100";
    let Some(heap) = assert_all(settings, 4, 5000, &[]) else { return };
    assert!(heap.trimmable.is_empty());
    assert!(heap.tuning.unwrap().decay.unwrap().in_background);
}

/// A release ignores a setting that it does not know, so the table holds for all of them.
#[test]
fn all_settings() {
    const SETTINGS: [(&str, &[&str]); 14] = [
        ("narenas:1", &[]),
        ("tcache:false", &[]),
        ("dirty_decay_ms:0,muzzy_decay_ms:0", &[]),
        ("dirty_decay_ms:-1", &[]),
        ("retain:false", &[]),
        ("percpu_arena:percpu", &[]),
        ("cache_oblivious:false", &[]),
        ("oversize_threshold:0", &[]),
        ("slab_sizes:1-4096:17", &[]),
        ("bin_shards:1-512:4,narenas:2", &[]),
        ("tcache_max:1048576", &[]),
        ("dss:primary", &[]),
        ("prof:true,lg_prof_sample:14", &[]),
        // jemalloc counts the memory of huge pages neither as mapped nor, if it is kept, as cached, but counts free memory
        // within them as dirty.
        ("hpa:true", &["mapped", "tcache_bytes", "pdirty"]),
    ];
    for (settings, except) in SETTINGS {
        eprintln!("{settings}");
        assert_all(settings, 4, 5000, except);
    }
}

#[test]
fn a_library_with_another_name() {
    let Some(library) = testkit::jemalloc() else { return };
    let folder = tempfile::tempdir_in(folder()).unwrap();
    let renamed = folder.path().join("libfoo.so");
    fs::copy(testkit::outside(&library), &renamed).unwrap();
    let start = |arguments: &[&str]| Some(start_under(Some(&renamed), "", arguments));
    let truth = Truth::written_by(2, 5000, start).unwrap();
    let (heap, _) = walk(&truth.target);
    assert_true(&heap, &truth, &[]);
}

#[test]
fn a_process_that_never_stands_still() {
    let Some(target) = start("", &["busy", "4"]) else { return };
    let (mut walked, mut arenas, mut with_findings) = (0, 0, 0);
    for capture in 0..testkit::captures() {
        let (heap, _) = walk(&target);
        assert_consistent(&heap);
        arenas += heap.arenas.len();
        walked += heap.arenas.iter().filter(|arena| arena.walked).count();
        with_findings += u32::from(!heap.findings.is_empty());
        std::thread::sleep(Duration::from_micros(u64::from(capture * 997 % 6000)));
    }
    eprintln!("{with_findings} of {} walks have findings", testkit::captures());
    eprintln!("{walked} of {arenas} arenas were walked");
    assert!(walked * 2 > arenas, "{walked} of {arenas}");
}
