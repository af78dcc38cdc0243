//! Captures of processes: those that are due, within a share of a processor, and those that a key asks for.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use examine::{
    AllocatorCall, CaptureOptions, Detail, End, Id, Watch, isolated, report_of, snapshot_of,
};
use linux::proc;
use output::{Output, default_path};
use supervise::{Pace, SHARE_OF_CAUSES};

use crate::error::Error;
use crate::news::{Answer, News, NewsSender};

/// The time between two rounds of captures, if they cost little, and between two captures of a round.
const ROUND: Duration = Duration::from_secs(30);
const BETWEEN_CAPTURES: Duration = Duration::from_millis(500);
/// The time for which `w` watches a process.
pub(crate) const WATCHED: Duration = Duration::from_secs(60);

/// Work that a key asked for.
pub(crate) struct Job {
    pub(crate) number: u64,
    pub(crate) id: Id,
    pub(crate) kind: JobKind,
}

pub(crate) enum JobKind {
    Report,
    Predict,
    Trim(Box<(formats::TrimReport, AllocatorCall)>),
    Snapshot,
    /// Ends early when the value becomes true.
    Who(Arc<AtomicBool>),
}

/// The thread that captures.
pub(crate) struct Worker {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
    shown: Arc<Mutex<Shown>>,
    capture: CaptureOptions,
    explain: Explain,
    news: NewsSender,
}

/// Returns the sentence on an error, with what the user can do about it.
type Explain = fn(&examine::Error) -> String;

/// Returns an error as a sentence.
fn sentence(error: &Error, explain: Explain) -> String {
    match error {
        Error::Examine(error) => explain(error),
        error => error.to_string(),
    }
}

/// The processes that are shown.
#[derive(Default)]
struct Shown {
    ids: Vec<Id>,
    selected: Option<Id>,
}

impl Worker {
    pub(crate) fn start(
        capture: CaptureOptions,
        explain: Explain,
        news: &NewsSender,
    ) -> io::Result<Self> {
        let (sender, jobs) = mpsc::channel();
        let shown = Arc::<Mutex<Shown>>::default();
        let captures = Captures {
            capture,
            explain,
            news: news.clone(),
            shown: shown.clone(),
            started: Instant::now(),
            pace: Pace::new(ROUND, SHARE_OF_CAUSES),
            round: VecDeque::new(),
            round_cost: Duration::ZERO,
        };
        let thread = std::thread::Builder::new()
            .name("captures".into())
            .spawn(move || captures.run(&jobs))?;
        Ok(Self { jobs: sender, thread, shown, capture, explain, news: news.clone() })
    }

    pub(crate) fn thread(&self) -> &JoinHandle<()> {
        &self.thread
    }

    /// Takes the processes that are shown. The selected one comes first in a round.
    pub(crate) fn follow(&self, ids: Vec<Id>, selected: Option<Id>) {
        *lock(&self.shown) = Shown { ids, selected };
    }

    pub(crate) fn start_job(&self, job: Job) {
        let JobKind::Who(is_ended) = &job.kind else {
            // The thread ends only by a panic, which ends rbloat.
            let _ = self.jobs.send(job);
            return;
        };
        // It takes a minute, in which other processes may be captured.
        let Self { capture, explain, .. } = *self;
        let (news, is_ended) = (self.news.clone(), Arc::clone(is_ended));
        let watch = move || {
            let answer = isolated(job.id.0, || who(job.id, capture, explain, &is_ended));
            let answer = answer.map_err(|error| sentence(&error, explain));
            news.send(News::Done(job.number, answer));
        };
        if let Err(error) = std::thread::Builder::new().name("watch".into()).spawn(watch) {
            let error = explain(&examine::Error::NoThread(error));
            self.news.send(News::Done(job.number, Err(error)));
        }
    }
}

