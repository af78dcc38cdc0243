//! A page of text: a report, the result of another job, or the help.

use examine::{AllocatorCall, Id};
use formats::{Report, TrimReport, Who};
use render::TextOptions;

use crate::news::Answer;

/// The owners in a report.
const OWNERS: usize = 10;

/// A page of text.
pub(super) struct Page {
    pub(super) title: String,
    /// The process that it is about; `None` for the help.
    pub(super) id: Option<Id>,
    pub(super) content: Content,
    /// The first line on the screen.
    pub(super) first: usize,
    /// The job whose result it waits for.
    pub(super) job: Option<u64>,
    /// The trim that it asks for.
    pub(super) asks: Option<Box<(TrimReport, AllocatorCall)>>,
}

pub(super) enum Content {
    Text(String),
    Report(Box<Report>),
    /// Growth by code, and sentences about the observation.
    Who(Box<(Who, Vec<String>)>),
}

impl Page {
    pub(super) fn new(title: String) -> Self {
        let content = Content::Text(String::new());
        Self { title, id: None, content, first: 0, job: None, asks: None }
    }

    /// Shows the result of a job.
    pub(super) fn show(&mut self, answer: Answer) {
        match answer {
            Answer::Report(report) => {
                self.content = Content::Report(Box::new(report.brief(OWNERS)))
            }
            Answer::Who(who) => self.content = Content::Who(who),
            // It has no page.
            Answer::Saved(_) => {}
            Answer::Prediction(prediction) => {
                self.content = Content::Text(render::trim_prediction(&prediction.0));
                self.asks = Some(prediction);
            }
            Answer::Trimmed(report) => {
                let text = render::trim_prediction(&report) + &render::trim_outcome(&report);
                self.content = Content::Text(text);
            }
        }
    }

    pub(super) fn add(&mut self, more: &str) {
        if let Content::Text(text) = &mut self.content {
            text.push_str(more);
        }
    }

    pub(super) fn lines(&self, width: usize) -> Vec<String> {
        let text = match &self.content {
            Content::Text(text) => return render::wrapped(text, width),
            Content::Report(report) => {
                let options = TextOptions { width, arenas: false, code: false, waste: false };
                render::report(report, options)
            }
            Content::Who(watched) => {
                let (who, notes) = &**watched;
                let notes = notes.iter().map(|note| render::wrapped(note, width).join("\n") + "\n");
                render::who(who, width) + &notes.collect::<String>()
            }
        };
        text.lines().map(str::to_owned).collect()
    }
}
