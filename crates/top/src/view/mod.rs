//! What the screen shows: the list of processes, or a page of text. Keys change it, and so do news.

mod list;
mod page;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use examine::{Id, Listed};
use formats::CauseRow;
use render::TopOrder;

use crate::news::{Answer, News};
use crate::screen::Key;
use crate::work::{Job, JobKind, WATCHED};
use page::{Content, Page};

pub(crate) struct View {
    processes: Vec<Listed>,
    refused: usize,
    causes: HashMap<Id, Causes>,
    order: TopOrder,
    filter: String,
    /// True while the filter is typed.
    is_typing: bool,
    selected: Option<Id>,
    /// The first process on the screen.
    first: usize,
    page: Option<Page>,
    /// A sentence about the last job, until the next key.
    message: String,
    jobs: u64,
    who: Option<Growth>,
    /// The lines of the list, or of the page, on the screen.
    height: usize,
}

/// The causes of a process's memory, and the time at which they were read.
struct Causes {
    rows: Result<Vec<CauseRow>, String>,
    read: Instant,
}

/// A process whose growth by code is watched, or was.
struct Growth {
    job: u64,
    id: Id,
    since: Instant,
    /// True if the user ended the observation.
    is_ended: Arc<AtomicBool>,
    page: Option<Page>,
}

/// What a key asks for.
pub(crate) enum Action {
    None,
    Quit,
    Stop,
    Redraw,
    Start(Job),
}

impl View {
    pub(crate) fn new(order: TopOrder, filter: &str) -> Self {
        Self {
            processes: Vec::new(),
            refused: 0,
            causes: HashMap::new(),
            order,
            filter: filter.to_owned(),
            is_typing: false,
            selected: None,
            first: 0,
            page: None,
            message: String::new(),
            jobs: 0,
            who: None,
            height: 0,
        }
    }

    pub(crate) fn ids(&self) -> Vec<Id> {
        self.listed().into_iter().map(|(process, _)| process.id).collect()
    }

    pub(crate) fn selected(&self) -> Option<Id> {
        self.selected
    }

    pub(crate) fn receive(&mut self, news: News) {
        match news {
            News::Processes(processes, refused) => {
                (self.processes, self.refused) = (processes, refused);
                let lives = |id: &Id| self.processes.iter().any(|process| process.id == *id);
                self.causes.retain(|id, _| lives(id));
            }
            News::Causes(id, rows) => {
                self.causes.insert(id, Causes { rows, read: Instant::now() });
            }
            News::Done(job, answer) => self.finish(job, answer),
        }
    }

    /// Shows the result of a job.
    fn finish(&mut self, job: u64, answer: Result<Answer, String>) {
        if let Some(who) = self.who.as_mut().filter(|who| who.job == job) {
            let content = match answer {
                Ok(Answer::Who(who)) => Content::Who(who),
                Err(error) => Content::Text(error),
                Ok(_) => return,
            };
            let title = format!("Growth of process {} by code", who.id.0);
            who.page = Some(Page { content, ..Page::new(title) });
            self.message = format!("The growth of process {} by code is known: press w", who.id.0);
            return;
        }
        let has_page = self.page.is_some();
        let page = self.page.as_mut().filter(|page| page.job == Some(job));
        match (answer, page) {
            (Ok(Answer::Saved(path)), _) => {
                self.message = format!("saved; next: rbloat report {}", path.display());
            }
            (Err(error), None) if !has_page => {
                let content = Content::Text(error);
                self.page = Some(Page { content, ..Page::new("This failed".into()) });
            }
            // The user looks at something else by now.
            (_, None) => {}
            (Ok(answer), Some(page)) => {
                page.job = None;
                page.show(answer);
            }
            (Err(error), Some(page)) => {
                (page.job, page.asks) = (None, None);
                page.content = Content::Text(error);
            }
        }
    }

    /// Changes what is shown, and returns what else is to be done.
    pub(crate) fn press(&mut self, key: Key) -> Action {
        self.message.clear();
        match key {
            Key::Stop => return Action::Stop,
            Key::Redraw => return Action::Redraw,
            _ => {}
        }
        if self.is_typing {
            return self.type_filter(key);
        }
        if self.page.is_some() {
            return self.press_on_page(key);
        }
        match key {
            Key::Char('q') | Key::Interrupt => return Action::Quit,
            Key::Escape => match self.watched() {
                Some(who) => who.is_ended.store(true, Ordering::Relaxed),
                None => self.filter.clear(),
            },
            Key::Char('/') => {
                self.filter.clear();
                self.is_typing = true;
            }
            Key::Char('?') => {
                let content = Content::Text(render::top_help());
                self.page = Some(Page { content, ..Page::new("Help".into()) });
            }
            Key::Enter => return self.open("Report on", "reading it ...", JobKind::Report),
            Key::Char('t') => {
                let doing = "predicting how much memory a trim returns ...";
                return self.open("Trim", doing, JobKind::Predict);
            }
            Key::Char('s') => {
                if let Some(id) = self.selected {
                    self.message = format!("saving a snapshot of process {} ...", id.0);
                    return self.start(id, JobKind::Snapshot);
                }
            }
            Key::Char('w') => return self.watch(),
            Key::Char(char) => {
                let order = TopOrder::ALL.into_iter().find(|order| order.key() == char);
                self.order = order.unwrap_or(self.order);
                match char {
                    'j' => self.move_by(1),
                    'k' => self.move_by(-1),
                    _ => {}
                }
            }
            key => self.move_by(steps(key, self.height)),
        }
        Action::None
    }

