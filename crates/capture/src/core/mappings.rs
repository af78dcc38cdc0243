//! The mappings of the process, out of the segments of its core and the files that it had mapped.

use std::ops::Range;
use std::path::Path;

use crate::{Address, Backing, Mapping, intersection, length};

use super::headers::Segment;
use super::notes::{MappedFile, Notes};

/// `AT_PHDR`: where the program headers of the executable are; `AT_SYSINFO_EHDR`: where the vDSO is.
const AT_PHDR: u64 = 3;
const AT_SYSINFO_EHDR: u64 = 33;
const AT_EXECFN: u64 = 31;
/// So far behind the executable the heap that brk(2) moves begins at most (`arch_randomize_brk`; 32 MiB
/// up to Linux 6.8).
const HEAP_IS_WITHIN: u64 = (1 << 30) + (32 << 20);
/// What the kernel names shared memory after, which has no file that could be found.
const SHARED_MEMORY: [&str; 4] = ["/memfd:", "/SYSV", "/dev/zero", "/dev/shm/"];
/// And private memory in huge pages.
const HUGE_PAGES: &str = "/anon_hugepage";

/// Whether the kernel calls memory by this name that no file backs.
pub(crate) fn is_shared_memory(path: &Path) -> bool {
    path.to_str().is_some_and(|path| SHARED_MEMORY.iter().any(|name| path.starts_with(name)))
}

/// The mappings, with what backs them as far as it can be told.
pub(crate) fn mappings(segments: &[Segment], notes: &Notes) -> Vec<Mapping> {
    let files = notes.files.as_deref().unwrap_or_default();
    let mut mappings = Vec::new();
    for segment in segments {
        let mut at = segment.range.start;
        for file in files_in(files, &segment.range) {
            let part = intersection(&file.range, &segment.range);
            mappings.push(anonymous(segment, at..part.start));
            at = part.end;
            mappings.push(of_file(file, &part, Some(segment)));
        }
        mappings.push(anonymous(segment, at..segment.range.end));
    }
    // gdb leaves out what it does not dump.
    for file in files {
        let mut at = file.range.start;
        let first = segments.partition_point(|it| it.range.end <= at);
        let after = segments[first..].iter();
        for segment in after.take_while(|segment| segment.range.start < file.range.end) {
            mappings.push(of_file(file, &(at..segment.range.start.max(at)), None));
            at = segment.range.end;
        }
        mappings.push(of_file(file, &(at..file.range.end.max(at)), None));
    }
    mappings.retain(|mapping| length(&mapping.range) > 0);
    mappings.sort_by_key(|mapping| mapping.range.start);
    name_stack(&mut mappings, notes);
    name_heap(&mut mappings, notes);
    name_kernels_own(&mut mappings, notes);
    mappings
}

fn files_in<'a>(
    files: &'a [MappedFile],
    range: &Range<Address>,
) -> impl Iterator<Item = &'a MappedFile> {
    let first = files.partition_point(|file| file.range.end <= range.start);
    let end = range.end;
    files[first..].iter().take_while(move |file| file.range.start < end)
}

fn anonymous(segment: &Segment, range: Range<Address>) -> Mapping {
    Mapping {
        readable: segment.readable,
        writable: segment.writable,
        executable: segment.executable,
        ..Mapping::anonymous(range)
    }
}

/// A mapping of a file. One that was not dumped by gdb may be read, as all that it names may; whether
/// it may be written or executed is not known.
fn of_file(file: &MappedFile, range: &Range<Address>, segment: Option<&Segment>) -> Mapping {
    let start = file.offset.saturating_add(range.start - file.range.start);
    let shown = file.path.to_str().unwrap_or_default();
    Mapping {
        readable: segment.is_none_or(|segment| segment.readable),
        writable: segment.is_some_and(|segment| segment.writable),
        executable: segment.is_some_and(|segment| segment.executable),
        shared: is_shared_memory(&file.path),
        file_offset: start,
        backing: Backing::File(file.path.clone()),
        outside_rss: shown.starts_with(HUGE_PAGES),
        ..Mapping::anonymous(range.clone())
    }
}

fn name_stack(mappings: &mut [Mapping], notes: &Notes) {
    let main = notes.threads.iter().find(|thread| Some(thread.tid) == notes.pid);
    let within = notes.auxiliary(AT_EXECFN).map(Address);
    let within = within.or(main.map(|thread| thread.stack_pointer));
    let stack = mappings.iter_mut().find(|mapping| {
        within.is_some_and(|at| mapping.range.contains(&at)) && mapping.is_private_anonymous()
    });
    if let Some(stack) = stack {
        stack.backing = Backing::Stack;
    }
}

/// The heap is the first writable memory behind the executable that does not adjoin it (what does are its
/// own variables), with whatever adjoins the heap.
fn name_heap(mappings: &mut [Mapping], notes: &Notes) {
    let Some(headers) = notes.auxiliary(AT_PHDR).map(Address) else { return };
    let is_of = |mapping: &Mapping, path: Option<&Path>| path.is_some() && mapping.file() == path;
    let executable = mappings.iter().find(|mapping| mapping.range.contains(&headers));
    let Some(path) = executable.and_then(Mapping::file).map(Path::to_owned) else { return };
    let last = mappings.iter().rposition(|mapping| is_of(mapping, Some(&path)));
    let Some(last) = last else { return };
    let mut end = mappings[last].range.end;
    let limit = end.offset(HEAP_IS_WITHIN);
    let mut heap: Option<Address> = None;
    for mapping in &mut mappings[last + 1..] {
        if !mapping.is_private_anonymous() || mapping.range.start > limit {
            break;
        }
        let adjoins = mapping.range.start == end;
        match heap {
            Some(_) if !adjoins => break,
            None if adjoins => {}
            _ if !mapping.writable => {}
            _ => {
                mapping.backing = Backing::Heap;
                heap = Some(mapping.range.start);
            }
        }
        end = mapping.range.end;
    }
}

/// The kernel maps the vDSO into each process, and before it pages with its clock.
fn name_kernels_own(mappings: &mut [Mapping], notes: &Notes) {
    let Some(vdso) = notes.auxiliary(AT_SYSINFO_EHDR).map(Address) else { return };
    let Ok(index) = mappings.binary_search_by_key(&vdso, |mapping| mapping.range.start) else {
        return;
    };
    if mappings[index].backing != Backing::Anonymous {
        return;
    }
    mappings[index].backing = Backing::Kernel("[vdso]".into());
    let mut start = vdso;
    for mapping in mappings[..index].iter_mut().rev() {
        let is_clock = mapping.range.end == start
            && mapping.backing == Backing::Anonymous
            && !mapping.writable
            && !mapping.executable;
        if !is_clock {
            break;
        }
        start = mapping.range.start;
        mapping.backing = Backing::Kernel("[vvar]".into());
        mapping.outside_rss = true;
    }
}
