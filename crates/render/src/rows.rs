//! Tables of names, figures and notes that fit a terminal. No cell is cut: what has no room beside its row takes
//! further lines.

use std::fmt::Write;

use anstyle::Style;
use textwrap::core::display_width;

use crate::text::{BOLD, clipped};

/// Blanks between columns, before the first one, and before a note below its row.
const GAP: usize = 2;
/// Between columns that have no room otherwise.
const NARROW_GAP: usize = 1;
const LEAD: usize = 1;
const INDENT: usize = 5;
/// The least number of columns for a note beside its row, and for a name, which may be an address.
const MIN_NOTE: usize = 18;
const MIN_NAME: usize = 14;
/// Lines of a note beside its row, at most, unless rows have no names.
const MAX_LINES_BESIDE: usize = 3;
/// Columns of a name that has a note beside it, at most.
const MAX_NAME: usize = 44;

/// The headings of a table. Those of figures may have several lines.
#[derive(Default)]
pub(crate) struct Heads<'a> {
    /// Nothing if the rows have no names.
    pub(crate) name: &'a str,
    pub(crate) figures: &'a [&'a str],
    pub(crate) note: &'a str,
    /// The words before a note that stands below its row, where it has no heading. Without them, a note that has no room beside its row is
    /// left out.
    pub(crate) lead: Option<&'a str>,
}

/// A row: a name, figures, and parts of a note.
#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    /// That of the name and the figures.
    pub(crate) style: Style,
    pub(crate) name: String,
    pub(crate) figures: Vec<String>,
    pub(crate) note: Vec<(Style, String)>,
}

/// The columns of a table.
struct Layout {
    name: usize,
    figures: Vec<usize>,
    /// Between the columns.
    gap: usize,
    /// The columns for a note beside its row; none if notes stand below.
    note: Option<usize>,
}

/// Writes a table for a terminal of `width` columns, and an empty line; nothing without rows.
pub(crate) fn write_rows(
    out: &mut String,
    heads: &Heads<'_>,
    rows: &[Row],
    width: usize,
) -> std::fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let layout = Layout::of(heads, rows, width);
    let head_lines = heads.figures.iter().map(|it| it.lines().count()).max().unwrap_or(1);
    for index in 0..head_lines.max(1) {
        let of = |head: &str| head.lines().nth(index).unwrap_or_default().to_owned();
        let figures: Vec<String> = heads.figures.iter().map(|head| of(head)).collect();
        let mut line = Line::default();
        layout.put_row(&mut line, BOLD, &of(heads.name), &figures);
        if layout.note.is_some() {
            line.put(layout.note_start(), BOLD, &of(heads.note));
        }
        writeln!(out, "{}", line.text)?;
    }
    for row in rows {
        layout.write_row(out, row, heads.lead, width)?;
    }
    writeln!(out)
}

impl Layout {
    fn of(heads: &Heads<'_>, rows: &[Row], width: usize) -> Self {
        let longest = |head: &str| head.lines().map(display_width).max().unwrap_or(0);
        let figures: Vec<usize> = heads
            .figures
            .iter()
            .enumerate()
            .map(|(index, head)| {
                let cells = rows.iter().filter_map(|row| row.figures.get(index));
                cells.map(|cell| display_width(cell)).chain([longest(head)]).max().unwrap_or(0)
            })
            .collect();
        let names = rows.iter().map(|row| display_width(&row.name));
        let name = names.chain([display_width(heads.name)]).max().unwrap_or(0);
        let notes = rows.iter().map(|row| width_of(&row.note));
        let note = notes.max().unwrap_or(0);
        // The columns for the name and the note.
        let gaps = if name > 0 { figures.len() } else { figures.len().saturating_sub(1) };
        let used = |gap| LEAD + figures.iter().sum::<usize>() + gaps * gap;
        let gap = if used(GAP) + name.min(MIN_NAME) > width { NARROW_GAP } else { GAP };
        let room = width.saturating_sub(used(gap));
        let beside = |name: usize| room.saturating_sub(name + gap);
        let (name, note) = if note == 0 {
            (name.min(room.max(MIN_NAME)), None)
        } else if beside(name) >= note {
            (name, Some(beside(name)))
        } else if heads.lead.is_none() {
            (name.min(room.max(MIN_NAME)), Some(beside(name)).filter(|&room| room >= MIN_NOTE))
        } else {
            let short = name.min(MAX_NAME);
            let is_short =
                |row: &Row| note_lines(&row.note, beside(short)).len() <= MAX_LINES_BESIDE;
            let is_enough = beside(short) >= MIN_NOTE.min(note) && rows.iter().all(is_short);
            if name == 0 || is_enough {
                (short, Some(beside(short).max(MIN_NOTE)))
            } else {
                (name.min(room.max(MIN_NAME)), None)
            }
        };
        Self { name, figures, gap, note }
    }

