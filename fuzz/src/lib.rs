//! Inputs for the fuzz targets.
//!
//! A fuzzer rarely finds its way through checksums, compression and linked structures. Its input is therefore damage to
//! something valid: a list of patches.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use formats::{Capture, CaptureMethod, Snapshot};
use image::{Image, ProcessState};
use ledger::{Analyses, Dump, Facts, Ledger, ReadDepth};
use linux::{Address, MIN_PAGE_SIZE, length};
use render::TextOptions;
use serde_json::Value;
use testkit::{
    GlibcRelease, JemallocHeap, JemallocRelease, MallocHeap, PagesUse, RubyHeap, RubyRelease,
    SyntheticMemory,
};

/// Bytes to write over something valid.
#[derive(Debug)]
pub struct Patch<'a> {
    place: u32,
    /// The new bytes, 1 to 8.
    pub bytes: &'a [u8],
}

impl Patch<'_> {
    /// The place to write to in something of `length` bytes; `None` if it has none.
    #[must_use]
    pub fn place(&self, length: usize) -> Option<usize> {
        (self.place as usize).checked_rem(length)
    }

    /// Writes the patch over `bytes`.
    pub fn apply(&self, bytes: &mut [u8]) {
        if let Some(place) = self.place(bytes.len()) {
            self.write(bytes, place);
        }
    }

    /// Writes the patch over `bytes` at `place`.
    pub fn write(&self, bytes: &mut [u8], place: usize) {
        for (old, new) in bytes[place..].iter_mut().zip(self.bytes) {
            *old = *new;
        }
    }
}

/// Parses a fuzzer's input: for each patch four bytes for the place, one for the length, and the new bytes.
pub fn patches(mut input: &[u8]) -> impl Iterator<Item = Patch<'_>> {
    std::iter::from_fn(move || {
        let (place, rest) = input.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first()?;
        let (bytes, rest) = rest.split_at_checked(usize::from(length % 8) + 1)?;
        input = rest;
        Some(Patch { place: u32::from_le_bytes(*place), bytes })
    })
}

/// A process, and its memory.
type Process = (ProcessState, SyntheticMemory);

/// Returns the process with this key, which `make` makes the first time: writing it takes longer than examining it.
fn made_once<K: Ord>(
    made: &Mutex<BTreeMap<K, Process>>,
    key: K,
    make: impl FnOnce(&K) -> Process,
) -> Process {
    let mut made = made.lock().expect("no target survives a panic");
    made.entry(key).or_insert_with_key(make).clone()
}

/// A process with 3 threads, a glibc heap, and a Ruby whose strings and objects hold chunks of it.
///
/// `choice` selects the releases of glibc and Ruby.
#[must_use]
pub fn process(choice: u8) -> Process {
    static MADE: Mutex<BTreeMap<(u8, usize), Process>> = Mutex::new(BTreeMap::new());
    made_once(&MADE, (choice % 3, ruby_release(choice)), |&(libc, ruby)| {
        let libc =
            [GlibcRelease::V2_31, GlibcRelease::V2_36, GlibcRelease::V2_43][usize::from(libc)];
        let mut heap = MallocHeap::new(libc, 3);
        let sizes = [24, 40, 100, 520, 1032, 5000, 70_000];
        let chunks: Vec<u64> =
            (0..60).map(|it| heap.malloc(it % 3, sizes[it % sizes.len()] + it as u64)).collect();
        heap.map_chunk(400_000);
        for (index, chunk) in chunks.iter().enumerate().filter(|(index, _)| index % 3 == 1) {
            heap.free(index % 3, *chunk);
        }
        let mut memory = SyntheticMemory::default();
        let truth = heap.write(&mut memory);
        write_ruby(&mut memory, ruby, &chunks);
        let mut state = memory.state();
        state.threads = truth.threads;
        state.process.pid = state.threads[0].tid;
        (state, memory)
    })
}