fn lock(shown: &Mutex<Shown>) -> MutexGuard<'_, Shown> {
    shown.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Captures {
    capture: CaptureOptions,
    explain: Explain,
    news: NewsSender,
    shown: Arc<Mutex<Shown>>,
    started: Instant,
    /// The schedule of rounds. The first round is not limited.
    pace: Pace,
    /// The processes that this round has yet to capture, and its CPU time so far.
    round: VecDeque<Id>,
    round_cost: Duration,
}

impl Captures {
    fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            match jobs.recv_timeout(BETWEEN_CAPTURES) {
                Ok(Job { number, id, kind }) => {
                    let answer = isolated(id.0, || self.answer(id, kind));
                    let answer = answer.map_err(|error| sentence(&error, self.explain));
                    self.news.send(News::Done(number, answer));
                }
                Err(RecvTimeoutError::Timeout) => self.take_causes(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Begins a round of captures if one is due, or continues it with one process.
    fn take_causes(&mut self) {
        let now = self.started.elapsed();
        if self.round.is_empty() {
            if !self.pace.is_due(now) {
                return;
            }
            self.round = lock(&self.shown).ids.iter().copied().collect();
            self.round_cost = Duration::ZERO;
        }
        let selected = lock(&self.shown).selected;
        let place = self.round.iter().position(|&id| Some(id) == selected).unwrap_or(0);
        let Some(id) = self.round.remove(place) else { return };
        let cpu = proc::own_cpu_time();
        self.send_causes(id);
        self.round_cost += proc::own_cpu_time().saturating_sub(cpu);
        if self.round.is_empty() {
            self.pace.done(now, self.round_cost);
        }
    }

    /// Captures a process for its causes.
    fn send_causes(&self, id: Id) {
        match report_of(id, self.capture, Detail::CAUSES) {
            Ok(report) => self.news.send(News::Causes(id, Ok(report.causes))),
            Err(error) if error.is_end() => {}
            Err(error) => self.news.send(News::Causes(id, Err((self.explain)(&error)))),
        }
    }

    fn answer(&self, id: Id, kind: JobKind) -> Result<Answer, Error> {
        Ok(match kind {
            JobKind::Report => {
                let report = report_of(id, self.capture, Detail::OWNERS)?;
                self.news.send(News::Causes(id, Ok(report.causes.clone())));
                Answer::Report(Box::new(report))
            }
            JobKind::Predict => {
                let target = examine::target(id).map_err(examine::Error::from)?;
                let call = AllocatorCall::find(&target)?;
                let (report, _) = examine::predict(&target, &call, self.capture)?;
                Answer::Prediction(Box::new((report, call)))
            }
            JobKind::Trim(prediction) => {
                let (mut report, call) = *prediction;
                report.outcome = Some(examine::trim(&call)?);
                self.send_causes(id);
                Answer::Trimmed(Box::new(report))
            }
            JobKind::Snapshot => {
                let path = default_path(&id.0.to_string(), "rbloat");
                let output = Output::open(&path)?;
                let snapshot = snapshot_of(id, self.capture, Detail::snapshot(false))?;
                output.write(&snapshot.to_bytes())?;
                Answer::Saved(path)
            }
            JobKind::Who(is_ended) => who(id, self.capture, self.explain, &is_ended)?,
        })
    }
}

/// Watches the growth of a process.
fn who(
    id: Id,
    capture: CaptureOptions,
    explain: Explain,
    is_ended: &AtomicBool,
) -> Result<Answer, Error> {
    let target = examine::target(id).map_err(examine::Error::from)?;
    let watch = Watch::begin_with_stacks(&target, capture, false)?;
    let watched = watch.run(Some(WATCHED), |watch| match is_ended.load(Ordering::Relaxed) {
        true => Ok(Some(End::Wanted)),
        false => watch.end_of_process(),
    });
    let notes = watched.notes.into_iter().map(|note| note.sentence(explain)).collect();
    Ok(Answer::Who(Box::new((watched.who, notes))))
}
