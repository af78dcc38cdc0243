//! The code that touched memory, joined with the map of the process: each page that was sampled has a use and owners now.

use std::cmp::Reverse;
use std::collections::HashMap;

use formats::{
    Action, Advice, MadeBy, MadePages, Maker, Owner, Report, Snapshot, Who, WhoStack, WhoTouched,
};
use ledger::{Area, AreaKind, Cause, Gem, MapBlock, MemoryMap, PageUse, Use};
use linux::Address;

/// Smaller parts of a process get no row.
const MIN_BYTES: u64 = 1 << 20;
/// Owners that get a row, at most.
const MAX_OWNERS: usize = 10;
/// Rows of code for each part, at most.
const MAX_CODE: usize = 20;
/// Code with a colour of its own in a picture, at most.
const MAX_COLOURS: usize = 12;
/// The least share of a part that is worth changing its code, in percent.
const MIN_SHARE: u64 = 25;
/// The memory without an owner: free memory that code leaves behind, and mappings that are neither malloc's nor Ruby's.
const WITHOUT_OWNER: [Cause; 5] = [
    Cause::MallocUnreturned,
    Cause::MallocFragmented,
    Cause::MallocMuzzy,
    Cause::RubyFreeSlots,
    Cause::Unknown,
];

/// The kind of the owner of memory to which nothing points.
const NOBODY: &str = "none";

/// A part of a process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    WithoutOwner(Cause),
    /// The memory of the owner with this index.
    Owner(u32),
}

/// The bytes of each part by their code. A part without code is one of whose code nothing can be said.
type Sums = HashMap<Part, HashMap<u32, f64>>;

/// A page that was touched during the observation, and the bytes that it stands for.
struct Touch {
    page: Address,
    maker: Option<u32>,
    bytes: u64,
}

/// Adds the code that touched the memory first to the report of a snapshot, and the step to change it.
pub fn name_code(snapshot: &mut Snapshot, who: &Who) {
    snapshot.report.made_by = Some(made_by(snapshot, who));
    let step = change_code(&snapshot.report);
    let advice = &mut snapshot.report.advice;
    // The snapshot may have been made with other samples.
    advice.retain(|it| !matches!(it.action, Action::ChangeCode { .. }));
    advice.splice(..0, step);
}

/// Finds the code that touched the memory of a snapshot first, by the samples in `who`.
#[must_use]
pub fn made_by(snapshot: &Snapshot, who: &Who) -> Vec<MadeBy> {
    let Snapshot { report, memory_map } = snapshot;
    let makers = Makers::new(who);
    let touches = touches(report, who, &makers);
    let nobody = report.owners.iter().flatten().position(|owner| owner.kind == NOBODY);
    let nobody = nobody.and_then(|index| u32::try_from(index).ok());
    let mut sums = Sums::new();
    for area in &memory_map.areas {
        let start = touches.partition_point(|it| it.page < area.range.start);
        let end = touches.partition_point(|it| it.page < area.range.end);
        if let Some(own) = touches.get(start..end).filter(|own| !own.is_empty()) {
            add_area(memory_map, area, own, nobody, &mut sums);
        }
    }
    let mut rows = Vec::new();
    for cause in WITHOUT_OWNER {
        let bytes = report.causes.iter().find(|row| row.cause == cause).map_or(0, |row| row.bytes);
        rows.extend(row(Some(cause), None, bytes, sums.get(&Part::WithoutOwner(cause)), &makers));
    }
    let mut owners: Vec<(usize, &Owner)> = report.owners.iter().flatten().enumerate().collect();
    owners.sort_by_key(|(_, owner)| Reverse(owner.bytes()));
    for (index, owner) in owners.into_iter().take(MAX_OWNERS) {
        let sums = u32::try_from(index).ok().and_then(|index| sums.get(&Part::Owner(index)));
        let name = Some(owner.owner.clone());
        rows.extend(row(owner.cause, name, owner.bytes(), sums, &makers));
    }
    rows
}

