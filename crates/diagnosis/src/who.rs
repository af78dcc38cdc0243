//! Growth by the code that caused it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use formats::{
    Sampling, Who, WhoFrame, WhoKindShare, WhoLine, WhoMachineCode, WhoMethod, WhoOldObjects,
    WhoOrigin, WhoProcess, WhoShare, WhoStack, WhoTask, WhoTouched, milliseconds,
};
use ledger::Gem;
use sampler::{Frame, Growth, MachineCode, Profile, Touched};

use crate::task::{Task, task};

/// The parts of an observation, in each of which the number of old objects must rise; the counts that are needed for a judgement,
/// and the least rise, which is also a tenth of the first number.
const QUARTERS: usize = 4;
const MIN_COUNTS: usize = 8;
const MIN_OLD_OBJECTS: u64 = 2000;

/// Sums up the growth of the process `pid`, which runs `command`, and of the processes that it started.
#[must_use]
pub fn who(pid: i32, command: &str, profile: &Profile) -> Who {
    let growth = &profile.growth;
    let attributed: u64 = growth.iter().map(|it| it.bytes).sum();
    let growth_bytes = attributed + profile.unsampled_bytes;
    let without_stack: u64 = growth.iter().filter(|it| it.stack.is_none()).map(|it| it.bytes).sum();
    let frames: Vec<WhoFrame> = profile.frames.iter().map(frame).collect();
    let (mut stacks, numbers) = stacks(profile);
    let tasks = tasks(&frames, &mut stacks);
    let minutes = profile.elapsed.as_secs_f64() / 60.0;
    Who {
        pid,
        command: command.to_owned(),
        elapsed_ms: milliseconds(profile.elapsed),
        sampling: Sampling {
            method: profile.method.into(),
            samples: profile.samples,
            lost: profile.lost,
            copied: profile.copied,
            torn: profile.torn,
            unknown_stacks: profile.unknown_stacks.into(),
            prompt_bytes: growth.iter().map(|it| it.prompt_bytes).sum(),
            interval_ms: profile.interval.map(milliseconds),
        },
        growth_bytes,
        bytes_per_minute: if minutes > 0.0 { (growth_bytes as f64 / minutes) as u64 } else { 0 },
        unknown_bytes: without_stack + profile.unsampled_bytes,
        unsampled_bytes: profile.unsampled_bytes,
        faulted_bytes: growth.iter().map(|it| it.faulted_bytes).sum(),
        copied_bytes: growth.iter().map(|it| it.copied_bytes).sum(),
        old_objects: profile.old_objects.iter().filter_map(old_objects).max_by_key(|it| it.last),
        processes: processes(profile),
        tasks,
        methods: methods(profile, &stacks),
        lines: lines(profile, grown(&stacks)),
        copies: lines(profile, copied(profile)),
        threads: threads(profile),
        kinds: kinds(growth),
        machine_code: machine_code(profile),
        frames,
        stacks,
        touched: profile.touched.iter().map(|it| touched(it, &numbers)).collect(),
    }
}

/// The number of old objects of a process, if it has risen steadily: each quarter of the time has more than the one before, by the
/// least number of each.
fn old_objects((pid, numbers): &(i32, Vec<u64>)) -> Option<WhoOldObjects> {
    let parts: Vec<&[u64]> = numbers.chunks(numbers.len().div_ceil(QUARTERS).max(1)).collect();
    let least: Vec<u64> = parts.iter().filter_map(|part| part.iter().min().copied()).collect();
    let (first, last) = (*least.first()?, *least.last()?);
    let is_steady = least.len() == QUARTERS && least.is_sorted_by(|a, b| a < b);
    let is_much = last - first.min(last) >= MIN_OLD_OBJECTS.max(first / 10);
    (numbers.len() >= MIN_COUNTS && is_steady && is_much).then_some(WhoOldObjects {
        pid: *pid,
        first,
        last,
    })
}

