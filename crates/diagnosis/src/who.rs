//! Growth by the code that caused it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use formats::{
    Sampling, SamplingMethod, Who, WhoFrame, WhoLine, WhoMethod, WhoProcess, WhoShare, WhoStack,
    milliseconds,
};
use ledger::Gem;
use sampler::{Frame, Growth, Kind, Profile};

/// Sums up the growth of the process `pid`, which runs `command`, and of the processes that it started.
#[must_use]
pub fn who(pid: i32, command: &str, method: SamplingMethod, profile: &Profile) -> Who {
    let growth = &profile.growth;
    let attributed: u64 = growth.iter().map(|it| it.bytes).sum();
    let growth_bytes = attributed + profile.unsampled_bytes;
    let without_stack: u64 = growth.iter().filter(|it| it.stack.is_none()).map(|it| it.bytes).sum();
    let stacks = stacks(profile);
    let minutes = profile.elapsed.as_secs_f64() / 60.0;
    Who {
        pid,
        command: command.to_owned(),
        elapsed_ms: milliseconds(profile.elapsed),
        sampling: Sampling {
            method,
            samples: profile.samples,
            lost: profile.lost,
            torn: profile.torn,
            unreadable: profile.unreadable,
            prompt_bytes: growth.iter().map(|it| it.prompt_bytes).sum(),
        },
        growth_bytes,
        bytes_per_minute: if minutes > 0.0 { (growth_bytes as f64 / minutes) as u64 } else { 0 },
        unknown_bytes: without_stack + profile.unsampled_bytes,
        unsampled_bytes: profile.unsampled_bytes,
        faulted_bytes: growth.iter().map(|it| it.faulted_bytes).sum(),
        processes: processes(profile),
        methods: methods(profile, &stacks),
        lines: lines(profile, &stacks),
        threads: shares(growth, |it| profile.threads.get(it.thread as usize).cloned()),
        kinds: shares(growth, |it| Some(Kind::name(it.kind).to_owned())),
        libraries: shares(growth, |it| profile.libraries.get(it.library as usize).cloned()),
        frames: profile.frames.iter().map(frame).collect(),
        stacks,
    }
}

fn frame(frame: &Frame) -> WhoFrame {
    WhoFrame {
        method: frame.label.clone(),
        path: frame.path.clone(),
        line: frame.line.map(u64::from),
    }
}

fn processes(profile: &Profile) -> Vec<WhoProcess> {
    let process = |it: &sampler::ProcessGrowth| WhoProcess {
        pid: it.pid,
        start_bytes: it.start_bytes,
        peak_bytes: it.peak_bytes,
        growth_bytes: it.bytes(),
    };
    profile.processes.iter().map(process).collect()
}

/// The stacks that grew RSS, by their growth, the largest first.
fn stacks(profile: &Profile) -> Vec<WhoStack> {
    let mut by_stack: BTreeMap<u32, u64> = BTreeMap::new();
    for growth in profile.growth.iter().filter(|it| it.bytes > 0) {
        if let Some(stack) = growth.stack {
            *by_stack.entry(stack).or_default() += growth.bytes;
        }
    }
    let mut stacks: Vec<WhoStack> = by_stack
        .into_iter()
        .filter_map(|(stack, bytes)| {
            let frames = profile.stacks.get(stack as usize)?;
            Some(WhoStack { frames: frames.iter().rev().copied().collect(), bytes })
        })
        .collect();
    stacks.sort_by_key(|stack| Reverse(stack.bytes));
    stacks
}

/// The methods, those with most growth first. Their own growth adds up to that of all stacks. A method that calls itself
/// counts once.
fn methods(profile: &Profile, stacks: &[WhoStack]) -> Vec<WhoMethod> {
    let mut rows: HashMap<(&str, Option<&str>), (u64, u64)> = HashMap::new();
    for stack in stacks {
        let mut seen = HashSet::new();
        for (index, frame) in stack.frames.iter().rev().enumerate() {
            let Some(frame) = profile.frames.get(*frame as usize) else { continue };
            let key = (frame.label.as_str(), frame.path.as_deref());
            let row = rows.entry(key).or_default();
            row.0 += if index == 0 { stack.bytes } else { 0 };
            row.1 += if seen.insert(key) { stack.bytes } else { 0 };
        }
    }
    let mut methods: Vec<WhoMethod> = rows
        .into_iter()
        .map(|((method, path), (self_bytes, total_bytes))| WhoMethod {
            method: method.to_owned(),
            path: path.map(str::to_owned),
            self_bytes,
            total_bytes,
        })
        .collect();
    methods.sort_by(|a, b| {
        let key = |it: &WhoMethod| (Reverse(it.total_bytes), Reverse(it.self_bytes));
        (key(a), &a.method, &a.path).cmp(&(key(b), &b.method, &b.path))
    });
    methods
}

