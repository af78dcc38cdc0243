//! The lines of `rbloat top`.

use std::fmt::Write;
use std::time::Duration;

use anstyle::Style;
use formats::{CauseRow, Group};
use ledger::{Cause, CauseGroup, Size, percent};

use crate::text::{BOLD, DIM, RED, YELLOW, clipped, mebibytes, wrapped};
use crate::words;

/// The least number of columns for a command line, and for one beside the name of the largest cause.
const MIN_COMMAND: usize = 16;
const MIN_COMMAND_BESIDE_CAUSE: usize = 24;
/// Columns of the bar of a process.
const BAR: usize = 12;
/// The least number of columns for the bar of a cause.
const MIN_CAUSE_BAR: usize = 8;
/// Columns of a line about a cause without the bar.
const BEFORE_CAUSE_BAR: usize = 42;

/// A Ruby process in `rbloat top`.
#[derive(Debug, Clone, PartialEq)]
pub struct TopProcess<'a> {
    /// Its process id.
    pub pid: i32,
    /// The lines that connect it with its parent, two columns for each level.
    pub branch: &'a str,
    /// Resident bytes.
    pub rss_bytes: u64,
    /// Proportional bytes, if they are known.
    pub pss_bytes: Option<u64>,
    /// The control group whose limit leaves the least room.
    pub group: Option<Group>,
    /// True if the group could not be found, so that there may be a limit.
    pub is_limit_unknown: bool,
    /// The growth of RSS in bytes per minute; `None` if it is too early.
    pub growth_per_minute: Option<f64>,
    /// The causes of its memory.
    pub causes: TopCauses<'a>,
    /// Its command line.
    pub command: &'a str,
}

/// The causes of a process's memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TopCauses<'a> {
    /// They were not read yet.
    Unknown,
    /// They could not be read, for this reason.
    Refused(&'a str),
    /// They were read this time ago.
    Known(&'a [CauseRow], Duration),
}

/// A column by which processes are sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TopOrder {
    /// The largest RSS first.
    #[default]
    Rss,
    /// The largest PSS first.
    Pss,
    /// The fullest control group first.
    Limit,
    /// The fastest growth first.
    Growth,
    /// The lowest process id first.
    Pid,
}

impl TopOrder {
    /// All orders.
    pub const ALL: [Self; 5] = [Self::Rss, Self::Pss, Self::Limit, Self::Growth, Self::Pid];

    /// Returns the key that selects it.
    #[must_use]
    pub fn key(self) -> char {
        match self {
            Self::Rss => 'r',
            Self::Pss => 'p',
            Self::Limit => 'l',
            Self::Growth => 'g',
            Self::Pid => 'n',
        }
    }

    /// Returns the word that selects it in arguments.
    #[must_use]
    pub fn column(self) -> &'static str {
        match self {
            Self::Rss => "rss",
            Self::Pss => "pss",
            Self::Limit => "limit",
            Self::Growth => "growth",
            Self::Pid => "pid",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Rss => "RSS",
            Self::Pss => "PSS",
            Self::Limit => "use of the limit",
            Self::Growth => "growth",
            Self::Pid => "process id",
        }
    }
}

/// The columns of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Pid,
    Rss,
    Pss,
    Limit,
    Growth,
    Bar,
    Cause,
    Command,
}

impl Column {
    const ALL: [Self; 8] = [
        Self::Pid,
        Self::Rss,
        Self::Pss,
        Self::Limit,
        Self::Growth,
        Self::Bar,
        Self::Cause,
        Self::Command,
    ];
    /// The columns that a narrow terminal lacks, in this order.
    const DISPENSABLE: [Self; 5] = [Self::Cause, Self::Limit, Self::Growth, Self::Bar, Self::Pss];