pub(crate) fn frame(frame: &Frame) -> WhoFrame {
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

/// The stacks that grew RSS or touched pages that are still there, by their growth, the largest first; and the place of each.
fn stacks(profile: &Profile) -> (Vec<WhoStack>, HashMap<u32, u32>) {
    let mut by_stack: BTreeMap<u32, u64> = BTreeMap::new();
    let grown = profile.growth.iter().filter(|it| it.bytes > 0).map(|it| (it.stack, it.bytes));
    let touched = profile.touched.iter().flat_map(|it| &it.pages).map(|page| (page.stack, 0));
    for (stack, bytes) in grown.chain(touched) {
        if let Some(stack) = stack {
            *by_stack.entry(stack).or_default() += bytes;
        }
    }
    let mut by_stack: Vec<(u32, u64)> = by_stack.into_iter().collect();
    by_stack.sort_by_key(|&(_, bytes)| Reverse(bytes));
    let mut numbers = HashMap::new();
    let mut stacks = Vec::new();
    for (stack, bytes) in by_stack {
        let Some(frames) = profile.stacks.get(stack as usize) else { continue };
        numbers.insert(stack, stacks.len() as u32);
        stacks.push(WhoStack { frames: frames.iter().rev().copied().collect(), bytes, task: None });
    }
    (stacks, numbers)
}

/// The requests and jobs, those with most growth first. Sets the task of each stack.
fn tasks(frames: &[WhoFrame], stacks: &mut [WhoStack]) -> Vec<WhoTask> {
    let of_stack = |stack: &WhoStack| {
        task(stack.frames.iter().filter_map(|&frame| frames.get(frame as usize)))
    };
    let of_stacks: Vec<Option<Task>> = stacks.iter().map(of_stack).collect();
    let mut sums: BTreeMap<&Task, u64> = BTreeMap::new();
    for (task, stack) in of_stacks.iter().zip(stacks.iter()) {
        if let Some(task) = task {
            *sums.entry(task).or_default() += stack.bytes;
        }
    }
    let mut sums: Vec<(&Task, u64)> = sums.into_iter().collect();
    sums.sort_by_key(|&(_, bytes)| Reverse(bytes));
    let numbers: HashMap<&Task, u32> = sums.iter().map(|it| it.0).zip(0..).collect();
    for (task, stack) in of_stacks.iter().zip(stacks) {
        stack.task = task.as_ref().and_then(|task| numbers.get(task).copied());
    }
    let row =
        |(task, bytes): (&Task, u64)| WhoTask { kind: task.kind, name: task.name.clone(), bytes };
    sums.into_iter().map(row).collect()
}

fn touched(touched: &Touched, numbers: &HashMap<u32, u32>) -> WhoTouched {
    let pages = &touched.pages;
    let number = |stack: u32| numbers.get(&stack).copied();
    WhoTouched {
        pid: touched.pid,
        started_ticks: touched.started_ticks,
        page_bytes: touched.page_size,
        pages: pages.iter().map(|it| it.page).collect(),
        stacks: pages.iter().map(|it| it.stack.and_then(number)).collect(),
        bytes: pages.iter().map(|it| it.bytes).collect(),
    }
}

/// The methods, those with most growth first; of several with the same growth, such as a server's loop and the middleware that it calls,
/// the innermost one first. Their own growth adds up to that of all stacks. A method that calls itself counts once.
fn methods(profile: &Profile, stacks: &[WhoStack]) -> Vec<WhoMethod> {
    // Its own growth, with all that it calls, and the bytes times the frames that it called.
    let mut rows: HashMap<(&str, Option<&str>), (u64, u64, u128)> = HashMap::new();
    for stack in stacks {
        let mut seen = HashSet::new();
        for (index, frame) in stack.frames.iter().rev().enumerate() {
            let Some(frame) = profile.frames.get(*frame as usize) else { continue };
            let key = (frame.label.as_str(), frame.path.as_deref());
            let row = rows.entry(key).or_default();
            row.0 += if index == 0 { stack.bytes } else { 0 };
            if seen.insert(key) {
                row.1 += stack.bytes;
                row.2 += u128::from(stack.bytes) * index as u128;
            }
        }
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|&(key, (own, total, calls))| (Reverse(total), calls, Reverse(own), key));
    let method =
        |((method, path), (self_bytes, total_bytes, _)): ((&str, Option<&str>), _)| WhoMethod {
            method: method.to_owned(),
            path: path.map(str::to_owned),
            self_bytes,
            total_bytes,
        };
    rows.into_iter().map(method).collect()
}

/// The growth of stacks, with the innermost frame first.
fn grown(stacks: &[WhoStack]) -> impl Iterator<Item = (Vec<u32>, u64)> {
    stacks.iter().map(|stack| (stack.frames.iter().rev().copied().collect(), stack.bytes))
}

/// The bytes that stacks copied, with the innermost frame first.
fn copied(profile: &Profile) -> impl Iterator<Item = (Vec<u32>, u64)> {
    let copies = profile.growth.iter().filter(|it| it.copied_bytes > 0);
    copies.filter_map(|it| Some((profile.stacks.get(it.stack? as usize)?.clone(), it.copied_bytes)))
}

/// The innermost line of the application on each stack, with the sum of the bytes of its stacks.
fn lines(profile: &Profile, stacks: impl Iterator<Item = (Vec<u32>, u64)>) -> Vec<WhoLine> {
    let mut is_application: HashMap<&str, bool> = HashMap::new();
    let mut rows: BTreeMap<(&str, u32), (&str, u64)> = BTreeMap::new();
    for (frames, bytes) in stacks {
        let frames = frames.iter().filter_map(|&it| profile.frames.get(it as usize));
        let own = frames.filter_map(|frame| Some((frame, frame.path.as_deref()?, frame.line?)));
        let mut own = own.filter(|(_, path, _)| {
            *is_application.entry(path).or_insert_with(|| Gem::of(Some(path)).is_application())
        });
        if let Some((frame, path, line)) = own.next() {
            rows.entry((path, line)).or_insert((&frame.label, 0)).1 += bytes;
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

fn threads(profile: &Profile) -> Vec<WhoShare> {
    let name = |it: &Growth| profile.threads.get(it.thread as usize).cloned().unwrap_or_default();
    let rows = shares(&profile.growth, name).into_iter();
    rows.map(|(name, bytes)| WhoShare { name, bytes }).collect()
}

fn kinds(growth: &[Growth]) -> Vec<WhoKindShare> {
    let rows = shares(growth, |it| it.kind).into_iter();
    rows.map(|(kind, bytes)| WhoKindShare { kind: kind.into(), bytes }).collect()
}

fn machine_code(profile: &Profile) -> Vec<WhoMachineCode> {
    let code = |it: &Growth| match profile.machine_code.get(it.machine_code as usize) {
        Some(MachineCode::Library(name)) => (WhoOrigin::Library, Some(name.clone())),
        Some(MachineCode::Kernel) => (WhoOrigin::Kernel, None),
        Some(MachineCode::Generated) => (WhoOrigin::Generated, None),
        Some(MachineCode::Unknown) | None => (WhoOrigin::Unknown, None),
    };
    let rows = shares(&profile.growth, code).into_iter();
    rows.map(|((origin, name), bytes)| WhoMachineCode { origin, name, bytes }).collect()
}

/// The growth by a key, the largest first.
fn shares<K: Ord>(growth: &[Growth], key: impl Fn(&Growth) -> K) -> Vec<(K, u64)> {
    let mut rows: BTreeMap<K, u64> = BTreeMap::new();
    for it in growth.iter().filter(|it| it.bytes > 0) {
        *rows.entry(key(it)).or_default() += it.bytes;
    }
    let mut shares: Vec<(K, u64)> = rows.into_iter().collect();
    shares.sort_by_key(|share| Reverse(share.1));
    shares
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sampler::{Kind, ProcessGrowth};

    use super::*;

    fn frame(label: &str, place: Option<(&str, u32)>) -> Frame {
        let (path, line) = (place.map(|it| it.0.to_owned()), place.map(|it| it.1));
        Frame { label: label.to_owned(), path, line }
    }

    fn growth(stack: Option<u32>, thread: u32, bytes: u64) -> Growth {
        let (kind, machine_code) = (Kind::Arena, 0);
        let (prompt_bytes, faulted_bytes, copied_bytes) = (bytes / 2, bytes * 2, bytes / 10);
        Growth {
            stack,
            thread,
            kind,
            machine_code,
            bytes,
            prompt_bytes,
            faulted_bytes,
            copied_bytes,
        }
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
            machine_code: vec![MachineCode::Library("libc.so.6".into())],
            growth: vec![growth(Some(0), 0, 700), growth(Some(1), 1, 200), growth(None, 1, 60)],
            processes: vec![ProcessGrowth { pid: 7, start_bytes: 1000, peak_bytes: 2000 }],
            unsampled_bytes: 40,
            samples: 3,
            elapsed: Duration::from_secs(30),
            ..Profile::default()
        }
    }

    /// Methods that all stacks have were sorted by the alphabet.
    #[test]
    fn of_methods_on_all_stacks_the_innermost_comes_first() {
        let place = Some(("/srv/app/a.rb", 1));
        let names = ["<main>", "Alpha#loop", "Zeta#call", "Middle#render", "First#line"];
        let profile = Profile {
            frames: names.map(|name| frame(name, place)).to_vec(),
            stacks: vec![vec![3, 2, 1, 0], vec![4, 2, 1, 0]],
            growth: vec![growth(Some(0), 0, 600), growth(Some(1), 0, 400)],
            ..profile()
        };
        let methods = who(7, "ruby", &profile).methods;
        let order: Vec<_> = methods.iter().map(|it| it.method.as_str()).collect();
        assert_eq!(order, ["Zeta#call", "Alpha#loop", "<main>", "Middle#render", "First#line"]);
    }

    #[test]
    fn all_growth_has_a_method_or_is_unknown() {
        let who = who(7, "ruby", &profile());
        assert_eq!((who.growth_bytes, who.unknown_bytes, who.unsampled_bytes), (1000, 100, 40));
        assert_eq!(who.bytes_per_minute, 2000);
        assert_eq!(who.sampling.prompt_bytes, 480);
        let threads: Vec<_> = who.threads.iter().map(|it| (it.name.as_str(), it.bytes)).collect();
        assert_eq!(threads, [("web", 700), ("job", 260)]);
        let code = WhoMachineCode {
            origin: WhoOrigin::Library,
            name: Some("libc.so.6".into()),
            bytes: 960,
        };
        assert_eq!(who.machine_code, [code]);
        assert_eq!(who.processes[0].growth_bytes, 1000);
    }

    #[test]
    fn a_recursive_method_counts_once() {
        let who = who(7, "ruby", &profile());
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
        let who = who(7, "ruby", &profile());
        let lines: Vec<_> =
            who.lines.iter().map(|it| (it.path.as_str(), it.line, it.bytes)).collect();
        assert_eq!(lines, [("/srv/app/export.rb", 3, 900)]);
        let copies: Vec<_> = who.copies.iter().map(|it| (it.line, it.bytes)).collect();
        assert_eq!((copies, who.copied_bytes), (vec![(3, 90)], 96));
    }
}
