//! What the screen shows: the list of processes, or a page of text. Keys change it, and so do news.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use formats::{CauseRow, Report, TrimReport, Who};
use render::{TextOptions, TopCauses, TopOrder, TopProcess};

use super::news::{Answer, Id, Listed, News};
use super::work::{Job, JobKind, WATCHED};
use crate::allocator_call::AllocatorCall;
use crate::screen::Key;

/// The least number of lines of a terminal for the part about the selected process.
const MIN_HEIGHT_FOR_DETAIL: usize = 16;
/// The owners in a report.
const OWNERS: usize = 10;
/// The deepest level of processes that is shown.
const MAX_DEPTH: usize = 2;

pub(super) struct View {
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
    who: Option<Watched>,
    /// The lines of the list, or of the page, on the screen.
    height: usize,
}

/// The causes of a process's memory, and the time at which they were read.
struct Causes {
    rows: Result<Vec<CauseRow>, String>,
    read: Instant,
}

/// A process whose growth by code is watched, or was.
struct Watched {
    job: u64,
    id: Id,
    since: Instant,
    page: Option<Page>,
}

/// A page of text.
struct Page {
    title: String,
    /// The process that it is about; `None` for the help.
    id: Option<Id>,
    content: Content,
    /// The first line on the screen.
    first: usize,
    /// The job whose result it waits for.
    job: Option<u64>,
    /// The trim that it asks for.
    asks: Option<Box<(TrimReport, AllocatorCall)>>,
}

enum Content {
    Text(String),
    Report(Box<Report>),
    Who(Box<Who>),
}

/// What a key asks for.
pub(super) enum Action {
    None,
    Quit,
    Stop,
    Redraw,
    Start(Job),
}

