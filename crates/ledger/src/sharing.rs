//! The memory of a family of processes, in which each page frame counts once.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use image::{Memory, ProcessState};
use linux::PageFrame;
use linux::{Address, Machine, PageRun, PageState, Pages};

use crate::ledger::{bytecode_of, causes_of, owners_of};
use crate::{Causes, CodeFileAccount, Facts, OwnerAccount, WriteAccount, writes};

/// The resident pages of all members of a family, at about the same time.
#[derive(Debug)]
pub struct FamilyPages<'a> {
    /// Bytes of a page.
    page_size: u64,
    members: Vec<MemberPages<'a>>,
    /// The frames that more than one process maps, ascending.
    shared: Vec<SharedFrame>,
}

/// The pages of one member.
#[derive(Debug, Clone, Copy)]
pub struct MemberPages<'a> {
    /// Its resident pages, ascending.
    pub frames: &'a [PageFrame],
    /// The index of its parent, if that is a member.
    pub parent: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SharedFrame {
    frame: u64,
    /// The first member that maps it, by which it is counted.
    first: u32,
    /// The number of members that map it.
    members: u32,
}

/// The members that map a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharing {
    /// All members.
    All,
    /// Some members.
    Some,
    /// One member, and its parent has another copy at the same address.
    Copied,
    /// One member.
    Private,
}

/// The resident pages of a member, by the other members that map them. Frames that an earlier member maps, too, are in none of
/// the first three.
#[derive(Debug, Clone, Default)]
pub struct MemberParts {
    /// All members map them.
    pub all: Pages,
    /// Some members map them.
    pub some: Pages,
    /// No other member maps them.
    pub private: Pages,
    /// The part of `private` of which its parent has another copy at the same address.
    pub copied: Pages,
}

/// The account of a part of a process's pages.
#[derive(Debug, Clone)]
pub struct PartAccount {
    /// The resident bytes by cause.
    pub causes: Causes,
    /// The owners of malloc'ed memory and of slots, largest first; only classes if owners were not traced.
    pub owners: Vec<OwnerAccount>,
}

/// The accounts of a member's memory.
#[derive(Debug, Clone)]
pub struct MemberAccounts {
    /// Shared by all, shared by some, private, and copied.
    pub parts: [PartAccount; 4],
    /// The reasons of its copies, largest first.
    pub writes: Vec<WriteAccount>,
    /// All files with bytecode, with the size that it has on private pages, largest first; `None` if unknown.
    pub bytecode: Option<Vec<CodeFileAccount>>,
}

/// Pages by their contents, of which only hashes are kept. A random key makes the hashes worthless to others.
#[derive(Debug, Default)]
pub struct DistinctPages {
    key: RandomState,
    hashes: HashSet<u64>,
    read_bytes: u64,
    distinct_bytes: u64,
}

impl DistinctPages {
    /// Adds a page.
    pub fn add(&mut self, page: &[u8]) {
        let bytes = page.len() as u64;
        self.read_bytes += bytes;
        if self.hashes.insert(self.key.hash_one(page)) {
            self.distinct_bytes += bytes;
        }
    }

    /// The bytes of all pages that were added.
    #[must_use]
    pub const fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// The bytes of the pages with different contents.
    #[must_use]
    pub const fn distinct_bytes(&self) -> u64 {
        self.distinct_bytes
    }
}

impl<'a> FamilyPages<'a> {
    /// Finds the frames that members share. If the kernel hides the numbers of frames, pages that are not exclusive count
    /// as the same if their addresses are the same; this is an estimate.
    #[must_use]
    pub fn new(machine: Machine, members: Vec<MemberPages<'a>>) -> Self {
        let mut mapped: Vec<(u64, u32)> = Vec::new();
        for (member, index) in members.iter().zip(0_u32..) {
            let shared = member.frames.iter().filter(|frame| !frame.is_exclusive);
            mapped.extend(shared.map(|frame| (identity(frame), index)));
        }
        mapped.sort_unstable();
        mapped.dedup();
        let shared = mapped.chunk_by(|one, other| one.0 == other.0).map(|same| {
            let (frame, first) = same[0];
            SharedFrame { frame, first, members: same.len() as u32 }
        });
        let shared = shared.collect();
        Self { page_size: machine.page_size, members, shared }
    }

