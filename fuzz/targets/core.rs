//! Damaged core files: opening one ends, takes bounded memory, and does not panic.

#![no_main]

use std::sync::OnceLock;

use capture::{CoreOptions, open_core};
use ledger::{Facts, Ledger};
use libfuzzer_sys::fuzz_target;
use rbloat_fuzz::{patches, process};
use testkit::{CoreWriter, SyntheticCore};

/// The bytes of two cores, one by the kernel and one by a debugger.
fn cores() -> &'static [Vec<u8>; 2] {
    static CORES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    CORES.get_or_init(|| {
        [CoreWriter::Kernel, CoreWriter::Debugger].map(|writer| {
            let (state, memory) = process(1);
            let file = tempfile::NamedTempFile::new().expect("a temporary file");
            SyntheticCore::new(writer, &memory, &state.threads).write(file.path());
            std::fs::read(file.path()).expect("the core that was written")
        })
    })
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, input)) = input.split_first() else { return };
    let mut bytes = cores()[usize::from(choice & 1)].clone();
    // Headers and notes are in the first pages.
    let headers = bytes.len().min(3 << 12);
    for patch in patches(input) {
        patch.apply(if choice & 2 == 0 { &mut bytes[..headers] } else { &mut bytes });
    }
    if choice & 4 != 0 {
        bytes.truncate(bytes.len() / 256 * usize::from(choice));
    }
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), &bytes).expect("room for the core");
    // No library of this machine may be taken for one of the core's.
    let options = CoreOptions { sysroot: Some("/nonexistent".into()) };
    if let Ok(core) = open_core(file.path(), &options) {
        let ledger = Ledger::draw_up(&core.image.state, &Facts::read(&core.image, true));
        assert_eq!(ledger.causes.total(), ledger.rss_bytes);
    }
});