    /// The column of the first figure.
    fn figures_start(&self) -> usize {
        if self.name > 0 { LEAD + self.name + self.gap } else { LEAD }
    }

    fn note_start(&self) -> usize {
        self.figures_start() + self.figures.iter().map(|width| width + self.gap).sum::<usize>()
    }

    fn put_row(&self, line: &mut Line, style: Style, name: &str, figures: &[String]) {
        line.put(LEAD, style, name);
        let mut end = self.figures_start();
        for (figure, width) in figures.iter().zip(&self.figures) {
            end += width;
            line.put(end.saturating_sub(display_width(figure)), style, figure);
            end += self.gap;
        }
    }

    fn write_row(
        &self,
        out: &mut String,
        row: &Row,
        lead: Option<&str>,
        width: usize,
    ) -> std::fmt::Result {
        let names = broken(&row.name, self.name.max(MIN_NAME));
        let notes = self.note.map_or_else(Vec::new, |room| note_lines(&row.note, room));
        for index in 0..names.len().max(notes.len()).max(1) {
            let mut line = Line::default();
            let figures = if index == 0 { &row.figures[..] } else { &[] };
            let name = names.get(index).map_or("", String::as_str);
            self.put_row(&mut line, row.style, name, figures);
            let mut column = self.note_start();
            for (style, text) in notes.get(index).into_iter().flatten() {
                line.put(column, *style, text);
                column = line.columns + GAP;
            }
            writeln!(out, "{}", line.text)?;
        }
        let Some(lead) = lead.filter(|_| self.note.is_none() && width_of(&row.note) > 0) else {
            return Ok(());
        };
        let mut below = row.note.clone();
        below[0].1.insert_str(0, lead);
        for parts in note_lines(&below, width.saturating_sub(INDENT + 1).max(MIN_NOTE)) {
            let mut line = Line::default();
            let mut column = INDENT;
            for (style, text) in &parts {
                line.put(column, *style, text);
                column = line.columns + GAP;
            }
            writeln!(out, "{}", line.text)?;
        }
        Ok(())
    }
}

/// A line of text with styles, without blanks at its end.
#[derive(Default)]
struct Line {
    text: String,
    columns: usize,
}

impl Line {
    /// Adds text at a column.
    fn put(&mut self, column: usize, style: Style, text: &str) {
        if text.is_empty() {
            return;
        }
        self.text.push_str(&" ".repeat(column.saturating_sub(self.columns)));
        let _ = write!(self.text, "{style}{text}{style:#}");
        self.columns = self.columns.max(column) + display_width(text);
    }
}

/// The columns of a note in one line.
fn width_of(note: &[(Style, String)]) -> usize {
    let parts = note.iter().filter(|(_, text)| !text.is_empty());
    parts.map(|(_, text)| display_width(text) + GAP).sum::<usize>().saturating_sub(GAP)
}

/// The lines of a note: one if it fits, otherwise one or several for each part.
fn note_lines(note: &[(Style, String)], room: usize) -> Vec<Vec<(Style, String)>> {
    let parts: Vec<_> = note.iter().filter(|(_, text)| !text.is_empty()).cloned().collect();
    if parts.is_empty() {
        return Vec::new();
    }
    if width_of(&parts) <= room {
        return vec![parts];
    }
    let lines = parts.into_iter().flat_map(|(style, text)| {
        broken(&text, room).into_iter().map(move |line| vec![(style, line)])
    });
    lines.collect()
}

