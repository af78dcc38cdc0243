//! Blocks of native memory that are still there in later snapshots: blocks with the same owner and size at the same address.
//!
//! malloc hands out the same address again, and often for a block of the same size. So blocks that come and go may look as if they
//! stayed. But if a program frees many blocks, a part of them is at other addresses afterwards, unless nothing else allocates
//! meanwhile. So a size counts only if its owner frees hardly any block of it. A leak in a library has a few sizes, and blocks of other
//! sizes that come and go beside it do not hide it. Sizes with few new blocks are judged together, so a leak of such sizes may be hidden by
//! others of them.

use std::collections::HashMap;
use std::iter::Peekable;
use std::ops::Range;
use std::rc::Rc;

use formats::{KeptNative, OwnerChange, Snapshot, Trajectory};
use ledger::{Cause, MapBlock, MemoryMap, PageUse, Use};
use linux::{Address, intersection, length};

/// Blocks of a size last if at most one byte is lost for so many that are new. In programs that replace all blocks each second, a third
/// was lost; if nothing else allocates, one in 20, or none.
const NEW_FOR_LOST: u64 = 32;
/// Sizes with fewer new blocks are counted together: few blocks may stay by chance.
const MIN_BLOCKS: u64 = 64;
/// The size from which glibc maps blocks, in bytes. One that grows gets another size and often another address.
const LARGE: u64 = 128 << 10;
/// The maximum number of pairs of an owner and a size, times that of the snapshots: about 100 MiB. No real process has as many.
const MAX_NUMBERS: usize = 1 << 20;
/// The maximum number of owners in a diff, beside those that the verdict may be about.
const MAX_ROWS: usize = 100;

/// Returns the native memory of each owner that lasts, most growth first; `None` if there are fewer than three snapshots, or one of
/// them does not know the owners.
pub(super) fn count(snapshots: &[&Snapshot], owners: &[OwnerChange]) -> Option<Vec<KeptNative>> {
    if snapshots.len() < 3 || snapshots.iter().any(|it| it.report.owners.is_none()) {
        return None;
    }
    let mut names = Names::default();
    let mut looks: Vec<Look<'_>> = snapshots.iter().map(|it| look(it, &mut names)).collect();
    let mut groups = HashMap::new();
    let mut blocks = Vec::new();
    while next(&mut looks, &mut blocks) {
        add(&mut groups, &blocks);
    }
    let mut by_owner: HashMap<u32, Sums> = HashMap::new();
    for ((owner, bytes), group) in groups {
        by_owner.entry(owner).or_insert_with(|| Sums::none(snapshots.len())).add(bytes, group);
    }
    let row = |(owner, sums): (u32, Sums)| sums.row(names.all[owner as usize]);
    let mut rows: Vec<KeptNative> = by_owner.into_iter().map(row).collect();
    // The verdict asks for the owners that grew, and for the one with most blocks that may stay.
    let grew = |row: &KeptNative| {
        let is_it = |it: &&OwnerChange| {
            it.owner == row.owner && it.kind == row.kind && it.cause == Some(row.cause)
        };
        owners.iter().find(is_it).is_some_and(|it| it.bytes.change > 0)
    };
    let most_open = rows.iter().map(|row| row.open_bytes).max().filter(|&bytes| bytes > 0);
    rows.retain(|row| row.bytes.change > 0 || row.open_bytes > 0 || grew(row));
    rows.sort_by(|a, b| {
        let key = |row: &KeptNative| (row.bytes.change, row.grown_bytes, row.open_bytes);
        key(b).cmp(&key(a)).then_with(|| a.owner.cmp(&b.owner))
    });
    let mut others = 0;
    rows.retain(|row| {
        others += 1;
        others <= MAX_ROWS || grew(row) || Some(row.open_bytes) == most_open
    });
    Some(rows)
}

/// An owner: its name, its kind, and the cause of its memory.
type Name<'a> = (&'a str, &'a str, Cause);

#[derive(Default)]
struct Names<'a> {
    all: Vec<Name<'a>>,
    numbers: HashMap<Name<'a>, u32>,
}

impl<'a> Names<'a> {
    fn number(&mut self, name: Name<'a>) -> u32 {
        *self.numbers.entry(name).or_insert_with(|| {
            self.all.push(name);
            self.all.len() as u32 - 1
        })
    }
}

/// A block in use.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// `None` for memory that is not native.
    owner: Option<u32>,
    bytes: u64,
    resident: u64,
}

impl Block {
    fn is(&self, later: &Self) -> bool {
        self.owner == later.owner && self.bytes == later.bytes
    }
}

/// The blocks in use of a snapshot, ascending by address.
type Look<'a> = Peekable<Box<dyn Iterator<Item = (Address, Block)> + 'a>>;

