use formats::{
    Arrival, CaptureMethod, CauseRow, CauseSample, Fit, FitBasis, FitDoubt, FitRemedy, Group, Line,
    ProcessSample, Recording, RecordingStart, Sample,
};
use ledger::Cause;
use proptest::prelude::*;

use super::RecordedWorkers;
use super::model::Model;

const MIB: f64 = 1_048_576.0;
/// In seconds.
const DAY: f64 = 86_400.0;
const MASTER: i32 = 10;

fn fit(recordings: &[RecordedWorkers], limit_bytes: Option<u64>) -> Fit {
    super::fit(recordings, limit_bytes, DAY)
}

/// A server for tests: the private memory of each worker, in MiB, is a function of its number and the time.
struct Shop {
    workers: usize,
    seconds: u64,
    shared: f64,
    load: f64,
    limit: Option<f64>,
    kills: u64,
    command: fn(usize) -> String,
}

impl Default for Shop {
    fn default() -> Self {
        Self {
            workers: 2,
            seconds: 900,
            shared: 60.0,
            load: 0.2,
            limit: None,
            kills: 0,
            command: |number| format!("puma: cluster worker {number}: 10 [shop]"),
        }
    }
}

fn process(pid: i32, rss: f64, private: f64, cpu_seconds: f64) -> ProcessSample {
    ProcessSample {
        pid,
        started_ticks: pid as u64,
        state: 'S',
        rss_bytes: (rss * MIB) as u64,
        pss_bytes: Some((private * MIB) as u64),
        uss_bytes: Some((private * MIB) as u64),
        swap_bytes: Some(0),
        peak_rss_bytes: None,
        user_ms: (cpu_seconds * 1e3) as u64,
        system_ms: 0,
        minor_faults: 0,
        major_faults: 0,
        threads: if pid == MASTER { 3 } else { 8 },
    }
}

fn arrival(pid: i32, parent: i32, command: &str) -> Line {
    let command = command.into();
    Line::Process(Arrival { t_ms: 0, pid, parent, started_ticks: pid as u64, command })
}

fn start() -> RecordingStart {
    RecordingStart {
        rbloat: String::new(),
        unix_ms: 0,
        pid: MASTER,
        command: None,
        every_ms: 1000,
        causes_every_ms: None,
        label: None,
    }
}

fn sample_of(second: u64, processes: Vec<ProcessSample>, shared: f64) -> Sample {
    let private: u64 = processes.iter().filter_map(|it| it.uss_bytes).sum();
    Sample {
        t_ms: second * 1000,
        exact: true,
        rss_bytes: processes.iter().map(|it| it.rss_bytes).sum(),
        pss_bytes: Some(private + (shared * MIB) as u64),
        uss_bytes: Some(private),
        swap_bytes: Some(0),
        processes,
        group: None,
        recorder_cpu_ms: 0.0,
    }
}

impl Shop {
    /// Records workers with this private memory in MiB. `None`: the worker does not run. A worker that runs again is another process.
    fn record(&self, private: impl Fn(usize, u64) -> Option<f64>) -> Recording {
        let mut lines = vec![arrival(MASTER, 1, "puma 6.4.0 (tcp://0.0.0.0:3000) [shop]")];
        let mut pids = vec![None; self.workers];
        let mut next = 100;
        for second in 0..self.seconds {
            let cpu = second as f64 * self.load;
            let mut processes = vec![process(MASTER, self.shared + 5.0, 5.0, 1.0)];
            for (worker, pid) in pids.iter_mut().enumerate() {
                let Some(bytes) = private(worker, second) else {
                    *pid = None;
                    continue;
                };
                let pid = *pid.get_or_insert_with(|| {
                    next += 1;
                    lines.push(arrival(next, MASTER, &(self.command)(worker)));
                    next
                });
                processes.push(process(pid, self.shared + bytes, bytes, cpu));
            }
            let mut sample = sample_of(second, processes, self.shared);
            sample.group = self.limit.map(|limit| Group {
                usage_bytes: sample.pss_bytes.unwrap(),
                limit_bytes: Some((limit * MIB) as u64),
                cache_bytes: 0,
                oom_kills: Some(self.kills * second / 100),
            });
            lines.push(Line::Sample(sample));
        }
        Recording { start: start(), lines, frames: Vec::new() }
    }