/// Finds the pages that code touched first, for a picture: each sample stands for the pages before it, up to the last sample.
#[must_use]
pub fn made_pages(snapshot: &Snapshot, who: &Who) -> MadePages {
    let page_size = snapshot.memory_map.page_size;
    let makers = Makers::new(who);
    let touches = touches(&snapshot.report, who, &makers);
    let mut bytes: HashMap<u32, u64> = HashMap::new();
    for touch in &touches {
        if let Some(maker) = touch.maker {
            let sum = bytes.entry(maker).or_default();
            *sum = sum.saturating_add(touch.bytes);
        }
    }
    let mut most: Vec<(u32, u64)> = bytes.into_iter().collect();
    most.sort_by_key(|&(maker, bytes)| (Reverse(bytes), maker));
    most.truncate(MAX_COLOURS);
    let code = |&(maker, bytes): &(u32, u64)| Some(Maker { bytes, ..makers.get(maker)? });
    let colours: HashMap<u32, u32> = most.iter().map(|it| it.0).zip(0..).collect();
    let mut pages = Vec::with_capacity(touches.len());
    let mut next = 0;
    for Touch { page, maker, bytes } in touches {
        let page = page.0 / page_size;
        let count = (bytes / page_size).clamp(1, (page + 1 - next).max(1));
        next = page + 1;
        let other = most.len() as u32;
        let colour = maker.map(|maker| colours.get(&maker).copied().unwrap_or(other));
        pages.extend(colour.map(|colour| (page + 1 - count, count, colour)));
    }
    MadePages { code: most.iter().filter_map(code).collect(), pages }
}

/// The step that names the code to change, if that is known of the verdict's memory.
fn change_code(report: &Report) -> Option<Advice> {
    let cause = report.verdict.cause?;
    let rows = report.made_by.iter().flatten().filter(|row| row.cause == Some(cause));
    let row = rows.max_by_key(|row| row.code.first().map(|most| most.bytes))?;
    let least = report.verdict.bytes / 100 * MIN_SHARE;
    let most = row.code.first().filter(|most| most.bytes >= least)?;
    let action = Action::ChangeCode { of: cause, owner: row.owner.clone(), code: most.clone() };
    Some(Advice { action, saves_bytes: None })
}

/// Returns the sampled pages of a process. A pid alone may be another process's by now.
#[must_use]
pub fn touched_by(pid: i32, started_ticks: Option<u64>, who: &Who) -> Option<&WhoTouched> {
    who.touched
        .iter()
        .find(|it| it.pid == pid && it.started_ticks.zip(started_ticks).is_none_or(|(a, b)| a == b))
}

fn touches(report: &Report, who: &Who, makers: &Makers) -> Vec<Touch> {
    let process = &report.process;
    let Some(touched) = touched_by(process.pid, process.started_ticks, who) else {
        return Vec::new();
    };
    let columns = touched.pages.iter().zip(&touched.stacks).zip(&touched.bytes);
    let touch = |((&page, stack), &bytes): ((&u64, &Option<u32>), &u64)| Touch {
        page: Address(page.saturating_mul(touched.page_bytes)),
        maker: stack.and_then(|stack| makers.of_stack.get(stack as usize).copied().flatten()),
        bytes,
    };
    let mut touches: Vec<Touch> = columns.map(touch).collect();
    touches.sort_by_key(|touch| touch.page);
    touches
}

/// Adds the bytes of touched pages to the parts that they belong to now. A page of `nobody` may have been other code's before its blocks
/// were made, and that code would be blamed for a leak. Only a block with a mapping of its own is as old as its pages.
fn add_area(
    memory_map: &MemoryMap,
    area: &Area,
    touches: &[Touch],
    nobody: Option<u32>,
    sums: &mut Sums,
) {
    let may_be_reused =
        |part| area.kind != AreaKind::Mmapped && nobody.is_some_and(|it| part == Part::Owner(it));
    let page_size = memory_map.page_size;
    let mut runs = memory_map.pages(area).peekable();
    let mut blocks = memory_map.blocks(area).peekable();
    for &Touch { page, maker, bytes } in touches {
        let end = page.offset(page_size);
        while runs.next_if(|(range, _)| range.end <= page).is_some() {}
        while blocks.next_if(|block| end_of(block) <= page).is_some() {}
        let Some(maker) = maker else { continue };
        let mut add = |part, share: f64| {
            let code = sums.entry(part).or_default();
            if !may_be_reused(part) {
                *code.entry(maker).or_default() += share * bytes as f64;
            }
        };
        match runs.peek().map(|run| run.1) {
            Some(PageUse::Unreturned) => add(Part::WithoutOwner(Cause::MallocUnreturned), 1.0),
            // A part of a library's variables is anonymous, too, but it is small.
            Some(PageUse::Resident) if area.kind == AreaKind::Anonymous => {
                add(Part::WithoutOwner(Cause::Unknown), 1.0);
            }
            Some(PageUse::Resident) => {
                while let Some(block) = blocks.peek().filter(|block| block.address < end) {
                    let within = end_of(block).min(end) - block.address.max(page);
                    if let Some(part) = part(block) {
                        add(part, within as f64 / page_size as f64);
                    }
                    if end_of(block) > end {
                        break;
                    }
                    blocks.next();
                }
            }
            _ => {}
        }
    }
}