/// The same under jemalloc. `choice` selects the releases of jemalloc and Ruby, and the bits of addresses.
#[must_use]
pub fn jemalloc_process(choice: u8) -> Process {
    static MADE: Mutex<BTreeMap<(usize, u8, usize), Process>> = Mutex::new(BTreeMap::new());
    let releases = JemallocRelease::ALL;
    let key = (usize::from(choice & 7) % releases.len(), choice & 8, ruby_release(choice));
    made_once(&MADE, key, |&(release, bits, ruby)| {
        let mut heap = JemallocHeap::new(releases[release], if bits == 0 { 48 } else { 57 }, 3);
        let sizes = [8, 40, 100, 520, 1032, 5000, 20_000, 70_000];
        let chunks: Vec<u64> =
            (0..80).map(|it| heap.malloc(it % 3, sizes[it % sizes.len()] + it as u64)).collect();
        for (index, chunk) in chunks.iter().enumerate().filter(|(index, _)| index % 3 == 1) {
            heap.free(index % 3, *chunk);
            if index == 40 {
                heap.flush(1);
                heap.decay(0, PagesUse::Dirty, PagesUse::Muzzy);
            }
        }
        let mut memory = SyntheticMemory::default();
        heap.write(&mut memory);
        write_ruby(&mut memory, ruby, &chunks);
        (memory.state(), memory)
    })
}

const RUBIES: [RubyRelease; 2] = [RubyRelease::V3_1, RubyRelease::V3_4];

fn ruby_release(choice: u8) -> usize {
    usize::from(choice / 16) % RUBIES.len()
}

/// Writes a Ruby with strings and objects that hold every third chunk.
fn write_ruby(memory: &mut SyntheticMemory, release: usize, chunks: &[u64]) {
    let mut ruby = RubyHeap::new(RUBIES[release]);
    for chunk in chunks.iter().step_by(3) {
        ruby.string_at(*chunk, 20);
    }
    ruby.write(memory);
}

/// Damages the memory of a process by the patches in `input`, and draws up its ledger: the rows must still add up to RSS.
pub fn examine_damaged(state: ProcessState, mut memory: SyntheticMemory, input: &[u8]) {
    let runs: Vec<_> = state.pages.iter().flat_map(|pages| pages.iter().cloned()).collect();
    let total: u64 = runs.iter().map(|run| length(&run.range)).sum();
    for patch in patches(input) {
        let Some(mut place) = patch.place(total as usize / 8).map(|word| word as u64 * 8) else {
            return;
        };
        for run in &runs {
            if place < length(&run.range) {
                let mut word = [0; 8];
                word[..patch.bytes.len()].copy_from_slice(patch.bytes);
                memory.write_u64(run.range.start.0 + place, u64::from_le_bytes(word));
                break;
            }
            place -= length(&run.range);
        }
    }
    examine(&Image::new(state, memory));
}

/// Analyses an image up to the text of its report. The rows must add up to the resident bytes, and so must the map.
pub fn examine(image: &Image<'_>) {
    let snapshot = draw_up(image);
    let pages = image.state.pages.as_ref().expect("the states of pages are known");
    let resident = pages.resident_bytes(&(Address(0)..Address(u64::MAX)));
    let Snapshot { report, memory_map } = &snapshot;
    assert_eq!(report.causes.iter().map(|row| row.bytes).sum::<u64>(), resident);
    assert_eq!(memory_map.resident_bytes(), resident);
    let owners = report.owners.as_ref().map_or(0, Vec::len);
    assert_eq!(memory_map.check(owners), Ok(()));
    // Packing takes longer than all the rest.
    if report.process.rss_bytes / MIN_PAGE_SIZE % 16 == 0 {
        let read = Snapshot::from_bytes(&snapshot.to_bytes());
        assert!(read.is_ok(), "{:?}", read.err());
    }
    let options = TextOptions { width: 100, arenas: true, code: true, waste: true };
    let _ = render::report(&snapshot.report.brief(10), options);
}

/// The snapshot of a process with glibc's heap.
#[must_use]
pub fn snapshot() -> &'static Snapshot {
    static SNAPSHOT: OnceLock<Snapshot> = OnceLock::new();
    SNAPSHOT.get_or_init(draw_up_snapshot)
}

fn draw_up_snapshot() -> Snapshot {
    let (state, memory) = process(1);
    draw_up(&Image::new(state, memory))
}

