//! A core without what no reader needs: machine code, pages of zeros, and most pages of files. It is a compressed list of the parts that
//! are left, each with its offset in the core, its length and its bytes, after the length of the core.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use image::{Image, Memory, Source};
use ledger::{Facts, ReadDepth};
use linux::{Address, Sysroot, WantedVariables};

const PAGE: u64 = linux::MIN_PAGE_SIZE;
/// The types of parts of memory and of notes among the program headers of an ELF file, and the size of these.
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const HEADER_BYTES: usize = 56;

/// Writes the core that an image was made from. What was left out becomes holes.
pub(super) fn expand(image: &Path, core: &Path) {
    let mut parts = Vec::new();
    GzDecoder::new(File::open(image).unwrap()).read_to_end(&mut parts).unwrap();
    let file = File::create(core).unwrap();
    let (length, mut rest) = take(&parts);
    file.set_len(length).unwrap();
    while !rest.is_empty() {
        let (offset, after) = take(rest);
        let (bytes, after) = take(after);
        let (part, after) = after.split_at(bytes as usize);
        file.write_all_at(part, offset).unwrap();
        rest = after;
    }
}

fn take(bytes: &[u8]) -> (u64, &[u8]) {
    let (number, rest) = bytes.split_at(8);
    (u64::from_le_bytes(number.try_into().unwrap()), rest)
}

/// Notes which pages are read.
struct Recorder<'a> {
    image: &'a Image<'a>,
    pages: Mutex<BTreeSet<u64>>,
}

impl Memory for &Recorder<'_> {
    fn read(&self, at: Address, into: &mut [u8]) -> usize {
        let bytes = self.image.read(at, into);
        let pages =
            (at.0 / PAGE..at.0.saturating_add(bytes as u64).div_ceil(PAGE)).map(|it| it * PAGE);
        self.pages.lock().unwrap().extend(pages);
        bytes
    }
}

impl Source for &Recorder<'_> {}

/// The pages that reports and dumps read.
fn pages_read(image: &Image<'_>) -> BTreeSet<u64> {
    let recorder = Recorder { image, pages: Mutex::default() };
    for depth in [ReadDepth::Owners, ReadDepth::Values, ReadDepth::Texts] {
        drop(Facts::read(&Image::new(image.state.clone(), &recorder), depth));
    }
    recorder.pages.into_inner().unwrap()
}

/// Writes an image of a core. RBLOAT_WRITE_IMAGE has the paths of both, as `scripts/image` sets it.
#[test]
fn an_image_is_written_on_request() {
    let Some(paths) = env::var_os("RBLOAT_WRITE_IMAGE") else { return };
    let paths: Vec<PathBuf> = env::split_paths(&paths).collect();
    let [core, image] = &paths[..] else { panic!("{paths:?}") };
    let bytes = fs::read(core).unwrap();
    let nowhere = tempfile::tempdir().unwrap();
    let sysroot = Sysroot::open(Some(nowhere.path()));
    let wanted = WantedVariables { with_value: &[], without_value: &[], settings: None };
    let core = image::open_core(core, &sysroot, wanted).unwrap();
    let read = pages_read(&core.image);
    let is_needed = |at: u64| {
        let Some(mapping) = core.image.state.mappings.find(Address(at)) else { return false };
        // The head of a file has its build id.
        let is_head = mapping.file_offset == 0 && at == mapping.range.start.0;
        !mapping.executable && (mapping.is_private_anonymous() || is_head || read.contains(&at))
    };
    let mut encoder = GzEncoder::new(File::create(image).unwrap(), Compression::best());
    encoder.write_all(&(bytes.len() as u64).to_le_bytes()).unwrap();
    let mut put = |offset: u64, part: &[u8]| {
        let head = [offset, part.len() as u64].map(u64::to_le_bytes).concat();
        encoder.write_all(&head).and_then(|()| encoder.write_all(part)).unwrap();
    };
    for note in segments(&bytes, PT_NOTE) {
        put(note.offset, &bytes[note.offset as usize..(note.offset + note.bytes) as usize]);
    }
    let segments = segments(&bytes, PT_LOAD);
    let head = segments.iter().map(|it| it.offset).min().unwrap();
    put(0, &bytes[..head as usize]);
    for segment in segments {
        for within in (0..segment.bytes).step_by(PAGE as usize) {
            let offset = segment.offset + within;
            let part = &bytes[offset as usize..(offset + PAGE) as usize];
            if is_needed(segment.address + within) && part.iter().any(|&byte| byte != 0) {
                put(offset, part);
            }
        }
    }
    encoder.finish().unwrap();
}

/// A part of a core: of memory, or notes.
struct Segment {
    offset: u64,
    address: u64,
    bytes: u64,
}

fn segments(core: &[u8], kind: u32) -> Vec<Segment> {
    let word = |at: usize| u64::from_le_bytes(core[at..at + 8].try_into().unwrap());
    let (start, count) = (word(0x20) as usize, word(0x38) as u16);
    let headers = (0..usize::from(count)).map(|number| start + number * HEADER_BYTES);
    let wanted = headers.filter(|&at| word(at) as u32 == kind);
    let segment =
        |at| Segment { offset: word(at + 8), address: word(at + 16), bytes: word(at + 32) };
    wanted.map(segment).collect()
}
