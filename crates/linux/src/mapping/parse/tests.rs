use proptest::prelude::*;

use super::*;

/// Files of the device 0:2a are in memory.
fn parse(text: impl BufRead) -> io::Result<Mappings> {
    super::parse(text, |device, _| device == (0, 0x2a))
}

const SMAPS: &str = "\
55e0c0000000-55e0c0021000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Rss:                 132 kB
Pss:                 132 kB
Swap:                  8 kB
SwapPss:               8 kB
VmFlags: rd wr mr mw me ac sd
7f0000000000-7f0000021000 rw-p 00000000 00:00 0 
Rss:                   4 kB
Swap:                  0 kB
VmFlags: rd wr mr mw me ac sd
7f0000021000-7f0004000000 ---p 00000000 00:00 0 
Rss:                   0 kB
Swap:                  0 kB
VmFlags: mr mw me nr sd dc
7f1000000000-7f1000001000 r--p 00001000 fe:01 1234                       /usr/lib/libruby-3.1.so.3.1.2 (deleted)
Rss:                   4 kB
Swap:                  0 kB
VmFlags: rd mr mw me sd
7ffd00000000-7ffd00004000 r--p 00000000 00:00 0                          [vvar]
Rss:                   0 kB
Swap:                  0 kB
VmFlags: rd mr pf io de dd sd
7ffe00000000-7ffe00200000 rw-p 00000000 00:11 71270                      /anon_hugepage (deleted)
Rss:                   0 kB
Swap:                  0 kB
VmFlags: rd wr mr mw me de ht
7ffe00200000-7ffe00400000 rw-s 00000000 00:11 71271                      /anon_hugepage (deleted)
Rss:                   0 kB
Swap:                  0 kB
VmFlags: rd wr sh mr mw me ms de ht
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
Rss:                   0 kB
VmFlags: ex
";

#[test]
fn the_device_of_a_file_tells_whether_it_is_in_memory() {
    let line = |at: u64, device: &str, name: &str| {
        format!("{at:x}000-{at:x}800 rw-s 00000000 {device} 7 {name}\n")
    };
    let text = line(1, "00:2a", "/x") + &line(2, "2a:00", "/dev/shm/x") + &line(3, "00:2a", "");
    let mappings = parse(text.as_bytes()).unwrap();
    let in_memory: Vec<bool> = mappings.iter().map(|it| it.is_in_memory).collect();
    assert_eq!(in_memory, [true, false, false]);
    assert!(parse(line(1, "002a", "/x").as_bytes()).is_err());
}

#[test]
fn smaps_of_a_process_parse() {
    let mappings = parse(SMAPS.as_bytes()).unwrap();
    assert_eq!(mappings.iter().count(), 7, "vsyscall is the kernel's");
    assert_eq!(mappings.kernel_rss_bytes(), Some(140 * 1024));
    let heap = mappings.iter().next().unwrap();
    assert_eq!(heap.backing, Backing::Heap);
    assert_eq!(heap.swap_bytes, 8192);
    let library = mappings.find(Address(0x7f10_0000_0000)).unwrap();
    assert_eq!(library.file_name().as_deref(), Some("libruby-3.1.so.3.1.2"));
    assert_eq!(library.file_offset, 0x1000);
    assert!(mappings.find(Address(0x7ffd_0000_0000)).unwrap().has_bare_frames);
    assert!(mappings.find(Address(0x7f00_0002_1000)).unwrap().not_inherited);
    assert!(mappings.find(Address(0x7f10_0000_1000)).is_none());
    let [private, shared] =
        [0x7ffe_0000_0000, 0x7ffe_0020_0000].map(|start| mappings.find(Address(start)).unwrap());
    assert!(private.is_hugetlb && private.is_private_anonymous());
    assert!(shared.is_hugetlb && shared.file().is_some());
}