fn look<'a>(snapshot: &'a Snapshot, names: &mut Names<'a>) -> Look<'a> {
    let owners = snapshot.report.owners.iter().flatten();
    let number = |owner: &'a formats::Owner| {
        let cause = owner.cause.filter(|cause| cause.is_native())?;
        Some(names.number((&owner.owner, &owner.kind, cause)))
    };
    let owners: Vec<Option<u32>> = owners.map(number).collect();
    let owners = Rc::new(owners);
    let map = &snapshot.memory_map;
    let blocks = map.areas.iter().flat_map(move |area| {
        let mut pages = Pages::new(map, area);
        let owners = Rc::clone(&owners);
        let in_use = map.blocks(area).filter(|block| block.used == Use::InUse);
        in_use.map(move |MapBlock { address, bytes, owner, .. }| {
            let owner = owner.and_then(|owner| *owners.get(owner as usize)?);
            let range = address..address.offset(bytes);
            let resident = owner.map_or(0, |_| pages.resident(&range));
            (address, Block { owner, bytes, resident })
        })
    });
    let blocks: Box<dyn Iterator<Item = _>> = Box::new(blocks);
    blocks.peekable()
}

/// The runs of pages of an area, which ascend as its blocks do.
struct Pages<'a> {
    runs: Box<dyn Iterator<Item = (Range<Address>, PageUse)> + 'a>,
    run: Option<(Range<Address>, PageUse)>,
}

impl<'a> Pages<'a> {
    fn new(map: &'a MemoryMap, area: &'a ledger::Area) -> Self {
        let mut runs: Box<dyn Iterator<Item = _>> = Box::new(map.pages(area));
        Self { run: runs.next(), runs }
    }

    /// The resident bytes of a range that does not begin before those asked for earlier.
    fn resident(&mut self, range: &Range<Address>) -> u64 {
        let mut bytes = 0;
        while let Some((run, used)) = &self.run {
            if run.start >= range.end {
                break;
            }
            if used.is_resident() && run.end > range.start {
                bytes = u64::saturating_add(bytes, length(&intersection(run, range)));
            }
            if run.end > range.end {
                break;
            }
            self.run = self.runs.next();
        }
        bytes
    }
}

/// Finds the blocks of each snapshot at the next address that has one; returns false at the end.
fn next(looks: &mut [Look<'_>], blocks: &mut Vec<Option<Block>>) -> bool {
    blocks.clear();
    let heads = looks.iter_mut().filter_map(Peekable::peek);
    let Some(at) = heads.map(|(address, _)| *address).min() else { return false };
    blocks.extend(looks.iter_mut().map(|look| look.next_if(|it| it.0 == at).map(|it| it.1)));
    true
}

/// The blocks of one owner and size, or of several sizes.
#[derive(Clone)]
struct Group {
    /// The blocks of each snapshot, and their resident bytes.
    blocks: Vec<u64>,
    bytes: Vec<u64>,
    /// The same for blocks that the next snapshot has, too; they have the bytes that they had when they were last seen, so that memory
    /// that is touched later is no growth.
    lasting: Vec<u64>,
    lasting_bytes: Vec<u64>,
    new_blocks: u64,
    new_bytes: u64,
    lost_bytes: u64,
    /// The blocks that the second snapshot has and the first does not, and those of them that all later ones have.
    newcomers: u64,
    kept: u64,
    kept_bytes: u64,
    /// The blocks that were new in any snapshot but the last, and those of them that were freed since, or have another size.
    all_newcomers: u64,
    gone: u64,
}

impl Group {
    fn none(snapshots: usize) -> Self {
        let (all, lasting) = (vec![0; snapshots], vec![0; snapshots - 1]);
        Self {
            blocks: all.clone(),
            bytes: all,
            lasting: lasting.clone(),
            lasting_bytes: lasting,
            new_blocks: 0,
            new_bytes: 0,
            lost_bytes: 0,
            newcomers: 0,
            kept: 0,
            kept_bytes: 0,
            all_newcomers: 0,
            gone: 0,
        }
    }

    fn add(&mut self, other: &Self) {
        let sum = |sums: &mut [u64], parts: &[u64]| {
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum = sum.saturating_add(*part));
        };
        sum(&mut self.blocks, &other.blocks);
        sum(&mut self.bytes, &other.bytes);
        sum(&mut self.lasting, &other.lasting);
        sum(&mut self.lasting_bytes, &other.lasting_bytes);
        self.new_blocks += other.new_blocks;
        self.new_bytes = self.new_bytes.saturating_add(other.new_bytes);
        self.lost_bytes = self.lost_bytes.saturating_add(other.lost_bytes);
        self.newcomers += other.newcomers;
        self.kept += other.kept;
        self.kept_bytes = self.kept_bytes.saturating_add(other.kept_bytes);
        self.all_newcomers += other.all_newcomers;
        self.gone += other.gone;
    }

    fn lasts(&self) -> bool {
        self.lost_bytes.saturating_mul(NEW_FOR_LOST) <= self.new_bytes
    }

    fn grown_bytes(&self) -> i64 {
        Trajectory::new(self.bytes.iter().copied()).change
    }

    /// Adds a block that is the same in the snapshots `first..=last`.
    fn add_run(&mut self, blocks: &[Option<Block>], first: usize, last: usize) {
        let Some(block) = blocks[last] else { return };
        for (index, block) in (first..).zip(&blocks[first..=last]) {
            self.blocks[index] += 1;
            let resident = block.map_or(0, |block| block.resident);
            self.bytes[index] = self.bytes[index].saturating_add(resident);
        }
        for index in first..last {
            self.lasting[index] += 1;
            self.lasting_bytes[index] = self.lasting_bytes[index].saturating_add(block.resident);
        }
        let later = &blocks[last + 1..];
        // The same block may have another owner in another snapshot.
        let is_same = |it: &&Option<Block>| it.is_some_and(|it| it.bytes == block.bytes);
        let is_new = first > 0 && !is_same(&&blocks[first - 1]);
        self.new_blocks += u64::from(is_new);
        self.new_bytes = self.new_bytes.saturating_add(if is_new { block.bytes } else { 0 });
        if later.first().is_some_and(|it| !is_same(&it)) {
            self.lost_bytes = self.lost_bytes.saturating_add(block.bytes);
        }
        self.newcomers += u64::from(is_new && first == 1);
        if is_new && first == 1 && later.is_empty() {
            self.kept += 1;
            self.kept_bytes = self.kept_bytes.saturating_add(block.resident);
        }
        if is_new && first + 1 < blocks.len() {
            self.all_newcomers += 1;
            self.gone += u64::from(!later.iter().all(|it| is_same(&it)));
        }
    }
}