    fn head(self) -> &'static str {
        match self {
            Self::Pid => "PID",
            Self::Rss => "RSS, MiB",
            Self::Pss => "PSS, MiB",
            Self::Limit => "LIMIT %",
            Self::Growth => "MiB/MIN",
            Self::Bar => "CAUSES",
            Self::Cause => "LARGEST CAUSE",
            Self::Command => "COMMAND",
        }
    }

    /// Its columns on the terminal, with the blanks before it. The command line takes the rest.
    fn width(self) -> usize {
        match self {
            Self::Pid => 11,
            Self::Rss | Self::Pss | Self::Growth => 1 + 8,
            Self::Limit => 1 + 7,
            Self::Bar => 2 + BAR,
            Self::Cause => 2 + 24,
            Self::Command => 2,
        }
    }

    /// Returns the columns that fit, and the room for the command line.
    fn fitting(width: usize) -> (Vec<Self>, usize) {
        let mut columns = Self::ALL.to_vec();
        let mut dispensable = Self::DISPENSABLE.into_iter();
        loop {
            let taken: usize = columns.iter().map(|column| column.width()).sum();
            let room = width.saturating_sub(MARK.len() + taken);
            let least = match columns.contains(&Self::Cause) {
                true => MIN_COMMAND_BESIDE_CAUSE,
                false => MIN_COMMAND,
            };
            match dispensable.next() {
                Some(column) if room < least => columns.retain(|it| *it != column),
                _ => return (columns, room),
            }
        }
    }
}

/// The room for the mark of the selected process.
const MARK: &str = "  ";

