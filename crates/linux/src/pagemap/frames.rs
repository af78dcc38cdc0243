//! Page frames: which pages of several processes are the same memory.
//!
//! The kernel shows the numbers of frames to processes with CAP_SYS_ADMIN only (Documentation/admin-guide/mm/pagemap.rst).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{PageScope, Pagemap};
use crate::arch::page_size;
use crate::{Error, Machine, PageState, proc};

/// Frames whose words are read at a time.
const WORDS_PER_READ: u64 = 512;

/// A resident page of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFrame {
    /// The number of the page: its address divided by [`page_size`].
    pub page: u64,
    /// The number of its frame; 0 if the kernel hides it.
    pub frame: u64,
    /// True if no other process maps the frame.
    pub is_exclusive: bool,
    /// True if it is anonymous, or a private copy of a file's page.
    pub is_anonymous: bool,
}

/// Returns the resident pages of the running process `pid`, ascending.
///
/// # Errors
/// If there is no such process, or the kernel refuses.
pub fn page_frames(pid: i32) -> Result<Vec<PageFrame>, Error> {
    let pagemap = Pagemap::open(pid)?;
    let (_, pages, _) = pagemap.read(&proc::mappings(pid, true)?, PageScope::All)?;
    let mut frames = Vec::new();
    for run in pages.iter().filter(|run| run.state.is_resident()) {
        let is_anonymous = run.state == PageState::Anonymous;
        for (at, entry) in pagemap.entries(&run.range)? {
            // The process runs, so the page may be gone.
            if let Some((frame, is_exclusive)) = entry.frame() {
                frames.push(PageFrame {
                    page: at.0 / page_size(),
                    frame,
                    is_exclusive,
                    is_anonymous,
                });
            }
        }
    }
    Ok(frames)
}

/// Returns how often each of these frames is mapped, by any process. The frames are ascending.
///
/// # Errors
/// If the kernel refuses.
pub fn map_counts(frames: &[u64]) -> io::Result<Vec<u64>> {
    words_of_frames("/proc/kpagecount", frames)
}

/// Returns the number of the control group that each of these frames is charged to; 0 for none. The frames are ascending.
///
/// # Errors
/// If the kernel refuses, or has no control groups for memory.
pub fn groups_of_frames(frames: &[u64]) -> io::Result<Vec<u64>> {
    let mut groups = words_of_frames("/proc/kpagecgroup", frames)?;
    // Before Linux 6.6, only the first frame of a large page has a group.
    let unknown: Vec<usize> = (0..groups.len()).filter(|&index| groups[index] == 0).collect();
    // The most frames of a large page that a control group is charged for: those of a huge page. It begins at a multiple of
    // its size.
    let large = Machine::own().huge_page_size() / page_size();
    for near in unknown.chunk_by(|&one, &next| frames[one] / large == frames[next] / large) {
        let first = frames[near[0]] / large * large;
        let last = frames[near[near.len() - 1]];
        let window: Vec<u64> = (first..=last).collect();
        let flags = words_of_frames("/proc/kpageflags", &window)?;
        for &index in near {
            if let Some(head) = head_of(&flags[..=(frames[index] - first) as usize]) {
                groups[index] = words_of_frames("/proc/kpagecgroup", &[first + head as u64])?[0];
            }
        }
    }
    Ok(groups)
}

/// Returns the number of pages of the large page that has this frame; 1 if none has.
pub(super) fn pages_of_frame(frame: u64) -> io::Result<u64> {
    let large = Machine::own().huge_page_size() / page_size();
    let first = frame / large * large;
    let window: Vec<u64> = (first..first + large).collect();
    Ok(pages_of(&words_of_frames("/proc/kpageflags", &window)?, (frame - first) as usize))
}

/// The flags of the first page of a large one (a compound page), and of the following ones, in /proc/kpageflags.
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;

/// Returns the number of pages of the large page that has the frame with this index.
fn pages_of(flags: &[u64], index: usize) -> u64 {
    let is_head = flags[index] & HEAD != 0;
    let head = if is_head { Some(index) } else { head_of(&flags[..=index]) };
    let tails = |head: usize| flags[head + 1..].iter().take_while(|&it| it & TAIL != 0).count();
    head.map_or(1, |head| 1 + tails(head) as u64)
}

/// Returns the index of the first frame of the large page that the last of these frames continues; `None` if it
/// continues none. `flags` are their words of /proc/kpageflags.
fn head_of(flags: &[u64]) -> Option<usize> {
    flags.last().filter(|&&last| last & TAIL != 0)?;
    flags.iter().rposition(|it| it & HEAD != 0)
}

/// Returns the words of these frames in a file with a word for each frame.
fn words_of_frames(path: &str, frames: &[u64]) -> io::Result<Vec<u64>> {
    let file = File::open(path)?;
    let mut words = Vec::with_capacity(frames.len());
    let mut bytes = [0; WORDS_PER_READ as usize * 8];
    while let Some(&first) = frames.get(words.len()) {
        let rest = &frames[words.len()..];
        let near = &rest[..rest.partition_point(|frame| frame - first < WORDS_PER_READ)];
        let wanted = (near[near.len() - 1] - first + 1) as usize * 8;
        file.read_exact_at(&mut bytes[..wanted], first * 8)?;
        words.extend(near.iter().map(|frame| {
            let at = (frame - first) as usize * 8;
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
        }));
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_of_a_large_page_leads_to_the_first_one() {
        const HEAD: u64 = super::HEAD | 1 << 12;
        let flags = [TAIL, 0, HEAD, TAIL, TAIL, HEAD, TAIL, 0];
        let heads: Vec<_> = (0..flags.len()).map(|last| head_of(&flags[..=last])).collect();
        // The first one belongs to a page that begins before.
        assert_eq!(heads, [None, None, None, Some(2), Some(2), None, Some(5), None]);
        let pages: Vec<_> = (0..flags.len()).map(|index| pages_of(&flags, index)).collect();
        assert_eq!(pages, [1, 1, 3, 3, 3, 2, 2, 1]);
    }

    #[test]
    fn own_pages_are_exclusive_and_a_childs_are_shared() {
        let own: Vec<u8> = (0..64 * page_size()).map(|at| at as u8).collect();
        let first = (own.as_ptr() as u64).div_ceil(page_size());
        // Other tests start programs meanwhile, and share all other pages with them until these call exec.
        let advise = |advice| {
            // SAFETY: the pages are in `own`, and the advice does not change them.
            let result = unsafe {
                libc::madvise((first * page_size()) as *mut _, 63 * page_size() as usize, advice)
            };
            assert_eq!(result, 0);
        };
        advise(libc::MADV_DONTFORK);
        let pid = std::process::id().cast_signed();
        let frames = page_frames(pid).unwrap();
        assert!(frames.is_sorted_by_key(|it| it.page));
        let mine: Vec<_> =
            frames.iter().filter(|it| (first..first + 63).contains(&it.page)).collect();
        assert_eq!(mine.len(), 63);
        assert!(mine.iter().all(|it| it.is_anonymous && it.is_exclusive));
        if mine[0].frame == 0 {
            return testkit::skip("frame numbers take CAP_SYS_ADMIN");
        }
        let mut numbers: Vec<u64> = mine.iter().map(|it| it.frame).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 63);
        assert_eq!(map_counts(&numbers).unwrap(), [1; 63]);
        advise(libc::MADV_DOFORK);
        // A library is mapped by others, too.
        let files = frames.iter().filter(|it| !it.is_anonymous);
        assert!(files.filter(|it| !it.is_exclusive).count() > 0);
    }
}