/// A short path that begins like the name of shared memory ended rbloat. A longer one hid its process.
#[test]
fn any_name_is_understood() {
    let file = |path: &[u8]| Backing::File(OsStr::from_bytes(path).into());
    let kernel = |name: &str| Backing::Kernel(name.into());
    for path in [
        "/SYSVq",
        "/SYSV",
        "/SYSVq (deleted)",
        "/SYSV0000002a (deleted)",
        "/SYSV漢字漢字",
        "/memfd:\u{1b}[2J (deleted)",
        "/dev/zero (deleted)",
        "/anon_hugepage (deleted)",
        "//anon",
        "/tmp/x [heap]",
        "/tmp/[stack]",
        "/tmp/x\\012Rss:  1 kB",
        "/Rss: 99999 kB",
        "/7f0000000000-7f0000021000 rw-p 00000000 00:00 0 [heap]",
        "/ends in blanks  ",
        "anon_inode:[perf_event]",
        "/dmabuf:[heap]",
    ] {
        assert_eq!(backing(path.as_bytes()), file(path.as_bytes()), "{path}");
    }
    assert_eq!(backing(b"/tmp/\xff\xfe.so"), file(b"/tmp/\xff\xfe.so"));
    for name in
        ["", "[anon:]", "[anon:[heap]]", "[anon:[stack]]", "[anon:\\012", "[stack:", "[stack:12]"]
    {
        assert_eq!(backing(name.as_bytes()), Backing::Anonymous, "{name}");
    }
    assert_eq!(backing(b"[anon_shmem:[heap]]"), file(b"/dev/zero (deleted)"));
    assert_eq!(backing(b"[heap]"), Backing::Heap);
    assert_eq!(backing(b"[stack]"), Backing::Stack);
    for name in ["[uprobes]", "[vvar_vclock]", "[", "[]", "[heap", "[heap] "] {
        assert_eq!(backing(name.as_bytes()), kernel(name));
    }
    assert_eq!(backing(b"[\x1b]"), kernel("[ ]"));
}

/// The backing of a mapping with this name.
fn backing(name: &[u8]) -> Backing {
    let line =
        [b"7f0000000000-7f0000021000 rw-s 00000000 00:01 7           ", name, b"\n"].concat();
    let mappings = parse(&line[..]).unwrap();
    let [mapping] = &mappings.0[..] else { panic!("{mappings:?}") };
    assert!(mapping.shared);
    mapping.backing.clone()
}

/// The process was refused a forked copy, and its pages were taken for huge ones.
#[test]
fn a_file_with_the_name_of_huge_pages_is_a_file() {
    let text = "1000-2000 rw-p 0 fe:01 7 /anon_hugepage\nVmFlags: rd wr mr\n";
    let mappings = parse(text.as_bytes()).unwrap();
    assert!(!mappings.0[0].is_hugetlb && mappings.0[0].file().is_some());
}

#[test]
fn what_the_kernel_writes_by_itself_must_be_understood() {
    for line in [
        "7f0000000000-7f0000021000 rw-p",
        "7f0000000000-7f0000021000 rw-p 0 00:00",
        "7f0000000000-7f0000021000 rw-pp 0 00:00 0 ",
        "7f0000000000-7f0000021000 rw-q 0 00:00 0 ",
        "7f0000000000-7f0000021000 wr-p 0 00:00 0 ",
        "7f0000000000 rw-p 0 00:00 0 ",
        "7f0000021000-7f0000000000 rw-p 0 00:00 0 ",
        "1-+2 rw-p 0 00:00 0 ",
        "0-10000000000000000 rw-p 0 00:00 0 ",
        "1-2 rw-p x 00:00 0 ",
        "1-2 rw-p 0 00:00 0 \nRss: many kB",
        "1-2 rw-p 0 00:00 0 \nSwap: 99999999999999999999 kB",
        "1-2 rw-p 0 00:00 0 \nRss: 18446744073709551615 kB",
    ] {
        let error = parse(line.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(line.lines().last().unwrap()), "{error}");
    }
    let error = parse(&b"7f00\x1b[2J\xff"[..]).unwrap_err().to_string();
    assert_eq!(error, r"the line `7f00\x1b[2J\xff` has an unknown form");
    // Later kernels may write more about a mapping.
    let more = "Odd\nRss: 3 kB\n1-2 rw-p 0 00:00 0 \nNewest: thing\nVmFlags: zz pf\n\n\tx";
    let mappings = parse(more.as_bytes()).unwrap();
    assert!(mappings.0.len() == 1 && mappings.0[0].has_bare_frames);
}

#[test]
fn a_mapping_that_changed_between_two_reads_is_there_once() {
    let lines = "1000-3000 rw-p 0 00:00 0 \n3000-4000 rw-p 0 00:00 0 \n2000-5000 r--p 0 00:00 0 \n";
    let mappings = parse(lines.as_bytes()).unwrap();
    let [mapping] = &mappings.0[..] else { panic!("{mappings:?}") };
    assert_eq!(mapping.range, Address(0x2000)..Address(0x5000));
}