/// Returns the line above the list: the number of processes, their memory, and their order.
#[must_use]
pub fn top_title(
    processes: &[TopProcess<'_>],
    refused: usize,
    order: TopOrder,
    filter: &str,
    width: usize,
) -> String {
    let number = processes.len() as u64;
    let mut parts = vec![match number {
        1 => "1 Ruby process".to_owned(),
        _ => format!("{number} Ruby processes"),
    }];
    let pss: Option<u64> = processes.iter().map(|process| process.pss_bytes).sum();
    if let Some(pss) = pss.filter(|_| number > 0) {
        parts.push(format!("PSS {}", Size(pss)));
    }
    parts.push(format!("by {}", order.name()));
    if !filter.is_empty() {
        parts.push(format!("with `{filter}`"));
    }
    if refused > 0 {
        parts.push(format!("{refused} skipped: could not be read"));
    }
    format!("{BOLD}{}{BOLD:#}", clipped(&parts.join("  ·  "), width))
}

/// Returns the heads of the columns.
#[must_use]
pub fn top_head(width: usize) -> String {
    let (columns, _) = Column::fitting(width);
    let mut line = MARK.to_owned();
    for column in columns {
        let head = column.head();
        let _ = match column {
            Column::Bar | Column::Cause => write!(line, "  {head:<0$}", column.width() - 2),
            Column::Command => write!(line, "  {head}"),
            _ => write!(line, "{head:>0$}", column.width()),
        };
    }
    format!("{BOLD}{}{BOLD:#}", line.trim_end())
}

/// Returns the line of a process in the list.
#[must_use]
pub fn top_row(process: &TopProcess<'_>, is_selected: bool, width: usize) -> String {
    let (columns, room) = Column::fitting(width);
    let style = if is_selected { BOLD } else { Style::new() };
    let mut line = format!("{style}{}", if is_selected { "> " } else { MARK });
    for column in columns {
        let text = match column {
            Column::Pid => {
                let room = column.width().saturating_sub(process.branch.chars().count());
                format!("{}{:>room$}", process.branch, process.pid)
            }
            Column::Rss => format!("{:>9}", mebibytes(process.rss_bytes)),
            Column::Pss => format!("{:>9}", process.pss_bytes.map_or("?".into(), mebibytes)),
            Column::Limit => {
                let share = process.group.and_then(used).map(|share| format!("{share:.0}"));
                let unknown = if process.is_limit_unknown { "?" } else { "" };
                format!("{:>8}", share.unwrap_or_else(|| unknown.into()))
            }
            Column::Growth => format!("{:>9}", growth(process.growth_per_minute)),
            Column::Bar => format!("{style:#}  {}{style}", bar_of(&process.causes)),
            Column::Cause => format!("  {:<24}", largest_of(&process.causes)),
            Column::Command => format!("  {}", clipped(process.command, room)),
        };
        line += &text;
    }
    format!("{}{style:#}", line.trim_end())
}

/// Returns the lines about the selected process: its command line, its control group, and its causes. There are `height` lines
/// at most.
#[must_use]
pub fn top_detail(process: &TopProcess<'_>, width: usize, height: usize) -> Vec<String> {
    let mut lines = vec![format!("{BOLD}{} {}{BOLD:#}", process.pid, process.command)];
    let limit = match process.group {
        Some(Group { usage_bytes, limit_bytes: Some(limit), .. }) => {
            format!("control group: {} of {}; ", Size(usage_bytes), Size(limit))
        }
        _ if process.is_limit_unknown => "control group not found, limit unknown; ".into(),
        _ => String::new(),
    };
    match process.causes {
        TopCauses::Unknown => {
            let text =
                "causes: waiting, since rbloat limits the cost of captures; Enter reads them now";
            lines.extend(wrapped(&format!("{limit}{text}"), width));
        }
        TopCauses::Refused(reason) => {
            lines.extend(wrapped(&format!("{limit}causes: not read: {reason}"), width));
        }
        TopCauses::Known(rows, age) => {
            lines.extend(wrapped(&format!("{limit}causes, {} s ago:", age.as_secs()), width));
            lines.extend(cause_lines(rows, width));
        }
    }
    lines.truncate(height);
    lines
}

/// Returns a line for each cause, the largest first.
fn cause_lines(rows: &[CauseRow], width: usize) -> Vec<String> {
    let mut rows: Vec<_> = rows.iter().filter(|row| row.bytes > 0).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    let total = words::total(rows.iter().map(|row| row.bytes));
    let longest = rows.first().map_or(0, |row| row.bytes);
    let room = width.saturating_sub(BEFORE_CAUSE_BAR);
    let line = |row: &&CauseRow| {
        let kind = Kind::of(row.cause);
        let style = kind.style();
        let bar = if room < MIN_CAUSE_BAR { 0 } else { columns_for(row.bytes, longest, room) };
        let bar = kind.glyph().to_string().repeat(bar);
        let (name, size) = (row.cause.name(), Size(row.bytes).to_string());
        let share = percent(row.bytes, total);
        let line = format!("  {name:<18} {size:>10} {share:>5.1} %  {style}{bar}{style:#}");
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Returns the columns for a part of the whole, rounded.
fn columns_for(part: u64, whole: u64, columns: usize) -> usize {
    let whole = u128::from(whole.max(1));
    ((2 * u128::from(part) * columns as u128 + whole) / (2 * whole)) as usize
}

/// The keys, in a line of `width` columns.
#[must_use]
pub fn top_keys(width: usize) -> &'static str {
    const LONG: &str = "Enter report  t trim  s snapshot  w who  / filter  ? help  q quit";
    if width < LONG.len() { "Enter report  ? help  q quit" } else { LONG }
}

/// Returns the explanation of keys, columns and bars.
#[must_use]
pub fn top_help() -> String {
    let bars: Vec<String> = Kind::ALL
        .into_iter()
        .map(|kind| {
            let style = kind.style();
            format!("  {style}{}{style:#}  {}", kind.glyph(), kind.meaning())
        })
        .collect();
    format!(
        "{BOLD}KEYS{BOLD:#}
  Enter      report on the selected process: owners, retaining paths, advice
  t          trim: predicts how much memory it returns, and asks first
  s          save a snapshot in a file of this folder
  w          show which code makes it grow, after 60 s or at Esc
  /          show only processes with a word in their command lines
  r p l g n  sort by RSS, PSS, use of the limit, growth, process id
  ↑ ↓ j k, PageUp, PageDown, Home, End   move
  Esc, q     back; ^C quits

{BOLD}COLUMNS{BOLD:#}
  PSS        RSS, but a page that four processes share counts for a quarter
  LIMIT %    memory of the control group, caches included, of its limit
  MiB/MIN    growth of RSS over the last minute
  Workers are listed below the process that started them.

{BOLD}CAUSES{BOLD:#}
{}

rbloat captures one process at a time, and uses at most 0.3 % of a processor for
that after the first time. It reads PSS less often if many processes take long.
",
        bars.join("\n")
    )
}

/// Returns the share of a control group's limit that is used, in percent.
fn used(group: Group) -> Option<f64> {
    group.limit_bytes.map(|limit| percent(group.usage_bytes, limit))
}

/// Returns growth in MiB with its sign, and 0.0 without one.
fn growth(bytes_per_minute: Option<f64>) -> String {
    let Some(bytes) = bytes_per_minute else { return String::new() };
    let text = format!("{:+.1}", bytes / f64::from(1 << 20));
    if matches!(text.as_str(), "+0.0" | "-0.0") { "0.0".into() } else { text }
}

/// The kinds of memory that the bar of a process distinguishes, also without colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    InUse,
    Returnable,
    Kept,
    Files,
    Unknown,
}

impl Kind {
    const ALL: [Self; 5] = [Self::InUse, Self::Returnable, Self::Kept, Self::Files, Self::Unknown];

    fn of(cause: Cause) -> Self {
        match cause.group() {
            CauseGroup::Unreturned => Self::Returnable,
            CauseGroup::Fragmented | CauseGroup::KeptForReuse | CauseGroup::FreeSlots => Self::Kept,
            CauseGroup::Files | CauseGroup::SharedMemory => Self::Files,
            CauseGroup::Unknown => Self::Unknown,
            _ => Self::InUse,
        }
    }

    fn glyph(self) -> char {
        match self {
            Self::InUse => '█',
            Self::Returnable => '▓',
            Self::Kept => '▒',
            Self::Files => '░',
            Self::Unknown => '?',
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Returnable => RED,
            Self::Kept => YELLOW,
            Self::Files | Self::Unknown => DIM,
            Self::InUse => Style::new(),
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::InUse => "in use: by Ruby, libraries, threads and malloc itself",
            Self::Returnable => "free, in whole pages: a trim returns it",
            Self::Kept => "free, but pinned by memory in use, or kept for reuse",
            Self::Files => "pages of files and libraries",
            Self::Unknown => "unknown",
        }
    }
}

/// Returns the bar of a process, `BAR` columns wide.
fn bar_of(causes: &TopCauses<'_>) -> String {
    let rows = match causes {
        TopCauses::Unknown => return format!("{:<BAR$}", "..."),
        TopCauses::Refused(_) => return format!("{:<BAR$}", "not read"),
        TopCauses::Known(rows, _) => rows,
    };
    let total = words::total(rows.iter().map(|row| row.bytes));
    let (mut text, mut sum, mut drawn) = (String::new(), 0_u64, 0);
    for kind in Kind::ALL {
        let of_kind = rows.iter().filter(|row| Kind::of(row.cause) == kind);
        sum = sum.saturating_add(words::total(of_kind.map(|row| row.bytes)));
        let end = columns_for(sum, total, BAR).min(BAR);
        let (style, part) = (kind.style(), kind.glyph().to_string().repeat(end - drawn));
        text += &format!("{style}{part}{style:#}");
        drawn = end;
    }
    text + &" ".repeat(BAR - drawn)
}

/// Returns the name of the largest cause and its share.
fn largest_of(causes: &TopCauses<'_>) -> String {
    let TopCauses::Known(rows, _) = causes else { return String::new() };
    let total = words::total(rows.iter().map(|row| row.bytes));
    rows.iter().max_by_key(|row| row.bytes).map_or_else(String::new, |row| {
        format!("{} {:.0} %", row.cause.name(), percent(row.bytes, total))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<CauseRow> {
        [
            (Cause::RubyMalloc, 200),
            (Cause::MallocUnreturned, 700),
            (Cause::MallocFragmented, 50),
            (Cause::FileShared, 50),
        ]
        .map(|(cause, mib)| CauseRow { cause, bytes: mib << 20 })
        .into()
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn a_bar_distinguishes_memory_in_use_from_free_memory() {
        let rows = rows();
        let bar = plain(&bar_of(&TopCauses::Known(&rows, Duration::ZERO)));
        assert_eq!(bar, "██▓▓▓▓▓▓▓▓▓░");
        for causes in
            [TopCauses::Unknown, TopCauses::Refused("no"), TopCauses::Known(&[], Duration::ZERO)]
        {
            assert_eq!(plain(&bar_of(&causes)).chars().count(), BAR);
        }
    }

    /// The column was empty, as without a limit.
    #[test]
    fn an_unknown_limit_is_no_lack_of_one() {
        let mut process = TopProcess {
            pid: 7,
            branch: "",
            rss_bytes: 0,
            pss_bytes: Some(0),
            group: None,
            is_limit_unknown: false,
            growth_per_minute: Some(0.0),
            causes: TopCauses::Unknown,
            command: "",
        };
        let shown = |process: &TopProcess<'_>| {
            let lines = [vec![top_row(process, false, 80)], top_detail(process, 80, 9)].concat();
            lines.join("\n").matches('?').count()
        };
        assert_eq!(shown(&process), 0);
        process.is_limit_unknown = true;
        assert_eq!(shown(&process), 1);
        let detail = plain(&top_detail(&process, 80, 9).join(" "));
        assert!(detail.contains("control group not found, limit unknown;"), "{detail}");
    }

    #[test]
    fn lines_fit_each_width_and_columns_align() {
        let rows = rows();
        let group = Group {
            usage_bytes: 900 << 20,
            limit_bytes: Some(1 << 30),
            cache_bytes: 0,
            oom_kills: None,
        };
        let process = TopProcess {
            pid: 1_234_567,
            branch: "├ ",
            rss_bytes: 12_345 << 20,
            pss_bytes: Some(1 << 20),
            group: Some(group),
            is_limit_unknown: false,
            growth_per_minute: Some(72.04 * f64::from(1 << 20)),
            causes: TopCauses::Known(&rows, Duration::from_secs(7)),
            command: &"puma: cluster worker 0 ".repeat(20),
        };
        for width in [40, 60, 80, 100, 120, 200] {
            let (head, row) = (plain(&top_head(width)), plain(&top_row(&process, true, width)));
            assert!(row.chars().count() <= width && head.chars().count() <= width, "{row}");
            let end = |line: &str, text: &str| {
                line.find(text).map(|at| line[..at].chars().count() + text.len())
            };
            for (head_text, text) in [
                ("RSS, MiB", "12345.0"),
                ("PSS, MiB", " 1.0"),
                ("LIMIT %", " 88"),
                ("MiB/MIN", "+72.0"),
            ] {
                assert_eq!(end(&head, head_text), end(&row, text), "{head}\n{row}");
            }
            for line in top_detail(&process, width, 9).iter().skip(1) {
                assert!(plain(line).chars().count() <= width.max(43), "{line}");
            }
        }
    }

    #[test]
    fn little_growth_has_no_sign() {
        for (bytes, expected) in [(9.0, "0.0"), (-9.0, "0.0"), (2e6, "+1.9"), (-2e6, "-1.9")] {
            assert_eq!(growth(Some(bytes)), expected);
        }
    }
}
