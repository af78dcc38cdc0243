//! The mappings of the process, from the segments of its core and the list of mapped files.

use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use linux::{Address, Backing, Mapping, intersection, is_hugetlb_name, is_shared_memory, length};

use super::headers::Segment;
use super::notes::{MappedFile, Notes};

/// Keys of the auxiliary vector: the program headers of the executable, the vDSO, and the file name of the program.
const AT_PHDR: u64 = 3;
const AT_SYSINFO_EHDR: u64 = 33;
const AT_EXECFN: u64 = 31;
/// The maximum distance from the executable to the heap of brk(2) (`arch_randomize_brk`; 32 MiB up to Linux 6.8).
const MAX_HEAP_DISTANCE: u64 = (1 << 30) + (32 << 20);

/// Returns the mappings, with their backing if it is known.
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
    // gdb leaves out mappings that it does not dump.
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
    name_kernel_mappings(&mut mappings, notes);
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

/// Returns a mapping of a file. If gdb did not dump it, it is readable, and it is unknown whether it is writable or
/// executable.
fn of_file(file: &MappedFile, range: &Range<Address>, segment: Option<&Segment>) -> Mapping {
    let start = file.offset.saturating_add(range.start - file.range.start);
    let is_hugetlb = is_hugetlb_name(file.path.as_os_str().as_bytes());
    // A core has no list of mounts.
    let is_in_memory = is_shared_memory(file.path.as_os_str().as_bytes());
    let backing = if is_hugetlb { Backing::Anonymous } else { Backing::File(file.path.clone()) };
    Mapping {
        readable: segment.is_none_or(|segment| segment.readable),
        writable: segment.is_some_and(|segment| segment.writable),
        executable: segment.is_some_and(|segment| segment.executable),
        shared: is_in_memory,
        is_in_memory,
        file_offset: start,
        backing,
        is_hugetlb,
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

/// Names the heap: the first writable memory after the executable that does not adjoin it (adjoining memory are the
/// executable's variables), and the memory that adjoins the heap.
fn name_heap(mappings: &mut [Mapping], notes: &Notes) {
    let Some(headers) = notes.auxiliary(AT_PHDR).map(Address) else { return };
    let first = mappings.iter().position(|mapping| mapping.range.contains(&headers));
    let Some((first, path)) = first.and_then(|at| Some((at, mappings[at].file()?))) else { return };
    // Somewhere else the program may have mapped the file again: a Ruby that crashes looks for the names of its functions.
    let parts = mappings[first..].iter().take_while(|mapping| mapping.file() == Some(path)).count();
    let after = first + parts;
    let mut end = mappings[after - 1].range.end;
    let limit = end.offset(MAX_HEAP_DISTANCE);
    let mut heap: Option<Address> = None;
    for mapping in &mut mappings[after..] {
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

/// Names the vDSO, which the kernel maps into each process, and the pages with the kernel's clock before it.
fn name_kernel_mappings(mappings: &mut [Mapping], notes: &Notes) {
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
        mapping.has_bare_frames = true;
    }
}