fn end_of(block: &MapBlock) -> Address {
    block.address.offset(block.bytes)
}

fn part(block: &MapBlock) -> Option<Part> {
    match block.used {
        Use::Free => Some(Part::WithoutOwner(Cause::MallocFragmented)),
        Use::Muzzy => Some(Part::WithoutOwner(Cause::MallocMuzzy)),
        Use::FreeSlot => Some(Part::WithoutOwner(Cause::RubyFreeSlots)),
        _ => block.owner.map(Part::Owner),
    }
}

/// The row of a part of `bytes` bytes. Samples are estimates: together they are not more than the part.
fn row(
    cause: Option<Cause>,
    owner: Option<String>,
    bytes: u64,
    sums: Option<&HashMap<u32, f64>>,
    makers: &Makers,
) -> Option<MadeBy> {
    let sums = sums.filter(|_| bytes >= MIN_BYTES)?;
    let estimate: f64 = sums.values().sum();
    let scale = (bytes as f64 / estimate).min(1.0);
    let mut code: Vec<Maker> = sums
        .iter()
        .filter_map(|(&maker, &sum)| {
            let bytes = (sum * scale) as u64;
            Some(Maker { bytes, ..makers.get(maker)? })
        })
        .filter(|maker| maker.bytes > 0)
        .collect();
    code.sort_by(|a, b| b.cmp(a));
    let known_bytes = code.iter().map(|maker| maker.bytes).sum();
    code.truncate(MAX_CODE);
    (known_bytes > 0 || sums.is_empty()).then_some(MadeBy {
        cause,
        owner,
        bytes,
        known_bytes,
        code,
    })
}

/// The code of each stack.
struct Makers {
    all: Vec<Maker>,
    of_stack: Vec<Option<u32>>,
}

impl Makers {
    fn new(who: &Who) -> Self {
        let mut numbers: HashMap<Maker, u32> = HashMap::new();
        let mut all = Vec::new();
        let of_stack = who.stacks.iter().map(|stack| {
            let maker = maker(who, stack)?;
            Some(*numbers.entry(maker).or_insert_with_key(|maker| {
                all.push(maker.clone());
                all.len() as u32 - 1
            }))
        });
        let of_stack = of_stack.collect();
        Self { all, of_stack }
    }

    fn get(&self, number: u32) -> Option<Maker> {
        self.all.get(number as usize).cloned()
    }
}

/// The innermost line of the application on a stack, and the method that it called; without one the innermost line.
fn maker(who: &Who, stack: &WhoStack) -> Option<Maker> {
    let frames: Vec<_> =
        stack.frames.iter().filter_map(|&frame| who.frames.get(frame as usize)).collect();
    let is_application =
        |path: &Option<String>| path.is_some() && Gem::of(path.as_deref()).is_application();
    let index = frames
        .iter()
        .rposition(|frame| is_application(&frame.path))
        .or_else(|| frames.iter().rposition(|frame| frame.path.is_some()))
        .or(frames.len().checked_sub(1))?;
    let frame = frames[index];
    let task = stack.task.and_then(|task| who.tasks.get(task as usize));
    Some(Maker {
        bytes: 0,
        method: frame.method.clone(),
        calls: frames.get(index + 1).map(|callee| callee.method.clone()),
        path: frame.path.clone(),
        line: frame.line,
        task: task.map(|task| task.name.clone()),
    })
}

#[cfg(test)]
mod tests {
    use ledger::Columns;

    use super::*;

    /// Four pages: half a free chunk and half a chunk of owner 2, the rest of that chunk, a page that a trim would return, and
    /// one that was returned.
    fn memory_map() -> (MemoryMap, Area) {
        // In LEB128: 256, 768 and 1024 units of 8 bytes.
        let sizes = vec![0x80, 0x02, 0x80, 0x06, 0x80, 0x08];
        let uses = vec![Use::Free as u8, Use::InUse as u8, Use::Free as u8];
        let pages = vec![
            2 * 8 + PageUse::Resident as u8,
            8 + PageUse::Unreturned as u8,
            8 + PageUse::Returned as u8,
        ];
        let area = Area {
            range: Address(0x10000)..Address(0x14000),
            kind: AreaKind::Mmapped,
            name: String::new(),
            blocks: 3,
            sizes: 0..6,
            uses: 0..3,
            owners: 0..1,
            pages: 0..3,
        };
        let columns = Columns { sizes, uses, owners: vec![3], pages };
        (MemoryMap { areas: vec![area.clone()], columns, ..MemoryMap::default() }, area)
    }

