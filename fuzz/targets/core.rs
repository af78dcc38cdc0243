//! Damaged core files, from opening one to the text of its report: it ends, takes bounded memory, and does not panic.

#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use image::open_core;
use libfuzzer_sys::fuzz_target;
use linux::Sysroot;
use rbloat_fuzz::{examine, patches, process};
use testkit::{CoreWriter, SyntheticCore};

const PAGE: usize = 4096;

/// A core as the list of its pages that are not zeros.
struct Core {
    pages: Vec<(u64, [u8; PAGE])>,
    length: u64,
}

/// Two cores, one by the kernel and one by a debugger.
fn cores() -> &'static [Core; 2] {
    static CORES: OnceLock<[Core; 2]> = OnceLock::new();
    CORES.get_or_init(|| {
        [CoreWriter::Kernel, CoreWriter::Debugger].map(|writer| {
            let (state, memory) = process(1);
            let file = tempfile::NamedTempFile::new().expect("a temporary file");
            SyntheticCore::new(writer, &memory, &state.threads).write(file.path());
            let bytes = std::fs::read(file.path()).expect("the core that was written");
            let pages = bytes.chunks(PAGE).enumerate().map(|(index, bytes)| {
                let mut page = [0; PAGE];
                page[..bytes.len()].copy_from_slice(bytes);
                ((index * PAGE) as u64, page)
            });
            let pages = pages.filter(|(_, page)| page.iter().any(|&byte| byte != 0)).collect();
            Core { pages, length: bytes.len() as u64 }
        })
    })
}

fuzz_target!(|input: &[u8]| {
    let Some((&[choice, cut], input)) = input.split_first_chunk() else { return };
    let core = &cores()[usize::from(choice & 1)];
    let mut pages = core.pages.clone();
    // Headers and notes are in the first pages.
    let damaged = if choice & 2 == 0 { 3 } else { pages.len() };
    for patch in patches(input) {
        let place = patch.place(damaged * PAGE).expect("the core has pages");
        patch.write(&mut pages[place / PAGE].1, place % PAGE);
    }
    // In memory, since the core is written anew for each input.
    let file = tempfile::NamedTempFile::new_in("/dev/shm").expect("a temporary file");
    write(file.as_file(), &pages).expect("room for the core");
    let length = if choice & 4 == 0 { core.length } else { core.length / 256 * u64::from(cut) };
    file.as_file().set_len(length).expect("a length for the core");
    // No library of this machine may be taken for one of the core's.
    let sysroot = Sysroot::open(Some("/nonexistent".as_ref()));
    if let Ok(core) = open_core(file.path(), &sysroot, linux::WantedVariables::default()) {
        examine(&core.image);
    }
});

fn write(file: &File, pages: &[(u64, [u8; PAGE])]) -> std::io::Result<()> {
    pages.iter().try_for_each(|(at, page)| file.write_all_at(page, *at))
}