    fn type_filter(&mut self, key: Key) -> Action {
        match key {
            Key::Char(char) => self.filter.push(char),
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Enter => self.is_typing = false,
            Key::Escape | Key::Interrupt => {
                self.is_typing = false;
                self.filter.clear();
            }
            key => self.move_by(steps(key, self.height)),
        }
        Action::None
    }

    fn press_on_page(&mut self, key: Key) -> Action {
        let Some(page) = &mut self.page else { return Action::None };
        if let Some(id) = page.id
            && let Some(prediction) = page.asks.take_if(|_| key == Key::Char('y'))
        {
            page.job = Some(self.jobs);
            page.add("trimming ...\n");
            return self.start(id, JobKind::Trim(prediction));
        }
        match key {
            Key::Char('q' | 'n') | Key::Escape | Key::Interrupt | Key::Backspace => {
                self.page = None
            }
            Key::Char('j') => page.first += 1,
            Key::Char('k') => page.first = page.first.saturating_sub(1),
            Key::Char(' ') => page.first = page.first.saturating_add(self.height),
            key => page.first = page.first.saturating_add_signed(steps(key, self.height)),
        }
        Action::None
    }

    /// Opens a page on the selected process that waits for the result of a job.
    fn open(&mut self, title: &str, doing: &str, kind: JobKind) -> Action {
        let Some(id) = self.selected else { return Action::None };
        let title = format!("{title} process {}", id.0);
        let content = Content::Text(doing.to_owned());
        let job = Some(self.jobs);
        self.page = Some(Page { id: Some(id), content, job, ..Page::new(title) });
        self.start(id, kind)
    }

    fn start(&mut self, id: Id, kind: JobKind) -> Action {
        let number = self.jobs;
        self.jobs += 1;
        Action::Start(Job { number, id, kind })
    }

    /// The process whose growth is being watched.
    fn watched(&self) -> Option<&Growth> {
        let is_going_on =
            |who: &&Growth| who.page.is_none() && !who.is_ended.load(Ordering::Relaxed);
        self.who.as_ref().filter(is_going_on)
    }

    /// Shows the growth of a process that was watched, or begins to watch the selected one.
    fn watch(&mut self) -> Action {
        match (self.who.take(), self.selected) {
            (Some(Growth { page: Some(page), .. }), _) => self.page = Some(page),
            (Some(watched), _) => self.who = Some(watched),
            (None, Some(id)) => {
                let is_ended = Arc::<AtomicBool>::default();
                let kind = JobKind::Who(Arc::clone(&is_ended));
                let (job, since) = (self.jobs, Instant::now());
                self.who = Some(Growth { job, id, since, is_ended, page: None });
                return self.start(id, kind);
            }
            (None, None) => {}
        }
        Action::None
    }

    /// The lines of the screen.
    pub(crate) fn lines(&mut self, width: usize, height: usize) -> Vec<String> {
        let mut lines = match &self.page {
            Some(_) => self.page_lines(width, height),
            None => self.list_lines(width, height),
        };
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), String::new());
        lines.push(self.last_line(width));
        lines
    }

    fn page_lines(&mut self, width: usize, height: usize) -> Vec<String> {
        let Some(page) = &mut self.page else { return Vec::new() };
        self.height = height.saturating_sub(2).max(1);
        let text = page.lines(width);
        page.first = page.first.min(text.len().saturating_sub(self.height));
        let mut lines = vec![format!("\x1b[1m{}\x1b[0m", page.title)];
        lines.extend(text.into_iter().skip(page.first).take(self.height));
        lines
    }

    fn last_line(&self, width: usize) -> String {
        if !self.message.is_empty() {
            return self.message.clone();
        }
        if self.is_typing {
            return format!("/{}_", self.filter);
        }
        match &self.page {
            Some(Page { asks: Some(_), .. }) => "Return this memory now?  y yes  n no".into(),
            Some(_) => "↑ ↓ PageUp PageDown  Esc back".into(),
            None => {
                let watching = self.watched().map_or(String::new(), |who| {
                    let left = WATCHED.saturating_sub(who.since.elapsed());
                    let seconds = rounded_up(left);
                    format!("watching {} for {seconds} s more, Esc ends it  ", who.id.0)
                });
                format!("{watching}{}", render::top_keys(width.saturating_sub(watching.len())))
            }
        }
    }
}

/// Returns the lines by which a key moves on a screen of `height` lines.
fn steps(key: Key, height: usize) -> isize {
    let height = isize::try_from(height).unwrap_or(isize::MAX);
    match key {
        Key::Up => -1,
        Key::Down => 1,
        Key::PageUp => -height,
        Key::PageDown => height,
        Key::Home => isize::MIN / 2,
        Key::End => isize::MAX / 2,
        _ => 0,
    }
}

fn rounded_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests;