/// The innermost line of the application on each stack.
fn lines(profile: &Profile, stacks: &[WhoStack]) -> Vec<WhoLine> {
    let mut is_application: HashMap<&str, bool> = HashMap::new();
    let mut rows: BTreeMap<(&str, u32), (&str, u64)> = BTreeMap::new();
    for stack in stacks {
        let frames = stack.frames.iter().rev().filter_map(|&it| profile.frames.get(it as usize));
        let own = frames.filter_map(|frame| Some((frame, frame.path.as_deref()?, frame.line?)));
        let mut own = own.filter(|(_, path, _)| {
            *is_application.entry(path).or_insert_with(|| Gem::of(Some(path)).is_application())
        });
        if let Some((frame, path, line)) = own.next() {
            rows.entry((path, line)).or_insert((&frame.label, 0)).1 += stack.bytes;
        }
    }
    let mut lines: Vec<WhoLine> = rows
        .into_iter()
        .map(|((path, line), (method, bytes))| WhoLine {
            path: path.to_owned(),
            line: line.into(),
            method: method.to_owned(),
            bytes,
        })
        .collect();
    lines.sort_by_key(|line| Reverse(line.bytes));
    lines
}

/// The growth by a name, the largest first.
fn shares(growth: &[Growth], name: impl Fn(&Growth) -> Option<String>) -> Vec<WhoShare> {
    let mut rows: BTreeMap<String, u64> = BTreeMap::new();
    for it in growth.iter().filter(|it| it.bytes > 0) {
        *rows.entry(name(it).unwrap_or_default()).or_default() += it.bytes;
    }
    let mut shares: Vec<WhoShare> =
        rows.into_iter().map(|(name, bytes)| WhoShare { name, bytes }).collect();
    shares.sort_by_key(|share| Reverse(share.bytes));
    shares
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sampler::ProcessGrowth;

    use super::*;

    fn frame(label: &str, place: Option<(&str, u32)>) -> Frame {
        let (path, line) = (place.map(|it| it.0.to_owned()), place.map(|it| it.1));
        Frame { label: label.to_owned(), path, line }
    }

    fn growth(stack: Option<u32>, thread: u32, bytes: u64) -> Growth {
        let (kind, library) = (Kind::Arena, 0);
        let (prompt_bytes, faulted_bytes) = (bytes / 2, bytes * 2);
        Growth { stack, thread, kind, library, bytes, prompt_bytes, faulted_bytes }
    }

    /// A recursive method that calls a gem and C, and growth without a stack or a sample.
    fn profile() -> Profile {
        Profile {
            frames: vec![
                frame("<main>", Some(("/srv/app/run.rb", 9))),
                frame("Export#run", Some(("/srv/app/export.rb", 3))),
                frame("CSV#add", Some(("/srv/gems/csv-3.3.0/lib/csv.rb", 7))),
                frame("Array#join", None),
            ],
            stacks: vec![vec![3, 2, 1, 1, 0], vec![1, 0]],
            threads: vec!["web".into(), "job".into()],
            libraries: vec!["libc.so.6".into()],
            growth: vec![growth(Some(0), 0, 700), growth(Some(1), 1, 200), growth(None, 1, 60)],
            processes: vec![ProcessGrowth { pid: 7, start_bytes: 1000, peak_bytes: 2000 }],
            unsampled_bytes: 40,
            samples: 3,
            elapsed: Duration::from_secs(30),
            ..Profile::default()
        }
    }

    #[test]
    fn all_growth_has_a_method_or_is_unknown() {
        let who = who(7, "ruby", SamplingMethod::PageFaults, &profile());
        assert_eq!((who.growth_bytes, who.unknown_bytes, who.unsampled_bytes), (1000, 100, 40));
        assert_eq!(who.bytes_per_minute, 2000);
        let own: u64 = who.methods.iter().map(|method| method.self_bytes).sum();
        assert_eq!(own + who.unknown_bytes, who.growth_bytes);
        let stacks: u64 = who.stacks.iter().map(|stack| stack.bytes).sum();
        assert_eq!(stacks + who.unknown_bytes, who.growth_bytes);
        for shares in [&who.threads, &who.kinds, &who.libraries] {
            let sum: u64 = shares.iter().map(|share| share.bytes).sum();
            assert_eq!(sum + who.unsampled_bytes, who.growth_bytes);
        }
        assert_eq!(who.processes[0].growth_bytes, 1000);
    }

    #[test]
    fn a_recursive_method_counts_once() {
        let who = who(7, "ruby", SamplingMethod::PageFaults, &profile());
        let of = |name: &str| {
            let row = who.methods.iter().find(|method| method.method == name).unwrap();
            (row.self_bytes, row.total_bytes)
        };
        assert_eq!(of("<main>"), (0, 900));
        assert_eq!(of("Export#run"), (200, 900));
        assert_eq!(of("CSV#add"), (0, 700));
        assert_eq!(of("Array#join"), (700, 700));
    }

    #[test]
    fn the_line_is_the_application_s_not_the_gem_s() {
        let who = who(7, "ruby", SamplingMethod::PageFaults, &profile());
        let lines: Vec<_> =
            who.lines.iter().map(|it| (it.path.as_str(), it.line, it.bytes)).collect();
        assert_eq!(lines, [("/srv/app/export.rb", 3, 900)]);
    }
}
