//! The text of /proc/PID/maps and /proc/PID/smaps, in which a process chooses the names: any text ends in a list of mappings,
//! ascending and disjoint, or in an error of one line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linux::{Address, Mapping, Mappings, length};

fuzz_target!(|text: &[u8]| {
    match Mappings::parse(text) {
        Ok(mappings) => check(&mappings),
        Err(error) => assert!(!error.to_string().contains(linux::is_control)),
    }
});

fn check(mappings: &Mappings) {
    let mut end = Address(0);
    for mapping in mappings {
        let Mapping { range, .. } = mapping;
        assert!(end <= range.start && length(range) > 0);
        assert_eq!(mappings.find(range.start), Some(mapping));
        assert_eq!(mappings.find(range.end.before(1)), Some(mapping));
        end = range.end;
    }
    let _ = mappings.kernel_rss_bytes();
}