impl View {
    pub(super) fn new(order: TopOrder, filter: &str) -> Self {
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

    pub(super) fn ids(&self) -> Vec<Id> {
        self.listed().map(|(process, _)| process.id).collect()
    }

    pub(super) fn selected(&self) -> Option<Id> {
        self.selected
    }

    pub(super) fn receive(&mut self, news: News) {
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
    pub(super) fn press(&mut self, key: Key) -> Action {
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
            Key::Escape => self.filter.clear(),
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
                let order = TopOrder::KEYS.iter().find(|(key, _)| *key == char);
                if let Some((_, order)) = order {
                    self.order = *order;
                }
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

    /// Shows the growth of a process that was watched, or begins to watch the selected one.
    fn watch(&mut self) -> Action {
        match (self.who.take(), self.selected) {
            (Some(Watched { page: Some(page), .. }), _) => self.page = Some(page),
            (Some(watched), _) => self.who = Some(watched),
            (None, Some(id)) => {
                self.who = Some(Watched { job: self.jobs, id, since: Instant::now(), page: None });
                return self.start(id, JobKind::Who);
            }
            (None, None) => {}
        }
        Action::None
    }

    fn move_by(&mut self, steps: isize) {
        let ids = self.ids();
        let at = ids.iter().position(|id| Some(*id) == self.selected).unwrap_or(0);
        let last = ids.len().saturating_sub(1);
        self.selected = ids.get(at.saturating_add_signed(steps).min(last)).copied();
    }

    /// The processes that the filter lets through, in their order, each with the lines of its branch.
    fn listed(&self) -> impl Iterator<Item = (&Listed, String)> {
        let filter = self.filter.to_lowercase();
        let mut shown: Vec<&Listed> = self
            .processes
            .iter()
            .filter(|process| process.command.to_lowercase().contains(&filter))
            .collect();
        shown.sort_by(|one, other| self.compare(one, other));
        Forest::of(&shown).lines().into_iter()
    }

    fn compare(&self, one: &Listed, other: &Listed) -> Ordering {
        let share = |process: &Listed| {
            let group = process.group?;
            Some(group.usage_bytes as f64 / group.limit_bytes? as f64)
        };
        let figure = |process: &Listed| match self.order {
            TopOrder::Rss => Some(process.rss_bytes as f64),
            TopOrder::Pss => process.pss_bytes.map(|bytes| bytes as f64),
            TopOrder::Limit => share(process),
            TopOrder::Growth => process.growth_per_minute,
            TopOrder::Pid => None,
        };
        let by_figure = figure(other).partial_cmp(&figure(one)).unwrap_or(Ordering::Equal);
        by_figure.then(one.id.cmp(&other.id))
    }

    /// The lines of the screen.
    pub(super) fn lines(&mut self, width: usize, height: usize) -> Vec<String> {
        let mut lines = match &self.page {
            Some(_) => self.page_lines(width, height),
            None => self.list_lines(width, height),
        };
        lines.truncate(height.saturating_sub(1));
        lines.resize(height.saturating_sub(1), String::new());
        lines.push(self.last_line(width));
        lines
    }

    fn list_lines(&mut self, width: usize, height: usize) -> Vec<String> {
        let detail = if height < MIN_HEIGHT_FOR_DETAIL { 0 } else { height * 2 / 5 };
        // The title, the heads, and the line at the bottom.
        self.height = height.saturating_sub(3 + detail).max(1);
        let listed: Vec<(Listed, String)> =
            self.listed().map(|(process, branch)| (process.clone(), branch)).collect();
        let place = listed.iter().position(|(process, _)| Some(process.id) == self.selected);
        let at = place.unwrap_or(0);
        self.selected = listed.get(at).map(|(process, _)| process.id);
        self.first = self.first.min(at).max((at + 1).saturating_sub(self.height));
        self.first = self.first.min(listed.len().saturating_sub(self.height));
        let rows: Vec<TopProcess<'_>> =
            listed.iter().map(|(process, branch)| self.row(process, branch)).collect();
        let mut lines =
            vec![render::top_title(&rows, self.refused, self.order, &self.filter, width)];
        if rows.is_empty() {
            lines.push(if self.processes.is_empty() {
                "No Ruby processes found.".into()
            } else {
                "No Ruby process has this word in its command line.".into()
            });
            return lines;
        }
        lines.push(render::top_head(width));
        let on_screen = rows.iter().enumerate().skip(self.first).take(self.height);
        lines.extend(on_screen.map(|(index, row)| render::top_row(row, index == at, width)));
        if detail > 1 {
            lines.resize(2 + self.height, String::new());
            lines.push("─".repeat(width));
            lines.extend(render::top_detail(&rows[at], width, detail - 1));
        }
        lines
    }

    fn row<'a>(&'a self, process: &'a Listed, branch: &'a str) -> TopProcess<'a> {
        let causes = self.causes.get(&process.id);
        TopProcess {
            pid: process.id.0,
            branch,
            rss_bytes: process.rss_bytes,
            pss_bytes: process.pss_bytes,
            group: process.group,
            growth_per_minute: process.growth_per_minute,
            causes: causes.map_or(TopCauses::Unknown, |causes| match &causes.rows {
                Ok(rows) => TopCauses::Known(rows, causes.read.elapsed()),
                Err(reason) => TopCauses::Refused(reason),
            }),
            command: &process.command,
        }
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
                let watching = self.who.as_ref().filter(|who| who.page.is_none());
                let left = watching.map_or(String::new(), |who| {
                    let left = WATCHED.saturating_sub(who.since.elapsed());
                    format!("watching {} for {} s more  ", who.id.0, rounded_up(left))
                });
                format!("{left}{}", render::top_keys(width.saturating_sub(left.len())))
            }
        }
    }
}

impl Page {
    fn new(title: String) -> Self {
        let content = Content::Text(String::new());
        Self { title, id: None, content, first: 0, job: None, asks: None }
    }

