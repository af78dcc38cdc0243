use super::*;

/// Touches `pages` new pages, and returns their address.
fn touch(pages: usize) -> u64 {
    let bytes = pages * page_size() as usize;
    // SAFETY: a new private anonymous mapping, written within its length, leaked.
    unsafe {
        let start = libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE);
        for page in 0..pages {
            start.cast::<u8>().add(page * page_size() as usize).write_volatile(1);
        }
        start as u64
    }
}

#[test]
fn faults_are_counted_where_they_happen_also_in_threads_that_begin_later() {
    let pid = std::process::id().cast_signed();
    let mut faults = PageFaults::open(pid, &[], 4).unwrap();
    let begin = now();
    let own = touch(400);
    let others = std::thread::spawn(|| touch(800)).join().unwrap();
    let end = now();
    let (mut counts, mut ended) = ([0, 0], 0);
    loop {
        let records = faults.wait(Duration::from_millis(100)).unwrap();
        if records.is_empty() {
            break;
        }
        for record in records {
            let FaultRecord::Fault(fault) = record else {
                ended += usize::from(matches!(record, FaultRecord::ThreadEnded { .. }));
                continue;
            };
            for (count, (start, pages)) in counts.iter_mut().zip([(own, 400), (others, 800)]) {
                if (start..start + pages * page_size()).contains(&fault.address.0) {
                    *count += fault.period;
                    assert!((begin..=end).contains(&fault.time), "{fault:?}");
                    assert_eq!(fault.pid, pid);
                }
            }
        }
    }
    // Threads have periods of their own, on each processor.
    assert!((350..=450).contains(&counts[0]) && (750..=850).contains(&counts[1]), "{counts:?}");
    assert!(ended > 0);
}

/// Records of an exec had no time, so they came before all faults of the old program.
#[test]
fn faults_before_an_exec_come_before_it() {
    // A string of 1 MiB takes new pages, whatever the shell has touched before.
    let program = "read word; word=0123456789abcdef
        for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do word=$word$word; done
        exec sleep 0";
    let mut child = std::process::Command::new("sh")
        .args(["-c", program])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().cast_signed();
    // The shell itself is the first program.
    while std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() != "sh" {}
    let mut faults = PageFaults::open(pid, &[], 1).unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    let records = faults.wait(Duration::ZERO).unwrap();
    let exec = records.iter().position(|it| *it == FaultRecord::Executed { pid }).unwrap();
    let times = |records: &[FaultRecord]| {
        let time = |record: &FaultRecord| match record {
            FaultRecord::Fault(fault) => Some(fault.time),
            _ => None,
        };
        records.iter().filter_map(time).collect::<Vec<_>>()
    };
    let (before, after) = (times(&records[..exec]), times(&records[exec..]));
    assert!(before.iter().max() < after.iter().min() && !before.is_empty(), "{records:?}");
}

/// The records that were not read yet were lost with their rings.
#[test]
fn a_change_of_the_period_loses_no_records() {
    let pid = std::process::id().cast_signed();
    let mut faults = PageFaults::open(pid, &[], 1).unwrap();
    let start = touch(300);
    let records = faults.change_period(pid, &[], 2).unwrap();
    // Threads of other tests may have had memory there before.
    let tid = nix::unistd::gettid().as_raw();
    let is_own = |record: &FaultRecord| {
        let memory = start..start + 300 * page_size();
        matches!(record, FaultRecord::Fault(fault)
            if fault.tid == tid && memory.contains(&fault.address.0) && fault.period == 1)
    };
    assert_eq!(records.iter().filter(|it| is_own(it)).count(), 300);
    assert_eq!(faults.period, 2);
}

#[test]
fn a_process_that_does_not_exist_is_an_error() {
    let error = PageFaults::open(i32::MAX, &[], 4).err();
    assert!(matches!(error, Some(Error::NoSuchProcess { .. })), "{error:?}");
}