    fn fit(&self, private: impl Fn(usize, u64) -> Option<f64>, limit: Option<f64>) -> Fit {
        let workers = RecordedWorkers::of(&self.record(private));
        fit(&[workers], limit.map(|limit| (limit * MIB) as u64))
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB
}

/// Noise between 0 and 1 that is the same in each run.
fn noise(worker: usize, second: u64) -> f64 {
    let mut random = fastrand::Rng::with_seed(worker as u64 * 1_000_003 + second);
    random.f64()
}

#[test]
fn stable_workers_fit_as_often_as_their_memory_goes_into_the_limit() {
    let fit = Shop::default().fit(|worker, at| Some(100.0 + 2.0 * noise(worker, at)), Some(1024.0));
    assert_eq!((fit.doubt, &fit.role[..], fit.workers, fit.threads), (None, "puma worker", 2, 8));
    let model = fit.model.unwrap();
    assert_eq!(model.basis, FitBasis::Mean);
    // 60 MiB are shared, and 5 are the master's.
    assert!((mib(model.fixed_bytes) - 65.0).abs() < 0.5, "{model:?}");
    assert!((mib(model.worker_bytes) - 101.0).abs() < 0.5, "{model:?}");
    // 65 + 9 × 101 with 2 % for the kernel is 994; workers differ, so nine are not safe.
    assert_eq!(fit.max_workers, Some(8));
    let row = |number: usize| fit.rows[number - 1];
    assert!((mib(row(4).expected_bytes) - 1.02 * (65.0 + 404.0)).abs() < 2.0);
    assert!(row(8).probability.unwrap() > 0.99 && row(11).probability.unwrap() < 0.05);
    for rows in fit.rows.windows(2) {
        assert!(rows[0].probability > rows[1].probability || rows[1].probability == Some(1.0));
        assert!(rows[0].safe_limit_bytes < rows[1].safe_limit_bytes);
    }
    for row in &fit.rows {
        assert!(row.safe_limit_bytes > row.expected_bytes);
        assert!((row.safe_limit_bytes as f64) < 1.3 * row.expected_bytes as f64, "{row:?}");
    }
    assert_eq!(fit.safe_limit_bytes, Some(row(2).safe_limit_bytes));
    assert!(fit.remedies.is_empty());
}

#[test]
fn the_limit_is_that_of_the_group_unless_another_is_given() {
    let shop = Shop { limit: Some(700.0), ..Shop::default() };
    let private = |worker, at| Some(100.0 + noise(worker, at));
    let fit = shop.fit(private, None);
    assert_eq!(fit.limit_bytes.map(mib), Some(700.0));
    assert_eq!(fit.max_workers, Some(5));
    assert_eq!(shop.fit(private, Some(100.0)).max_workers, Some(0));
    let without = Shop::default().fit(private, None);
    assert_eq!((without.limit_bytes, without.max_workers, without.rows.len()), (None, None, 6));
}

#[test]
fn growth_is_a_doubt_and_its_rate_gives_an_age() {
    let growing = |worker, at| Some(100.0 + at as f64 * 0.05 + noise(worker, at));
    let shop = Shop { limit: Some(1000.0), seconds: 1800, ..Shop::default() };
    let fit = shop.fit(growing, None);
    assert_eq!((fit.doubt, fit.record_seconds), (Some(FitDoubt::Growing), Some(3598.0)));
    assert!(fit.model.is_none() && fit.rows.is_empty() && fit.max_workers.is_none());
    let [FitRemedy::Replace { bytes_per_second, after_seconds }] = fit.remedies[..] else {
        panic!("{fit:?}");
    };
    assert!((bytes_per_second / MIB - 0.05).abs() < 0.005);
    // (1000 / 1.02 - 65) / 2 - 100 MiB, at 0.05 MiB a second.
    assert!((6900.0..7250.0).contains(&after_seconds), "{after_seconds}");
    // A few minutes may be a warm-up.
    let short = Shop { seconds: 300, ..shop }.fit(growing, None);
    assert!(short.doubt.is_some() && short.remedies.is_empty(), "{short:?}");
    // Growth that slows down, and steps that go on.
    for private in [
        |_: usize, at: u64| Some(400.0 * (1.0 - (-(at as f64) / 500.0).exp())),
        |worker: usize, at: u64| Some(100.0 + 50.0 * ((at + 70 * worker as u64) / 220) as f64),
    ] {
        let fit = Shop::default().fit(private, Some(4000.0));
        assert!(matches!(fit.doubt, Some(FitDoubt::Growing | FitDoubt::Unsettled)), "{fit:?}");
        assert_eq!(fit.max_workers, None);
    }
}

/// Adds a capture of each worker with these causes, in MiB.
fn add_captures(recording: &mut Recording, allocator: &str, causes: &[(Cause, f64)]) {
    let row = |&(cause, mib): &(Cause, f64)| CauseRow { cause, bytes: (mib * MIB) as u64 };
    for pid in [101, 102] {
        recording.lines.push(Line::Causes(CauseSample {
            t_ms: 0,
            pid,
            started_ticks: pid as u64,
            command: format!("puma: cluster worker {}: 10 [shop]", pid - 101),
            ruby_version: None,
            allocator: allocator.into(),
            rss_bytes: 0,
            causes: causes.iter().map(row).collect(),
            verdict: None,
            trim_yield_bytes: None,
            slots_live: None,
            slots_free: None,
            method: CaptureMethod::Fork,
            pause_ms: 0.0,
            owners: None,
            recorder_cpu_ms: 0.0,
        }));
    }
}

/// Captures tell what threads' stacks and malloc's free memory take.
#[test]
fn captures_bound_what_threads_and_arenas_cost() {
    let captured = |allocator: &str, threads: u64| {
        let mut recording = Shop::default().record(|worker, at| Some(100.0 + noise(worker, at)));
        for line in &mut recording.lines {
            if let Line::Sample(sample) = line {
                sample.processes.iter_mut().for_each(|it| it.threads = threads);
            }
        }
        let causes = [
            (Cause::StackThreads, 4.0),
            (Cause::MallocUnreturned, 20.0),
            (Cause::MallocFragmented, 10.0),
            (Cause::RubyLiveSlots, 50.0),
        ];
        add_captures(&mut recording, allocator, &causes);
        let fit = fit_of(&recording, 1024.0);
        (fit.thread_stack_bytes.map(mib), fit.remedies)
    };
    let fewer = FitRemedy::FewerArenas { max_bytes_per_worker: 30 << 20 };
    assert_eq!(captured("glibc", 8), (Some(0.5), vec![fewer]));
    // Two threads have two arenas at most, and jemalloc has others.
    assert_eq!(captured("glibc", 2), (Some(2.0), vec![]));
    assert_eq!(captured("jemalloc", 8).1, vec![]);
    assert_eq!(Shop::default().fit(|_, _| Some(100.0), None).thread_stack_bytes, None);
}

/// Workers that loaded their code by themselves share hardly anything but files, and their server is small.
#[test]
fn workers_with_code_of_their_own_could_share_it() {
    let remedies = |shared: f64, files: f64| {
        let shop = Shop { shared, ..Shop::default() };
        let mut recording = shop.record(|worker, at| Some(300.0 + noise(worker, at)));
        let causes = [(Cause::RubyVm, 80.0), (Cause::FileShared, files)];
        add_captures(&mut recording, "glibc", &causes);
        fit_of(&recording, 4096.0).remedies
    };
    assert_eq!(remedies(60.0, 50.0), [FitRemedy::Preload { code_bytes_per_worker: 80 << 20 }]);
    // As much is shared besides files as there is code.
    assert_eq!(remedies(150.0, 50.0), vec![]);
}

/// A limit holds for a shorter time with a higher probability.
#[test]
fn the_time_for_which_a_limit_holds_counts() {
    let shop = Shop::default().record(|worker, at| {
        let burst = if (at + 37 * worker as u64).is_multiple_of(113) { 150.0 } else { 0.0 };
        Some(100.0 + noise(worker, at) + burst)
    });
    let shop = [RecordedWorkers::of(&shop)];
    let of = |seconds: f64| super::fit(&shop, Some(700 << 20), seconds);
    let (hour, month) = (of(3600.0), of(30.0 * DAY));
    assert_eq!((hour.for_seconds, hour.doubt), (3600.0, None));
    let limit = |fit: &Fit| fit.rows[3].safe_limit_bytes;
    assert!(limit(&hour) < limit(&month), "{} {}", limit(&hour), limit(&month));
}

/// The mean of workers with three and with six threads is the memory of none.
#[test]
fn workers_with_other_numbers_of_threads_have_answers_of_their_own() {
    let recorded = |threads: u64, mib: f64, seconds: u64| {
        let shop = Shop { seconds, ..Shop::default() };
        let mut recording = shop.record(|worker, at| Some(mib + noise(worker, at)));
        for line in &mut recording.lines {
            if let Line::Sample(sample) = line {
                sample.processes.iter_mut().for_each(|it| it.threads = threads);
            }
        }
        RecordedWorkers::of(&recording)
    };
    let limit = Some((1024.0 * MIB) as u64);
    let [three, six] = [recorded(3, 100.0, 900), recorded(6, 112.0, 900)];
    let both = fit(&[six.clone(), three.clone(), six.clone()], limit);
    let alone = fit(&[six.clone(), six.clone()], limit);
    assert_eq!((both.threads, both.max_workers), (6, alone.max_workers));
    assert!((mib(both.model.unwrap().worker_bytes) - 112.5).abs() < 0.5, "{both:?}");
    let [fewer] = both.with_fewer_threads[..] else { panic!("{both:?}") };
    let of_three = fit(&[three], limit);
    assert_eq!((fewer.threads, fewer.doubt), (3, None));
    assert_eq!(
        (fewer.max_workers, fewer.safe_limit_bytes),
        (of_three.max_workers, of_three.safe_limit_bytes)
    );
    assert!(fewer.max_workers > both.max_workers, "{both:?}");
    // A recording that is too short has a doubt, and does not spoil the other.
    let short = fit(&[recorded(3, 100.0, 100), six], limit);
    assert_eq!((short.doubt, short.with_fewer_threads[0].doubt), (None, Some(FitDoubt::Unsettled)));
    assert_eq!(
        (short.with_fewer_threads[0].worker_bytes, alone.with_fewer_threads.len()),
        (None, 0)
    );
}

/// A single look is no answer, but it shows what is too much already.
#[test]
fn one_look_tells_what_there_is_now() {
    let shop = Shop { seconds: 1, ..Shop::default() };
    let looked = shop.fit(|worker, _| Some(100.0 + 10.0 * worker as f64), Some(1024.0));
    assert_eq!((looked.doubt, looked.record_seconds), (Some(FitDoubt::OneLook), Some(600.0)));
    assert!(looked.max_workers.is_none() && looked.rows.is_empty());
    let now = looked.now.unwrap();
    assert_eq!([now.fixed_bytes, now.least_bytes, now.most_bytes].map(mib), [65.0, 100.0, 110.0]);
    // 65 + 9 × 105 is 1010, and 10 are 1115.
    assert_eq!((now.workers, now.above_limit), (2, Some(10)));
    let above_limit =
        |limit: Option<f64>| shop.fit(|_, _| Some(100.0), limit).now.unwrap().above_limit;
    // Four workers are 465: exactly the limit, which they do not exceed.
    let limits = [Some(465.0), Some(464.0), Some(60.0), None];
    assert_eq!(limits.map(above_limit), [Some(5), Some(4), Some(1), None]);
    // A doubt of a recording has the last sample, and an answer none.
    let growing = Shop::default().fit(|_, at| Some(100.0 + at as f64), Some(4000.0));
    assert_eq!(growing.now.map(|now| mib(now.most_bytes)), Some(999.0));
    assert_eq!(Shop::default().fit(|_, _| Some(100.0), Some(1024.0)).now, None);
    let alone = Shop { workers: 1, ..shop }.fit(|_, _| Some(100.0), Some(1024.0));
    assert_eq!((alone.doubt, alone.now.unwrap().workers), (Some(FitDoubt::OneWorker), 1));
}

/// One worker had the exports: the mean of both is the memory of none.
#[test]
fn a_worker_without_the_large_requests_becomes_as_large_as_the_other() {
    let private = |worker: usize, at: u64| {
        let exports = if worker == 1 && at > 60 { 360.0 } else { 0.0 };
        Some(61.0 + exports + noise(worker, at))
    };
    let fit = Shop::default().fit(private, Some(1024.0));
    let model = fit.model.unwrap();
    assert_eq!((fit.doubt, model.basis), (None, FitBasis::Largest));
    assert!((mib(model.worker_bytes) - 421.0).abs() < 1.0, "{model:?}");
    assert_eq!(fit.max_workers, Some(1));
    // The large one had a burst just before the end.
    let late = |worker: usize, at: u64| private(worker, if at < 850 { at.min(60) } else { at });
    assert!(Shop::default().fit(late, Some(1024.0)).doubt.is_some());
    // The other worker is on its way, and nearly as large.
    let second = |worker: usize, at: u64| {
        let exports = if worker == 0 { 100.0 * (at / 250) as f64 } else { 0.0 };
        Some(private(worker, at)? + exports)
    };
    assert!(Shop::default().fit(second, Some(1024.0)).doubt.is_some());
    // Workers with unlike loads are no sample of workers with the same load.
    let mut recording = Shop::default().record(|worker, at| Some(100.0 + noise(worker, at)));
    for line in &mut recording.lines {
        if let Line::Sample(sample) = line {
            sample.processes[1].user_ms /= 4;
        }
    }
    let fit = fit_of(&recording, 1024.0);
    assert_eq!(fit.model.unwrap().basis, FitBasis::Largest);
}

fn fit_of(recording: &Recording, limit: f64) -> Fit {
    fit(&[RecordedWorkers::of(recording)], Some((limit * MIB) as u64))
}

/// glibc returns the tops of arenas now and then.
#[test]
fn memory_that_goes_up_and_down_in_steps_has_a_level_unless_it_creeps_up() {
    let steps = [300.0, 340.0, 310.0, 345.0, 290.0];
    let creeping = |share: f64| {
        let private = move |worker: usize, at: u64| {
            let warm = if at < 60 { 0.3 } else { 1.0 };
            let step = steps[(at as usize / 75 + 2 * worker) % steps.len()];
            Some(step * warm * (1.0 + share * at as f64 / 600.0))
        };
        Shop { seconds: 600, ..Shop::default() }.fit(private, Some(2048.0))
    };
    let fit = creeping(0.0);
    let model = fit.model.unwrap();
    assert_eq!(model.basis, FitBasis::Mean);
    assert!((300.0..330.0).contains(&mib(model.worker_bytes)), "{model:?}");
    assert!(mib(fit.safe_limit_bytes.unwrap()) > 65.0 + 2.0 * 345.0);
    assert!(creeping(0.3).doubt.is_some());
    // Less than four minutes are too short, whatever they look like.
    let short = Shop { seconds: 235, ..Shop::default() };
    let flat = short.fit(|worker, at| Some(100.0 + noise(worker, at)), Some(2048.0));
    assert_eq!(flat.doubt, Some(FitDoubt::Unsettled));
}

/// Returned memory: 2 % of the time a worker has 300 MiB more.
#[test]
fn peaks_of_few_workers_meet_and_peaks_of_many_do_not() {
    let private = |worker: usize, at: u64| {
        let peak = if noise(worker + 9, at) < 0.02 { 300.0 } else { 0.0 };
        Some(100.0 + peak + noise(worker, at))
    };
    let shop = Shop { seconds: 1800, workers: 3, ..Shop::default() };
    let fit = shop.fit(private, Some(20_000.0));
    assert_eq!(fit.model.unwrap().basis, FitBasis::Mean, "{fit:?}");
    let peaks = |number: usize| {
        let row = fit.rows[number - 1];
        (mib(row.safe_limit_bytes) - mib(row.expected_bytes)) / 300.0
    };
    assert!((1.9..2.4).contains(&peaks(2)), "{}", peaks(2));
    assert!((3.0..10.0).contains(&peaks(20)), "{}", peaks(20));
    assert!(fit.max_workers.unwrap() > 64 || fit.rows.len() == 64);
}

#[test]
fn a_peak_between_two_samples_counts() {
    let private = |worker, at| Some(100.0 + noise(worker, at));
    let mut recording = Shop::default().record(private);
    let before = fit_of(&recording, 1024.0);
    for line in &mut recording.lines {
        if let Line::Sample(sample) = line {
            sample.processes[2].peak_rss_bytes = Some((460.0 * MIB) as u64);
        }
    }
    let after = fit_of(&recording, 1024.0);
    assert!((mib(after.model.unwrap().peak_bytes) - 300.0).abs() < 2.0);
    let grown = after.safe_limit_bytes.unwrap() - before.safe_limit_bytes.unwrap();
    assert!(mib(grown) > 500.0, "{grown}");
}

#[test]
fn copies_of_shared_pages_do_not_change_the_total() {
    // Each worker copies 30 of the 60 MiB within five minutes. The master has them for itself when all have.
    let copied = |at: u64| 30.0 * (at as f64 / 300.0).min(1.0);
    let mut recording = Shop::default().record(|_, at| Some(50.0 + copied(at)));
    for (line, at) in recording.lines.iter_mut().filter(|it| it.t_ms() > Some(0)).zip(1..) {
        if let Line::Sample(sample) = line {
            for process in &mut sample.processes[1..] {
                process.rss_bytes -= (copied(at) * MIB) as u64;
            }
        }
    }
    let fit = fit_of(&recording, 1024.0);
    let model = fit.model.unwrap();
    assert!((mib(model.fixed_bytes) - 65.0).abs() < 1.0, "{model:?}");
    assert!((mib(model.worker_bytes) - 80.0).abs() < 1.0, "{model:?}");
    let [FitRemedy::KeepSharing { max_bytes_per_worker }] = fit.remedies[..] else {
        panic!("{fit:?}");
    };
    assert!((mib(max_bytes_per_worker) - 30.0).abs() < 1.0);
}

#[test]
fn replaced_workers_are_as_large_as_at_their_ends() {
    // Every 100 s a worker is replaced at 150 MiB.
    let lives = |worker: usize, at: u64| {
        let age = (at + 50 * worker as u64) % 100;
        (age > 0).then_some(50.0 + age as f64)
    };
    let fit = Shop::default().fit(lives, Some(1024.0));
    let model = fit.model.unwrap();
    assert_eq!(model.basis, FitBasis::Lives);
    assert!((mib(model.worker_bytes) - 149.0).abs() < 1.0, "{model:?}");
    let few = Shop { seconds: 300, ..Shop::default() }.fit(lives, Some(1024.0));
    assert_eq!(few.doubt, Some(FitDoubt::Replaced));
}

#[test]
fn the_reason_of_a_doubt_is_told() {
    let stable = |worker, at| Some(100.0 + noise(worker, at));
    let doubt = |shop: Shop| shop.fit(stable, Some(1024.0)).doubt;
    assert_eq!(doubt(Shop { workers: 1, ..Shop::default() }), Some(FitDoubt::OneWorker));
    assert_eq!(doubt(Shop { workers: 0, ..Shop::default() }), Some(FitDoubt::NoWorkers));
    assert_eq!(doubt(Shop { load: 0.0, ..Shop::default() }), Some(FitDoubt::NoLoad));
    let killed = Shop { kills: 1, limit: Some(300.0), ..Shop::default() };
    assert_eq!(doubt(killed), Some(FitDoubt::Killed));
    assert_eq!(doubt(Shop { seconds: 20, ..Shop::default() }), Some(FitDoubt::Unsettled));
    assert_eq!(doubt(Shop { seconds: 5, ..Shop::default() }), Some(FitDoubt::NoPrivateMemory));
    assert_eq!(fit(&[], None).doubt, Some(FitDoubt::NoWorkers));
    let of = |change: fn(&mut Sample)| {
        let mut recording = Shop::default().record(stable);
        for line in &mut recording.lines {
            if let Line::Sample(sample) = line {
                change(sample);
            }
        }
        fit_of(&recording, 1024.0).doubt
    };
    let without = |sample: &mut Sample| {
        (sample.exact, sample.pss_bytes, sample.uss_bytes) = (false, None, None);
        for process in &mut sample.processes {
            (process.pss_bytes, process.uss_bytes) = (None, None);
        }
    };
    assert_eq!(of(without), Some(FitDoubt::NoPrivateMemory));
    assert_eq!(of(|it| it.swap_bytes = Some(20 << 20)), Some(FitDoubt::Swapped));
    // Children that are no workers: the parent has the memory.
    assert_eq!(of(|it| it.uss_bytes = Some(1 << 40)), Some(FitDoubt::NoWorkers));
    let other = Shop { command: |_| "sidekiq 7.2 shop".into(), ..Shop::default() };
    let two = [Shop::default(), other].map(|it| RecordedWorkers::of(&it.record(stable)));
    assert_eq!(fit(&two, None).doubt, Some(FitDoubt::UnlikeRecordings));
}

#[test]
fn helpers_of_a_server_are_no_workers() {
    let shop = Shop {
        workers: 3,
        command: |number| match number {
            0 => "node render.js".into(),
            _ => format!("puma: cluster worker {number}: 10 [shop]"),
        },
        ..Shop::default()
    };
    let private = |worker, at| Some(if worker == 0 { 80.0 } else { 100.0 } + noise(worker, at));
    let fit = shop.fit(private, Some(1024.0));
    assert_eq!((&fit.role[..], fit.workers), ("puma worker", 2));
    let model = fit.model.unwrap();
    // node is there once, however many workers there are.
    assert!((mib(model.fixed_bytes) - 145.5).abs() < 1.0, "{model:?}");
    // Workers that are seen at their forks still have the title of the master.
    let untitled = Shop { command: |_| "puma 6.4.0 (tcp://0.0.0.0:3000) [shop]".into(), ..shop };
    assert_eq!(untitled.fit(private, None).workers, 3);
}

#[test]
fn several_recordings_are_one_sample_of_workers() {
    let of = |level: f64| {
        let shop = Shop { shared: 0.0, ..Shop::default() };
        let recording = shop.record(|worker, at| Some(level + noise(worker, at)));
        RecordedWorkers::of(&recording)
    };
    let fit = fit(&[of(100.0), of(110.0)], None);
    let model = fit.model.unwrap();
    assert!((mib(model.worker_bytes) - 105.5).abs() < 0.5, "{model:?}");
    assert!((mib(model.fixed_bytes) - 5.0).abs() < 0.1, "{model:?}");
}

/// Of servers whose workers differ by 5 %, few exceed the limit that is recommended from two of them.
#[test]
fn safe_limits_are_exceeded_as_seldom_as_promised() {
    let mut random = fastrand::Rng::with_seed(7);
    // The sum of twelve is nearly normal.
    let mut normal = || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
    for number in [2_usize, 4, 8] {
        let (mut exceeded, mut too_high) = (0, 0);
        for _ in 0..400 {
            let mut level = || 100.0 * MIB * (1.0 + 0.05 * normal());
            let model = Model::new(60.0 * MIB, &[level(), level()], &[0.0], DAY, 0.0);
            let workers = model.workers().nth(number - 1).unwrap();
            let limit = workers.limit(0.99);
            let truth = 60.0 * MIB + (0..number).map(|_| level()).sum::<f64>();
            exceeded += u32::from(truth > limit);
            too_high += u32::from(truth < limit / 1.35);
        }
        assert!(exceeded <= 8, "{number}: {exceeded} of 400");
        assert!(too_high <= 8, "{number}: {too_high} of 400");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn probabilities_fall_with_workers_and_rise_with_the_limit(
        levels in prop::collection::vec(1.0_f64..1e3, 1..6),
        above in prop::collection::vec(-1.0_f64..1e3, 0..20),
        fixed in 0.0_f64..1e3,
        drift in 0.0_f64..50.0,
        limit in 1.0_f64..2e4,
    ) {
        let scaled = |values: &[f64]| values.iter().map(|it| it * MIB).collect::<Vec<_>>();
        let model = Model::new(fixed * MIB, &scaled(&levels), &scaled(&above), DAY, drift * MIB);
        let mut last = 1.0;
        for workers in model.workers().take(6) {
            let at = |limit: f64| workers.probability(limit * MIB);
            let probability = at(limit);
            prop_assert!((0.0..=1.0).contains(&probability));
            prop_assert!(probability <= at(limit * 1.1) + 1e-12);
            prop_assert!(probability <= last + 1e-9);
            last = probability;
            let safe = workers.limit(0.99);
            prop_assert!(safe.is_finite() && workers.probability(safe) >= 0.99);
            prop_assert!(workers.probability(safe * 0.999) < 0.99);
        }
    }

    #[test]
    fn no_recording_panics(
        values in prop::collection::vec((any::<u32>(), any::<u64>(), any::<u64>(), any::<bool>()), 0..60),
        limit in any::<Option<u64>>(),
    ) {
        let mut lines = vec![arrival(MASTER, 1, "puma"), arrival(11, MASTER, "a"), arrival(12, MASTER, "a")];
        for (at, rss, private, exact) in values {
            // A recording's numbers are limited (formats::untrusted).
            let [rss, private] = [rss, private].map(|it| it >> 14);
            let mut sample = sample_of(at.into(), Vec::new(), 0.0);
            sample.processes = [MASTER, 11, 12].map(|pid| {
                let mut process = process(pid, 0.0, 0.0, f64::from(at));
                (process.rss_bytes, process.uss_bytes) = (rss, exact.then_some(private));
                process
            }).into();
            (sample.exact, sample.pss_bytes) = (exact, exact.then_some(rss));
            sample.uss_bytes = exact.then_some(private);
            lines.push(Line::Sample(sample));
        }
        let recording = Recording { start: start(), lines, frames: Vec::new() };
        let _ = fit(&[RecordedWorkers::of(&recording)], limit);
    }
}