#[test]
fn a_long_path_is_cut_off() {
    let mut text = b"1000-2000 rw-p 0 00:00 0 /".to_vec();
    text.extend([b'x'; 3 * MAX_LINE]);
    text.extend(b"\nRss: 4 kB\n2000-3000 rw-p 0 00:00 0 [heap]\nRss: 8 kB");
    let mappings = parse(&text[..]).unwrap();
    assert_eq!(mappings.kernel_rss_bytes(), Some(12 << 10));
    assert!(mappings.0[0].file().unwrap().as_os_str().len() < MAX_LINE);
    assert_eq!(mappings.0[1].backing, Backing::Heap);
}

/// A mapping, and its text in smaps.
fn written() -> impl Strategy<Value = (Mapping, Vec<u8>)> {
    let name = prop_oneof![
        Just(b"".to_vec()),
        Just(b"[heap]".to_vec()),
        Just(b"[vvar]".to_vec()),
        prop::collection::vec(
            any::<u8>().prop_filter("a line break", |&byte| byte != b'\n'),
            0..40
        )
        .prop_map(|path| [b"/", &path[..]].concat()),
    ];
    let details = prop::option::of((0..1_u64 << 50, 0..1_u64 << 50, any::<[bool; 5]>()));
    (0..1000_u64, 1..1000_u64, any::<[bool; 4]>(), any::<u64>(), name, details).prop_map(
        |(gap, pages, [r, w, x, s], file_offset, name, details)| {
            // The range begins at the gap to the mapping before it.
            let range = Address(gap << 12)..Address((gap + pages) << 12);
            let mut mapping = Mapping {
                readable: r,
                writable: w,
                executable: x,
                file_offset,
                ..Mapping::named(range, s, &name)
            };
            let letter = |is: bool, letter: char| if is { letter } else { '-' };
            let share = if s { 's' } else { 'p' };
            let permissions = [letter(r, 'r'), letter(w, 'w'), letter(x, 'x'), share];
            let permissions: String = permissions.iter().collect();
            let mut text = format!(" {permissions} {file_offset:08x} fe:01 1234   ").into_bytes();
            text.extend(&name);
            text.push(b'\n');
            if let Some((rss, swap, [pf, ht, dc, wf, lo])) = details {
                mapping.kernel_rss_bytes = Some(rss << 10);
                mapping.swap_bytes = swap << 10;
                mapping.has_bare_frames |= pf;
                mapping.is_hugetlb = ht;
                mapping.not_inherited = dc || wf;
                mapping.is_locked = lo;
                let flag = |is: bool, flag: &'static str| if is { flag } else { "rd" };
                let flags = [(pf, "pf"), (ht, "ht"), (dc, "dc"), (wf, "wf"), (lo, "lo")];
                let flags = flags.map(|(is, name)| flag(is, name));
                let flags = flags.join(" ");
                text.extend(
                    format!("Size: 9 kB\nRss: {rss:8} kB\nPss: 1 kB\nSwap: {swap:8} kB\nVmFlags: {flags} \n")
                        .bytes(),
                );
            }
            (mapping, text)
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read(written in prop::collection::vec(written(), 0..20)) {
        let (mut text, mut expected, mut end) = (Vec::new(), Vec::new(), 0);
        for (mut mapping, line) in written {
            let Range { start, end: last } = mapping.range;
            mapping.range = Address(end + start.0)..Address(end + last.0);
            end = mapping.range.end.0;
            text.extend(format!("{:08x}-{end:08x}", mapping.range.start.0).bytes());
            text.extend(line);
            expected.push(mapping);
        }
        prop_assert_eq!(parse(&text[..]).unwrap().0, expected);
    }

    #[test]
    fn no_text_panics(text in prop::collection::vec(any::<u8>(), 0..400), seed in any::<prop::sample::Index>()) {
        let mut damaged = SMAPS.as_bytes().to_vec();
        let at = seed.index(damaged.len());
        damaged.splice(at..(at + text.len() / 8).min(SMAPS.len()), text.iter().copied());
        for text in [&text[..], &damaged] {
            if let Ok(mappings) = parse(text) {
                let pairs = mappings.0.windows(2);
                prop_assert!(pairs.into_iter().all(|it| it[0].range.end <= it[1].range.start));
                prop_assert!(mappings.iter().all(|mapping| !mapping.range.is_empty()));
            }
        }
    }
}
