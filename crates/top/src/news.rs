//! What other threads tell the one that draws.

use std::io::{self, PipeReader, PipeWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};

use examine::{AllocatorCall, Id, Listed};
use formats::{CauseRow, Report, TrimReport, Who};

/// News of another thread.
pub(crate) enum News {
    /// The Ruby processes, and the number of processes that could not be examined.
    Processes(Vec<Listed>, usize),
    /// The causes of a process's memory, or the reason why they could not be read.
    Causes(Id, Result<Vec<CauseRow>, String>),
    /// The result of a job, with its number. An error is a sentence.
    Done(u64, Result<Answer, String>),
}

/// The result of a job.
pub(crate) enum Answer {
    Report(Box<Report>),
    Prediction(Box<(TrimReport, AllocatorCall)>),
    Trimmed(Box<TrimReport>),
    /// A snapshot in this file.
    Saved(PathBuf),
    /// Growth by code, and sentences about the observation.
    Who(Box<(Who, Vec<String>)>),
}

/// Sends news, and wakes the thread that draws.
#[derive(Clone)]
pub(crate) struct NewsSender {
    sender: Sender<News>,
    wake: Arc<PipeWriter>,
}

impl NewsSender {
    pub(crate) fn send(&self, news: News) {
        // The receiver may be gone at the end.
        let _ = self.sender.send(news);
        let _ = (&*self.wake).write(&[0]);
    }
}

/// Returns a way to send news, a pipe that can be read when there are some, and the news.
pub(crate) fn channel() -> io::Result<(NewsSender, PipeReader, Receiver<News>)> {
    let (sender, news) = mpsc::channel();
    let (reader, writer) = io::pipe()?;
    Ok((NewsSender { sender, wake: Arc::new(writer) }, reader, news))
}