    #[test]
    fn a_page_belongs_to_what_is_on_it_now() {
        let (memory_map, area) = memory_map();
        memory_map.check(3).unwrap();
        let touch = |page, maker| Touch { page: Address(page), maker, bytes: 1000 };
        let touches = [
            touch(0x10000, Some(7)),
            touch(0x11000, Some(8)),
            touch(0x12000, Some(7)),
            touch(0x13000, Some(7)),
        ];
        let mut sums = HashMap::new();
        add_area(&memory_map, &area, &touches, None, &mut sums);
        let sum = |part, maker| sums.get(&part).and_then(|it| it.get(&maker)).copied();
        assert_eq!(sum(Part::WithoutOwner(Cause::MallocFragmented), 7), Some(500.0));
        assert_eq!(sum(Part::Owner(2), 7), Some(500.0));
        assert_eq!(sum(Part::Owner(2), 8), Some(1000.0));
        assert_eq!(sum(Part::WithoutOwner(Cause::MallocUnreturned), 7), Some(1000.0));
        assert_eq!(sums.values().map(HashMap::len).sum::<usize>(), 4);
        // Unknown stacks are nobody's.
        let mut sums = HashMap::new();
        add_area(&memory_map, &area, &[touch(0x10000, None)], None, &mut sums);
        assert_eq!(sums, HashMap::new());
    }

    /// "(nobody): 29.8 MiB of 29.8 MiB first touched in Render#page", whose memory had been freed before the leak took it.
    #[test]
    fn a_leak_in_memory_that_was_used_before_has_no_code() {
        let (memory_map, mapped) = memory_map();
        let arena = Area { kind: AreaKind::Arena(0), ..mapped.clone() };
        let touch = |page, maker| Touch { page: Address(page), maker, bytes: 1000 };
        let touches = [touch(0x10000, Some(7)), touch(0x11000, Some(8))];
        let of_owner = |area, nobody| {
            let mut sums = Sums::new();
            add_area(&memory_map, area, &touches, nobody, &mut sums);
            sums[&Part::Owner(2)].len()
        };
        assert_eq!([of_owner(&arena, Some(2)), of_owner(&mapped, Some(2))], [0, 2]);
        assert_eq!([of_owner(&arena, Some(1)), of_owner(&arena, None)], [2, 2]);
        let makers = Makers { all: vec![], of_stack: vec![] };
        let row = row(None, Some("(nobody)".into()), 2 << 20, Some(&HashMap::new()), &makers);
        assert_eq!(row.map(|it| (it.known_bytes, it.code)), Some((0, vec![])));
    }

    #[test]
    fn mappings_that_are_neither_mallocs_nor_rubys_are_made_by_code() {
        let (memory_map, area) = memory_map();
        let area = Area { kind: AreaKind::Anonymous, blocks: 0, sizes: 0..0, uses: 0..0, ..area };
        let touch = |page, maker| Touch { page: Address(page), maker, bytes: 1000 };
        let touches = [touch(0x10000, Some(7)), touch(0x11000, Some(8)), touch(0x13000, Some(7))];
        let mut sums = HashMap::new();
        add_area(&memory_map, &area, &touches, None, &mut sums);
        let unknown = Part::WithoutOwner(Cause::Unknown);
        assert_eq!(sums, HashMap::from([(unknown, HashMap::from([(7, 1000.0), (8, 1000.0)]))]));
    }

    #[test]
    fn a_part_has_no_more_code_than_bytes() {
        let maker = |method: &str| Maker {
            bytes: 0,
            method: method.into(),
            calls: None,
            path: None,
            line: None,
            task: None,
        };
        let makers = Makers { all: vec![maker("a"), maker("b")], of_stack: vec![] };
        let sums = HashMap::from([(0, 3e6), (1, 9e6)]);
        let cause = Some(Cause::MallocUnreturned);
        let row = |bytes| row(cause, None, bytes, Some(&sums), &makers);
        let code = |row: &MadeBy| -> Vec<(String, u64)> {
            row.code.iter().map(|code| (code.method.clone(), code.bytes)).collect()
        };
        let less = row(24_000_000).unwrap();
        assert_eq!(code(&less), [("b".into(), 9_000_000), ("a".into(), 3_000_000)]);
        assert_eq!((less.bytes, less.known_bytes), (24_000_000, 12_000_000));
        let more = row(4_000_000).unwrap();
        assert_eq!(code(&more), [("b".into(), 3_000_000), ("a".into(), 1_000_000)]);
        assert_eq!(row(1000), None);
    }
}