/// Adds the blocks at one address to the groups of their owners and sizes.
fn add(groups: &mut HashMap<(u32, u64), Group>, blocks: &[Option<Block>]) {
    let mut first = 0;
    while first < blocks.len() {
        let is_it = |it: &&Option<Block>| it.zip(blocks[first]).is_some_and(|(it, at)| at.is(&it));
        let last = first + blocks[first + 1..].iter().take_while(is_it).count();
        if let Some(Block { owner: Some(owner), bytes, .. }) = blocks[first] {
            let max = MAX_NUMBERS / blocks.len();
            let is_known = groups.len() < max || groups.contains_key(&(owner, bytes));
            let size = if is_known { bytes } else { 0 };
            let group = groups.entry((owner, size)).or_insert_with(|| Group::none(blocks.len()));
            group.add_run(blocks, first, last);
        }
        first = last + 1;
    }
}

/// The memory of an owner.
struct Sums {
    /// The sizes that last.
    lasting: Group,
    /// Of the sizes that grew.
    all_newcomers: u64,
    gone: u64,
    /// The blocks of the other sizes that the second snapshot has and the first does not, and that all later ones have.
    open: u64,
    open_bytes: u64,
    /// Sizes with few new blocks.
    small: Group,
    large: Group,
}

impl Sums {
    fn none(snapshots: usize) -> Self {
        let none = Group::none(snapshots);
        Self {
            lasting: none.clone(),
            all_newcomers: 0,
            gone: 0,
            open: 0,
            open_bytes: 0,
            small: none.clone(),
            large: none,
        }
    }

    fn add(&mut self, bytes: u64, group: Group) {
        match group.new_blocks {
            ..MIN_BLOCKS if bytes >= LARGE => self.large.add(&group),
            ..MIN_BLOCKS => self.small.add(&group),
            _ => self.add_group(&group),
        }
    }

    fn add_group(&mut self, group: &Group) {
        if group.grown_bytes() > 0 {
            self.all_newcomers += group.all_newcomers;
            self.gone += group.gone;
        }
        if group.lasts() {
            self.lasting.add(group);
        } else {
            self.open += group.kept;
            self.open_bytes = self.open_bytes.saturating_add(group.kept_bytes);
        }
    }

    fn row(mut self, (owner, kind, cause): Name<'_>) -> KeptNative {
        let mut resized = 0;
        for group in [self.small.clone(), self.large.clone()] {
            self.add_group(&group);
        }
        // Large blocks of which there are not more are buffers that grow. Only their sizes and addresses change.
        if !self.large.lasts() && self.large.blocks.windows(2).all(|pair| pair[0] == pair[1]) {
            resized = self.large.grown_bytes();
        }
        let lasting = self.lasting;
        let before = lasting.bytes.iter().rev().nth(1).copied().unwrap_or(0);
        let last = lasting.bytes.last().copied().unwrap_or(0);
        KeptNative {
            owner: owner.into(),
            kind: kind.into(),
            cause,
            grown_bytes: lasting.grown_bytes().saturating_add(resized),
            latest_bytes: last.wrapping_sub(before).cast_signed(),
            blocks: Trajectory::new(lasting.lasting.into_iter()),
            bytes: Trajectory::new(lasting.lasting_bytes.into_iter()),
            newcomers: lasting.newcomers,
            kept: lasting.kept,
            all_newcomers: self.all_newcomers,
            gone: self.gone,
            open: self.open,
            open_bytes: self.open_bytes,
        }
    }
}