    /// Shows the result of a job.
    fn show(&mut self, answer: Answer) {
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

    fn add(&mut self, more: &str) {
        if let Content::Text(text) = &mut self.content {
            text.push_str(more);
        }
    }

    fn lines(&self, width: usize) -> Vec<String> {
        let text = match &self.content {
            Content::Text(text) => return render::wrapped(text, width),
            Content::Report(report) => {
                let options = TextOptions { width, arenas: false, code: false };
                render::report(report, options)
            }
            Content::Who(who) => render::who(who, width),
        };
        text.lines().map(str::to_owned).collect()
    }
}

/// Processes with those that they started.
struct Forest<'a> {
    /// The processes in their order, each with the one that it is listed below.
    processes: Vec<(&'a Listed, Option<i32>)>,
    children: HashMap<i32, Vec<&'a Listed>>,
}

impl<'a> Forest<'a> {
    fn of(shown: &[&'a Listed]) -> Self {
        let is_shown = |pid: &i32| shown.iter().any(|process| process.id.0 == *pid);
        let parent = |process: &Listed| process.parent.filter(is_shown);
        let processes: Vec<_> = shown.iter().map(|&process| (process, parent(process))).collect();
        let mut children: HashMap<i32, Vec<&Listed>> = HashMap::new();
        for (process, parent) in &processes {
            if let Some(parent) = parent {
                children.entry(*parent).or_default().push(process);
            }
        }
        Self { processes, children }
    }

    /// Returns the processes with the lines of their branches. The tree that has the first process of all comes first.
    fn lines(&self) -> Vec<(&'a Listed, String)> {
        let parents: HashMap<i32, (&Listed, Option<i32>)> = self
            .processes
            .iter()
            .map(|&(process, parent)| (process.id.0, (process, parent)))
            .collect();
        let mut roots: Vec<&Listed> = Vec::new();
        for &(process, parent) in &self.processes {
            let mut root = (process, parent);
            // Ids that are used again could form a ring.
            for _ in 0..self.processes.len() {
                let Some(parent) = root.1.and_then(|parent| parents.get(&parent)) else { break };
                root = *parent;
            }
            if !roots.iter().any(|it| it.id == root.0.id) {
                roots.push(root.0);
            }
        }
        let mut lines = Vec::new();
        roots.into_iter().for_each(|root| self.add(root, 0, &mut lines));
        lines
    }

    /// Adds the line of a process, and those of its descendants.
    fn add(&self, process: &'a Listed, depth: usize, lines: &mut Vec<(&'a Listed, String)>) {
        if lines.len() >= self.processes.len() {
            return;
        }
        lines.push((process, String::new()));
        let children = self.children.get(&process.id.0).map_or(&[][..], Vec::as_slice);
        for (index, child) in children.iter().enumerate() {
            let line = lines.len();
            self.add(child, depth + 1, lines);
            let branch = if index + 1 == children.len() { "└ " } else { "├ " };
            if let Some((_, shown)) = lines.get_mut(line) {
                *shown = "  ".repeat((depth + 1).min(MAX_DEPTH) - 1) + branch;
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
mod tests {
    use formats::Group;
    use ledger::Cause;
    use ratatui_core::backend::TestBackend;
    use ratatui_core::terminal::Terminal;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn listed(pid: i32, parent: Option<i32>, mib: u64, command: &str) -> Listed {
        let group = Group {
            usage_bytes: 1229 * MIB,
            limit_bytes: Some(2048 * MIB),
            cache_bytes: 0,
            oom_kills: Some(0),
        };
        Listed {
            id: (pid, 1),
            parent,
            command: command.into(),
            rss_bytes: mib * MIB,
            pss_bytes: Some(mib * MIB / 2),
            group: parent.map(|_| group),
            growth_per_minute: Some(mib as f64 * 1e4),
        }
    }

    /// A master with two workers and a grandchild, a job, and names with escape sequences.
    fn family() -> View {
        let mut view = View::new(TopOrder::Rss, "");
        let worker = "puma: cluster worker";
        view.receive(News::Processes(
            vec![
                listed(4242, None, 140, "puma 6.4.0 (tcp://0.0.0.0:3000) [shop]"),
                listed(4250, Some(4242), 610, &format!("{worker} 0: 4242 [shop]")),
                listed(4251, Some(4242), 894, &format!("{worker} 1: 4242 [shop]")),
                listed(4300, Some(4250), 60, "ruby bin/thumbnail"),
                listed(
                    99,
                    None,
                    700,
                    "sidekiq 7.2.4 evil\u{1b}]0;title\u{7}\u{202e} [0 of 5 busy]",
                ),
            ],
            2,
        ));
        let rows = |rows: &[(Cause, u64)]| {
            Ok(rows.iter().map(|&(cause, mib)| CauseRow { cause, bytes: mib * MIB }).collect())
        };
        let burst = [
            (Cause::MallocUnreturned, 700),
            (Cause::RubyMalloc, 120),
            (Cause::MallocFragmented, 54),
            (Cause::FileShared, 20),
        ];
        view.receive(News::Causes((4251, 1), rows(&burst)));
        view.receive(News::Causes(
            (4250, 1),
            rows(&[(Cause::RubyMalloc, 500), (Cause::RubyVm, 110)]),
        ));
        let refusal = "cannot read process 99: permission denied (needs CAP_SYS_PTRACE)";
        view.receive(News::Causes((99, 1), Err(refusal.into())));
        view
    }

    fn drawn(view: &mut View, (width, height): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let lines =
            |size: ratatui_core::layout::Size| view.lines(size.width.into(), size.height.into());
        crate::screen::draw_lines(&mut terminal, lines).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_list_at_three_sizes() {
        let sizes = [(80, 24), (120, 40), (40, 10)];
        let screens = sizes.map(|size| format!("{size:?}\n{}", drawn(&mut family(), size)));
        insta::assert_snapshot!(screens.join("\n"));
    }

    #[test]
    fn a_refusal_and_the_help_at_two_sizes() {
        let screens = [(80, 24), (40, 10)].map(|size| {
            let mut view = family();
            drawn(&mut view, size);
            view.press(Key::End);
            let refused = drawn(&mut view, size);
            view.press(Key::Char('?'));
            format!("{size:?}\n{refused}\n{}", drawn(&mut view, size))
        });
        insta::assert_snapshot!(screens.join("\n"));
    }

    fn pids(view: &View) -> Vec<i32> {
        view.ids().into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn trees_stay_together_in_every_order() {
        let mut view = family();
        for (key, expected) in [
            ('r', [4242, 4251, 4250, 4300, 99]),
            ('l', [4242, 4250, 4300, 4251, 99]),
            ('g', [4242, 4251, 4250, 4300, 99]),
            ('n', [99, 4242, 4250, 4300, 4251]),
        ] {
            view.press(Key::Char(key));
            assert_eq!(pids(&view), expected, "{key}");
        }
    }

    #[test]
    fn a_filter_shows_the_processes_with_a_word() {
        let mut view = family();
        for key in [Key::Char('/'), Key::Char('W'), Key::Char('o'), Key::Char('x'), Key::Backspace]
        {
            view.press(key);
        }
        assert_eq!(pids(&view), [4251, 4250]);
        view.press(Key::Enter);
        // Not a part of the word any more.
        view.press(Key::Char('n'));
        assert_eq!(pids(&view), [4250, 4251]);
        view.press(Key::Escape);
        assert_eq!(pids(&view).len(), 5);
    }

    #[test]
    fn the_selected_process_stays_selected_when_the_order_changes() {
        let mut view = family();
        drawn(&mut view, (80, 24));
        view.press(Key::Down);
        assert_eq!(view.selected(), Some((4251, 1)));
        view.press(Key::Char('n'));
        drawn(&mut view, (80, 24));
        assert_eq!(view.selected(), Some((4251, 1)));
        // It has ended.
        view.receive(News::Processes(vec![listed(99, None, 700, "sidekiq")], 0));
        drawn(&mut view, (80, 24));
        assert_eq!(view.selected(), Some((99, 1)));
    }

    #[test]
    fn a_trim_starts_only_by_yes_to_its_prediction() {
        let mut view = family();
        drawn(&mut view, (80, 24));
        let Action::Start(Job { number, .. }) = view.press(Key::Char('t')) else { panic!() };
        // Typed too early.
        assert!(matches!(view.press(Key::Char('y')), Action::None));
        view.finish(number, Err("there is no process 4242".into()));
        assert!(drawn(&mut view, (80, 24)).contains("there is no process 4242"));
        assert!(matches!(view.press(Key::Char('y')), Action::None));
        view.press(Key::Escape);
        // The result of a page that was left is not shown.
        let Action::Start(Job { number, .. }) = view.press(Key::Enter) else { panic!() };
        view.press(Key::Escape);
        let trimmed = Answer::Saved("a.rbloat".into());
        view.finish(number, Ok(trimmed));
        assert!(view.page.is_none());
    }

    #[test]
    fn ids_that_form_a_ring_do_no_harm() {
        let mut view = View::new(TopOrder::Rss, "");
        let ring = vec![listed(1, Some(2), 1, "a"), listed(2, Some(1), 1, "b")];
        view.receive(News::Processes(ring, 0));
        assert_eq!(pids(&view).len(), 2);
    }
}