    /// Returns the frames that members map and that others may map, too, ascending, with the number of members. Empty if
    /// their numbers are hidden.
    pub fn shared_frames(&self) -> impl Iterator<Item = (u64, u64)> {
        let known = if self.is_estimated() { &[][..] } else { &self.shared };
        known.iter().map(|it| (it.frame, it.members.into()))
    }

    /// Returns all frames that members map, ascending. Empty if their numbers are hidden.
    #[must_use]
    pub fn all_frames(&self) -> Vec<u64> {
        if self.is_estimated() {
            return Vec::new();
        }
        let mut frames: Vec<u64> =
            self.members.iter().flat_map(|it| it.frames).map(|it| it.frame).collect();
        frames.sort_unstable();
        frames.dedup();
        frames
    }

    /// Returns the numbers of the pages by which a member's frames are counted, ascending: no earlier member maps them, and no
    /// earlier page of the member.
    ///
    /// # Panics
    /// If there is no member with this index.
    pub fn counted_pages(&self, index: usize) -> impl Iterator<Item = u64> {
        let mut counted = HashSet::new();
        let is_counted = move |frame: &&PageFrame| {
            self.shared(frame)
                .is_none_or(|shared| shared.first as usize == index && counted.insert(shared.frame))
        };
        self.members[index].frames.iter().filter(is_counted).map(|frame| frame.page)
    }

    /// True if the numbers of frames are hidden.
    #[must_use]
    pub fn is_estimated(&self) -> bool {
        self.members.iter().flat_map(|it| it.frames).any(|it| it.frame == 0)
    }

    /// Divides the pages of a member, as they were when it was captured. Pages that it did not have before are private.
    ///
    /// # Panics
    /// If there is no member with this index.
    #[must_use]
    pub fn parts(&self, index: usize, pages: &Pages) -> MemberParts {
        let member = &self.members[index];
        let (mut own, mut parents) = (Cursor(member.frames), self.parents(member));
        let page_size = self.page_size;
        let mut counted = HashSet::new();
        let [mut all, mut some, mut private, mut copied] = [(); 4].map(|()| Vec::new());
        for run in pages.iter().filter(|run| run.state.is_resident()) {
            for page in run.range.start.0 / page_size..run.range.end.0 / page_size {
                let start = Address(page * page_size);
                let alone = || PageRun { range: start..start.offset(page_size), ..run.clone() };
                let frame = own.at(page);
                let shared = frame.and_then(|frame| self.shared(frame));
                // A frame counts for the first member that maps it, and for the first page there.
                if shared.is_some_and(|it| it.first as usize != index || !counted.insert(it.frame))
                {
                    continue;
                }
                let is_anonymous = run.state == PageState::Anonymous;
                match self.sharing_of(frame, shared, parents.at(page), is_anonymous) {
                    Sharing::All => all.push(alone()),
                    Sharing::Some => some.push(alone()),
                    Sharing::Private => private.push(alone()),
                    Sharing::Copied => {
                        private.push(alone());
                        copied.push(alone());
                    }
                }
            }
        }
        let [all, some, private, copied] = [all, some, private, copied].map(Pages::new);
        MemberParts { all, some, private, copied }
    }

    /// Returns the pages of a member by the members that map them: the number of the first page, and the number of pages, ascending.
    ///
    /// # Panics
    /// If there is no member with this index.
    #[must_use]
    pub fn sharing(&self, index: usize) -> Vec<(u64, u64, Sharing)> {
        let member = &self.members[index];
        let mut parents = self.parents(member);
        let mut runs: Vec<(u64, u64, Sharing)> = Vec::new();
        for frame in member.frames {
            let (page, shared) = (frame.page, self.shared(frame));
            let parents = parents.at(page);
            let sharing = self.sharing_of(Some(frame), shared, parents, frame.is_anonymous);
            match runs.last_mut() {
                Some((first, count, last)) if *last == sharing && *first + *count == page => {
                    *count += 1;
                }
                _ => runs.push((page, 1, sharing)),
            }
        }
        runs
    }

