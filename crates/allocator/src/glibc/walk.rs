use std::ops::Range;

use image::Image;
use image::elf::Module;
use linux::{Address, each};

use crate::glibc::arena::walk_arena;
use crate::glibc::arena_list::{find_arenas, find_unlinked};
use crate::glibc::layout::{HEADER, LENT, Layouts};
use crate::glibc::mmapped::Mmapped;
use crate::glibc::parameters::find_parameters;
use crate::glibc::state::State;
use crate::glibc::trim::{Break, find_break};
use crate::glibc::{Error, main_heap, mmapped, tcache, totals, trim};
use crate::module_data::ModuleData;
use crate::{ArenaProblem, Blocks, Extent, Finding, Header, HeapMap};

/// Walks the heap of the GNU C library `glibc`. The caller chooses the module, since a process may have
/// loaded the library twice (dlmopen(3)). `stacks` are those of threads, also of threads that have ended.
///
/// # Errors
/// If the library's data cannot be read, or no known layout fits an arena in it.
pub(crate) fn walk(
    image: &Image<'_>,
    glibc: &Module,
    stacks: &[Range<Address>],
) -> Result<HeapMap, Error> {
    walk_with(image, glibc, &Layouts::default(), stacks)
}

/// Walks with the layouts given.
pub(crate) fn walk_with(
    image: &Image<'_>,
    glibc: &Module,
    layouts: &Layouts,
    stacks: &[Range<Address>],
) -> Result<HeapMap, Error> {
    let data = ModuleData::read(image, glibc)
        .map_err(|source| Error::Data { module: glibc.name.clone(), source })?;
    let list = find_arenas(image, &data, layouts, glibc)?;
    let main = State::read(image, list.arenas[0], true, &list.state).ok();
    let parameters = main
        .and_then(|main| find_parameters(image, &data, layouts, main_heap::start(image, &main)));
    let parameters = parameters.as_ref();

    let mut heap = HeapMap {
        walker: "glibc".to_owned(),
        header: Header { bytes: HEADER, lent: LENT },
        tuning: parameters.map(|found| found.tuning),
        ..HeapMap::default()
    };
    let unlisted = find_unlinked(image, &list, layouts).into_iter();
    heap.findings.extend(unlisted.map(|arena| Finding::ArenaUnlisted { arena }));
    let mut drafts = Vec::new();
    let walked = each(list.arenas.len(), |arena| walk_arena(image, &list, arena, parameters));
    for (index, walked) in (0..).zip(walked) {
        heap.arenas.push(walked.arena);
        heap.findings.extend(walked.finding);
        drafts.extend(walked.segments.into_iter().map(|segment| ExtentDraft {
            range: segment.range,
            arena: Some(index),
            chunks: segment.chunks,
        }));
    }
    drafts.sort_by_key(|draft| draft.range.start);
    reject_overlaps(&mut heap, &mut drafts);
    match parameters {
        Some(parameters) => {
            let taken: Vec<_> = drafts.iter().map(|draft| draft.range.clone()).collect();
            let found = mmapped::find(image, parameters, &taken, &mut heap.findings);
            drafts.extend(found.into_iter().map(ExtentDraft::from));
            drafts.sort_by_key(|draft| draft.range.start);
        }
        None => heap.findings.push(Finding::MmappedUnknown),
    }
    join(&mut heap, drafts);
    tcache::mark(image, glibc, layouts, parameters, stacks, &mut heap);
    let break_ = Break {
        at: find_break(image, glibc).ok().flatten(),
        unit: parameters.map_or(0, |found| found.thp_pagesize).max(image.page_size()),
    };
    heap.trimmable = trim::trimmable(&heap, break_, image.page_size());
    totals::count(&mut heap);
    Ok(heap)
}

/// An extent with chunks of its own.
struct ExtentDraft {
    range: Range<Address>,
    arena: Option<u32>,
    chunks: Blocks,
}

impl From<Mmapped> for ExtentDraft {
    fn from(mmapped: Mmapped) -> Self {
        Self { range: mmapped.range, arena: None, chunks: Blocks::from_iter([mmapped.chunk]) }
    }
}

/// Drops extents that overlap an earlier one, and the chunks of their arenas.
fn reject_overlaps(heap: &mut HeapMap, drafts: &mut Vec<ExtentDraft>) {
    let mut end = Address(0);
    let mut rejected = Vec::new();
    drafts.retain(|draft| {
        let is_apart = draft.range.start >= end;
        if is_apart {
            end = draft.range.end;
        } else {
            rejected.extend(draft.arena.map(|arena| (arena, draft.range.start)));
        }
        is_apart
    });
    for (index, at) in rejected {
        let arena = &mut heap.arenas[index as usize];
        arena.walked = false;
        let own = drafts.iter_mut().filter(|draft| draft.arena == Some(index));
        own.for_each(|draft| draft.chunks = Blocks::default());
        heap.findings.push(Finding::ArenaUnread {
            arena: arena.address,
            is_main: arena.is_main,
            at,
            cause: ArenaProblem::Inconsistent,
            error: "it claims memory that another arena has".into(),
        });
    }
}

/// Makes one table of all chunks. The first draft's own table is extended, and the others are freed one by
/// one, so there is never a second copy of all chunks.
fn join(heap: &mut HeapMap, drafts: Vec<ExtentDraft>) {
    let mut left: usize = drafts.iter().map(|draft| draft.chunks.len()).sum();
    for draft in drafts {
        let first = heap.blocks.len();
        left -= draft.chunks.len();
        if heap.blocks.is_empty() {
            heap.blocks = draft.chunks;
            heap.blocks.reserve_exact(left);
        } else {
            heap.blocks.append(draft.chunks);
        }
        let blocks = first..heap.blocks.len();
        heap.extents.push(Extent::new(draft.range, draft.arena, blocks));
    }
}