/// Breaks a name, path or command into lines of at most `room` columns: at a blank, or behind `::` or `/` if a long word would leave most
/// of a line empty. Blanks before the name are before each line. (textwrap also breaks paths at hyphens, and no names of classes.)
fn broken(name: &str, room: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = name.trim_start();
    let (indent, _) = name.split_at(name.len() - rest.len());
    let room = room.saturating_sub(display_width(indent));
    while display_width(rest) > room {
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let cut = clipped(rest, room).len().max(first);
        let is_at_blank = rest[cut..].starts_with(' ');
        let blank = if is_at_blank { cut } else { rest[..cut].rfind(' ').map_or(0, |at| at + 1) };
        let next_word = rest[blank..].split(' ').find(|word| !word.is_empty());
        let is_short = next_word.is_none_or(|word| display_width(word) <= room);
        let at = if blank > 0 && (is_short || 2 * blank >= cut) {
            blank
        } else {
            let breaks = ["::", "/"].map(|it| rest[..cut].rfind(it).map_or(0, |at| at + it.len()));
            breaks.into_iter().chain([blank]).max().filter(|&at| at > 0).unwrap_or(cut)
        };
        lines.push(format!("{indent}{}", rest[..at].trim_end()));
        rest = rest[at..].trim_start();
    }
    if !rest.is_empty() {
        lines.push(format!("{indent}{rest}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(width: usize) -> String {
        let heads = Heads {
            name: "CLASS",
            figures: &["OBJECTS", "MiB"],
            note: "RETAINED BY",
            lead: Some("by "),
        };
        let row = |name: &str, note: &str| Row {
            name: name.into(),
            figures: vec!["1,000".into(), "+20.0".into()],
            note: vec![(Style::new(), note.into())],
            ..Row::default()
        };
        let rows = [row("Shop::Catalog::Entry", "Shop::Catalog::CACHE → Hash"), row("Hash", "")];
        let mut text = String::new();
        write_rows(&mut text, &heads, &rows, width).unwrap();
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_note_stands_beside_its_row_or_below() {
        let wide = [
            " CLASS                 OBJECTS    MiB  RETAINED BY",
            " Shop::Catalog::Entry    1,000  +20.0  Shop::Catalog::CACHE → Hash",
            " Hash                    1,000  +20.0",
            "\n",
        ];
        let narrow = [
            " CLASS                 OBJECTS    MiB",
            " Shop::Catalog::Entry    1,000  +20.0",
            "     by Shop::Catalog::CACHE → Hash",
            " Hash                    1,000  +20.0",
            "\n",
        ];
        assert_eq!(shown(80), wide.join("\n"));
        assert_eq!(shown(50), narrow.join("\n"));
        // Nothing is lost on the narrowest terminals.
        for width in 20..60 {
            let text: String = shown(width).split_whitespace().collect();
            assert!(text.contains("Entry") && text.contains("Shop::Catalog::CACHE→Hash"), "{text}");
        }
    }

    #[test]
    fn names_are_broken_where_people_would() {
        assert_eq!(broken("ActiveRecord::Relation", 16), ["ActiveRecord::", "Relation"]);
        assert_eq!(broken("a".repeat(20).as_str(), 16), ["a".repeat(16), "aaaa".into()]);
        assert_eq!(broken("", 16), Vec::<String>::new());
        assert_eq!(
            broken("in Shop#sell (/srv/shop.rb:1)", 16),
            ["in Shop#sell", "(/srv/shop.rb:1)"]
        );
        assert_eq!(broken("in Shop#sell (/srv/s/orders.rb:1)", 16)[0], "in Shop#sell");
        assert_eq!(broken("in /srv/shop/orders.rb", 16), ["in /srv/shop/", "orders.rb"]);
        assert_eq!(broken("  a name of words", 8), ["  a name", "  of", "  words"]);
        assert_eq!(broken("漢字漢字", 5), ["漢字", "漢字"]);
    }
}