    fn parents(&self, member: &MemberPages<'a>) -> Cursor<'a> {
        Cursor(member.parent.map_or(&[][..], |parent| self.members[parent].frames))
    }

    fn sharing_of(
        &self,
        frame: Option<&PageFrame>,
        shared: Option<&SharedFrame>,
        parents: Option<&PageFrame>,
        is_anonymous: bool,
    ) -> Sharing {
        let is_other = |it: &PageFrame| {
            it.is_anonymous && frame.is_none_or(|own| own.frame != it.frame || it.frame == 0)
        };
        match shared {
            // The frames of a single process are private.
            Some(it) if it.members > 1 && it.members as usize == self.members.len() => Sharing::All,
            Some(it) if it.members > 1 => Sharing::Some,
            _ if is_anonymous && parents.is_some_and(is_other) => Sharing::Copied,
            _ => Sharing::Private,
        }
    }

    fn shared(&self, frame: &PageFrame) -> Option<&SharedFrame> {
        if frame.is_exclusive {
            return None;
        }
        let identity = identity(frame);
        let found = self.shared.binary_search_by_key(&identity, |it| it.frame).ok()?;
        self.shared.get(found)
    }
}

impl MemberParts {
    /// Accounts for the private pages alone.
    #[must_use]
    pub fn private_causes(&self, state: &ProcessState, facts: &Facts) -> Causes {
        causes_of(state, facts, &owners_of(facts), &self.private)
    }

    /// Accounts for each part of a member that was captured in this state. `memories` are its own memory and that of its
    /// parent; `None` if it has no parent.
    #[must_use]
    pub fn accounts(
        &self,
        state: &ProcessState,
        facts: &Facts,
        memories: Option<[&dyn Memory; 2]>,
    ) -> MemberAccounts {
        let owners = owners_of(facts);
        let parts = [&self.all, &self.some, &self.private, &self.copied].map(|pages| PartAccount {
            causes: causes_of(state, facts, &owners, pages),
            owners: owners.accounts(pages),
        });
        let writes = memories.map(|memories| {
            let accounts = &parts[3].owners;
            writes::compare(state, facts, &owners, accounts, &self.copied, memories)
        });
        MemberAccounts {
            parts,
            writes: writes.unwrap_or_default(),
            bytecode: bytecode_of(state, facts, &owners, &self.private),
        }
    }
}

/// The pages of a process, looked up in ascending order.
struct Cursor<'a>(&'a [PageFrame]);

impl<'a> Cursor<'a> {
    fn at(&mut self, page: u64) -> Option<&'a PageFrame> {
        let before = self.0.iter().take_while(|it| it.page < page).count();
        self.0 = &self.0[before..];
        self.0.first().filter(|it| it.page == page)
    }
}