fn draw_up(image: &Image<'_>) -> Snapshot {
    let analyses = Analyses { retained_sizes: true, memory_map: true, ..Analyses::default() };
    let facts = Facts::read(image, ReadDepth::Values);
    // Without objects there is nothing to dump.
    let _ = facts.dump(&image.state, true, walk);
    let (ledger, memory_map) = Ledger::draw_up_with(analyses, &image.state, &facts);
    let none = Duration::ZERO;
    let written = SystemTime::UNIX_EPOCH;
    let capture = Capture::new(CaptureMethod::Core, String::new(), written, none, none, None);
    Snapshot { report: diagnosis::report(&ledger, capture), memory_map }
}

/// Visits all that a dump has. What an object refers to must be in it.
fn walk(dump: &Dump<'_>) {
    let (mut addresses, mut targets) = (BTreeSet::new(), BTreeSet::new());
    let Ok(()) = dump.roots(|_, to| {
        targets.extend(to.iter().copied());
        Ok::<_, Infallible>(())
    });
    let Ok(()) = dump.objects(|object| {
        assert!(addresses.insert(object.address), "{object:?} is there twice");
        targets.extend(object.references.addresses().chain(object.parent));
        Ok::<_, Infallible>(())
    });
    assert!(targets.is_subset(&addresses), "{:?}", targets.difference(&addresses));
    let Ok(()) = dump.blocks(|_| Ok::<_, Infallible>(()));
    let Ok(()) = dump.pages(|_| Ok::<_, Infallible>(()));
}

/// A JSON document, of which single values are replaced.
#[derive(Debug)]
pub struct Leaves {
    document: Value,
    /// The places of all values, as JSON pointers.
    places: Vec<String>,
}

impl Leaves {
    /// The values of a JSON document.
    #[must_use]
    pub fn of(document: &[u8]) -> Self {
        let document = serde_json::from_slice(document).expect("a valid document");
        let mut places = Vec::new();
        add_places(&document, String::new(), &mut places);
        Self { document, places }
    }

    /// Returns the document with a new value for each patch in `input`.
    #[must_use]
    pub fn damaged(&self, input: &[u8]) -> Value {
        let mut document = self.document.clone();
        for patch in patches(input) {
            let Some(place) = patch.place(self.places.len()) else { continue };
            // An earlier patch may have replaced what was around it.
            if let Some(value) = document.pointer_mut(&self.places[place]) {
                replace(value, patch.bytes);
            }
        }
        document
    }
}

fn add_places(value: &Value, at: String, places: &mut Vec<String>) {
    match value {
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                add_places(value, format!("{at}/{index}"), places);
            }
        }
        Value::Object(values) => {
            for (key, value) in values {
                add_places(
                    value,
                    format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")),
                    places,
                );
            }
        }
        _ => {}
    }
    places.push(at);
}

/// The most values in an array that a patch makes by repetition.
const MAX_VALUES: usize = 1 << 16;

/// The number of values within a value, itself included.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(values) => values.iter().map(count).sum(),
        Value::Object(values) => values.values().map(count).sum::<usize>(),
        _ => 0,
    }
}

/// Replaces a value by one that the bytes of a patch describe.
fn replace(value: &mut Value, bytes: &[u8]) {
    let (&kind, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let word = u64::from_le_bytes(word);
    *value = match (kind % 8, &*value) {
        (0, Value::Number(number)) => number.as_u64().map_or(Value::Null, |it| (it / 2).into()),
        (1, Value::Number(number)) => {
            number.as_u64().map_or(Value::Null, |it| it.wrapping_add(word).into())
        }
        (2, _) => word.into(),
        (3, _) => word.cast_signed().wrapping_neg().into(),
        (4, Value::Array(values)) => {
            // Patches may repeat values that contain repeated ones.
            let room = MAX_VALUES / count(value).max(1);
            let times = (1 + (word % 64) as usize).min(room.max(1));
            values.iter().take(64).flat_map(|it| std::iter::repeat_n(it.clone(), times)).collect()
        }
        (5, Value::Array(values)) => values.iter().skip(1).cloned().collect(),
        (6, Value::String(text)) => {
            let text: String = text.chars().take(16).collect();
            text.repeat((word % 2048) as usize).into()
        }
        (7, Value::Bool(is)) => (!is).into(),
        (_, Value::String(_)) => String::from_utf8_lossy(bytes).into(),
        (_, Value::Number(_)) => f64::from_bits(word).into(),
        _ => Value::Null,
    };
}