/// A number that pages have in common if they are the same memory.
fn identity(frame: &PageFrame) -> u64 {
    if frame.frame == 0 { frame.page } else { frame.frame }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use linux::MIN_PAGE_SIZE;

    /// Members with these frames at the pages 0, 1, 2 …; none for 0. Each page is anonymous.
    fn frames(members: &[Vec<u64>]) -> Vec<Vec<PageFrame>> {
        let uses = |frame: u64| members.iter().flatten().filter(|&&it| it == frame).count();
        let page = |(&frame, page): (&u64, u64)| PageFrame {
            page,
            frame,
            is_exclusive: uses(frame) == 1,
            is_anonymous: true,
        };
        let present =
            |member: &Vec<u64>| member.iter().zip(0..).filter(|it| *it.0 > 0).map(page).collect();
        members.iter().map(present).collect()
    }

    fn family(frames: &[Vec<PageFrame>]) -> FamilyPages<'_> {
        let parent = |index: usize| index.checked_sub(1).map(|_| 0);
        let members = frames.iter().enumerate();
        let members = members.map(|(index, frames)| MemberPages { frames, parent: parent(index) });
        FamilyPages::new(Machine::default(), members.collect())
    }

    fn resident(frames: &[PageFrame]) -> Pages {
        let run = |it: &PageFrame| PageRun {
            range: Address(it.page * MIN_PAGE_SIZE)..Address((it.page + 1) * MIN_PAGE_SIZE),
            state: PageState::Anonymous,
            huge: false,
        };
        Pages::new(frames.iter().map(run).collect())
    }

    fn count(pages: &Pages) -> usize {
        (pages.resident_bytes(&(Address(0)..Address(u64::MAX))) / MIN_PAGE_SIZE) as usize
    }

    proptest! {
        #[test]
        fn every_frame_is_in_one_part_of_one_member(
            members in prop::collection::vec(prop::collection::vec(0_u64..12, 0..20), 1..5)
        ) {
            let frames = frames(&members);
            let family = family(&frames);
            let mut users: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
            for (index, member) in members.iter().enumerate() {
                for &frame in member.iter().filter(|&&frame| frame > 0) {
                    users.entry(frame).or_default().insert(index);
                }
            }
            let parts: Vec<_> = (0..members.len())
                .map(|index| family.parts(index, &resident(&frames[index])))
                .collect();
            let counted: usize =
                (0..members.len()).map(|index| family.counted_pages(index).count()).sum();
            prop_assert_eq!(counted, users.len());
            let sum = |of: fn(&MemberParts) -> &Pages| parts.iter().map(|it| count(of(it))).sum::<usize>();
            let used_by = |is: &dyn Fn(usize) -> bool| users.values().filter(|it| is(it.len())).count();
            prop_assert_eq!(sum(|it| &it.private), used_by(&|users| users == 1));
            // The frames of a single process are private.
            let all = used_by(&|users| users > 1 && users == members.len());
            prop_assert_eq!(sum(|it| &it.all), all);
            prop_assert_eq!(sum(|it| &it.some), used_by(&|users| users > 1) - all);
            for (index, parts) in parts.iter().enumerate() {
                prop_assert!(count(&parts.copied) <= count(&parts.private));
                prop_assert!(index > 0 || count(&parts.copied) == 0);
            }
        }
    }

    #[test]
    fn a_page_is_copied_if_the_parent_has_another_one_there() {
        // Shared, copied by the child, only the child's, and only the parent's.
        let frames = frames(&[vec![1, 2, 0, 3], vec![1, 4, 5, 0]]);
        let family = family(&frames);
        let parts = family.parts(1, &resident(&frames[1]));
        assert_eq!((count(&parts.private), count(&parts.copied)), (2, 1));
        let sharing = [(0, 1, Sharing::All), (1, 1, Sharing::Copied), (2, 1, Sharing::Private)];
        assert_eq!(family.sharing(1), sharing);
        assert_eq!(parts.copied.iter().next().unwrap().range.start, Address(MIN_PAGE_SIZE));
    }

    #[test]
    fn hidden_frames_are_the_same_at_the_same_address() {
        let mut frames = frames(&[vec![1, 2, 3], vec![1, 2, 4]]);
        frames.iter_mut().flatten().for_each(|it| it.frame = 0);
        let family = family(&frames);
        assert!(family.is_estimated() && family.shared_frames().next().is_none());
        let parts = family.parts(1, &resident(&frames[1]));
        assert_eq!((count(&parts.all), count(&parts.private), count(&parts.copied)), (0, 1, 1));
        assert_eq!(count(&family.parts(0, &resident(&frames[0])).all), 2);
    }

    #[test]
    fn pages_that_came_after_the_look_are_private() {
        let frames = frames(&[vec![1], vec![1]]);
        let family = family(&frames);
        let later = resident(&[frames[0][0], PageFrame { page: 7, ..frames[0][0] }]);
        let parts = family.parts(0, &later);
        assert_eq!((count(&parts.all), count(&parts.private)), (1, 1));
    }
}
