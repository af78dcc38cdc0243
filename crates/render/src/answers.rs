//! The answers of an engine to questions about an archive. Archives come from other machines, so their texts are as untrusted as those of snapshots.

use std::fmt::Write as _;

use linux::is_control;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use textwrap::core::display_width;

use crate::text::{BOLD, write_paragraph};

/// The beginning of the line before an answer. No line of JSON begins with it.
const MARK: &str = "rbloat ";

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The name of the question.
    pub name: String,
    /// The rows. Each has the same columns, in the same order.
    pub rows: Vec<Row>,
}

/// A row: names of columns, and values.
#[derive(Debug, Clone, PartialEq)]
pub struct Row(pub Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Columns;

        impl<'de> Visitor<'de> for Columns {
            type Value = Row;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a row")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Row, A::Error> {
                let mut row = Vec::new();
                while let Some((name, value)) = entries.next_entry()? {
                    row.push((name, value));
                }
                Ok(Row(row))
            }
        }

        from.deserialize_map(Columns)
    }
}

/// Returns the statement by which DuckDB's program begins the answer to a question.
#[must_use]
pub fn duckdb_mark(name: &str) -> String {
    format!(".print {MARK}{name}\n")
}

/// Reads what DuckDB's program prints as JSON.
///
/// # Errors
/// If it is something else.
pub fn answers(text: &str) -> Result<Vec<Answer>, serde_json::Error> {
    let mut answers: Vec<(&str, String)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix(MARK), answers.last_mut()) {
            (Some(name), _) => answers.push((name, String::new())),
            (None, Some((_, json))) => json.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    let answer = |(name, json): (&str, String)| {
        // DuckDB prints nothing for no rows.
        let rows = match json.trim() {
            "" => Vec::new(),
            json => serde_json::from_str(json)?,
        };
        Ok(Answer { name: name.to_owned(), rows })
    };
    answers.into_iter().map(answer).collect()
}

impl Answer {
    /// The names of the columns; none without rows.
    fn columns(&self) -> Vec<&str> {
        let first = self.rows.first();
        first.map_or_else(Vec::new, |row| row.0.iter().map(|(name, _)| &**name).collect())
    }

    /// The values as plain text, with blanks in place of control characters.
    #[must_use]
    pub fn cells(&self) -> Vec<Vec<String>> {
        let text = |value: &Value| match value {
            Value::Null => String::new(),
            Value::String(text) => text.replace(is_control, " "),
            value => value.to_string(),
        };
        self.rows.iter().map(|row| row.0.iter().map(|(_, value)| text(value)).collect()).collect()
    }

    /// The rows as a table for a terminal of `width` columns, below a title.
    #[must_use]
    pub fn table(&self, title: &str, width: usize) -> String {
        table(title, &self.columns(), &self.cells(), width)
    }

    /// The rows as comma-separated values, with a line of names.
    #[must_use]
    pub fn csv(&self) -> String {
        let quoted = |cell: &str| match cell.contains([',', '"']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell.to_owned(),
        };
        let mut text = String::new();
        let columns = self.columns().into_iter().map(str::to_owned).collect();
        let heads = Some(columns).filter(|it: &Vec<_>| !it.is_empty());
        for cells in heads.into_iter().chain(self.cells()) {
            let cells: Vec<_> = cells.iter().map(|cell| quoted(cell)).collect();
            text.extend([&cells.join(","), "\n"]);
        }
        text
    }

    /// The rows as an array of objects in JSON, with escapes in place of control characters.
    #[must_use]
    pub fn json(&self) -> String {
        let object = |row: &Row| {
            let entry = |(name, value): &(String, Value)| {
                format!("{}: {}", Value::from(name.as_str()), escaped(&value.to_string()))
            };
            format!("    {{{}}}", row.0.iter().map(entry).collect::<Vec<_>>().join(", "))
        };
        match self.rows.is_empty() {
            true => "[]".to_owned(),
            false => {
                format!("[\n{}\n  ]", self.rows.iter().map(object).collect::<Vec<_>>().join(",\n"))
            }
        }
    }
}

/// Escapes the control characters in the strings of JSON that JSON itself does not escape.
fn escaped(json: &str) -> String {
    let mut text = String::new();
    for char in json.chars() {
        if is_control(char) {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(char);
        }
    }
    text
}

/// Blanks between columns.
const GAP: &str = "  ";

/// Returns a table for a terminal of `width` columns, below its title.
fn table(title: &str, columns: &[&str], rows: &[Vec<String>], width: usize) -> String {
    let mut text = String::new();
    let _ = write_paragraph(&mut text, BOLD, title, "", width);
    if rows.is_empty() {
        text.push_str("(no rows)\n");
    }
    let is_number = |cell: &String| cell.is_empty() || cell.parse::<f64>().is_ok();
    let shapes: Vec<(usize, bool)> = (0..columns.len())
        .map(|at| {
            let cells = || rows.iter().filter_map(|row| row.get(at));
            let longest = cells().map(|cell| display_width(cell)).max().unwrap_or(0);
            (longest.max(columns[at].len()), cells().all(is_number))
        })
        .collect();
    let heads: Vec<String> = columns.iter().map(|&name| name.to_owned()).collect();
    for row in [&heads].into_iter().filter(|it| !it.is_empty()).chain(rows) {
        let mut line = String::new();
        for (cell, (width, is_number)) in row.iter().zip(&shapes) {
            let blanks = " ".repeat(width.saturating_sub(display_width(cell)));
            let parts = if *is_number { [&blanks, cell] } else { [cell, &blanks] };
            line.extend([parts[0], parts[1], GAP]);
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}[31m\u{7}\u{9b}\u{202e},\"\nb";

    fn hostile() -> Vec<Answer> {
        // DuckDB escapes what JSON must escape.
        let shop = Value::from(HOSTILE);
        let json = format!(
            "[{{\"service\":{shop},\"mib\":93.6,\"cost\":null}},\n{{\"service\":\"b\",\"mib\":1,\"cost\":2}}]"
        );
        answers(&format!("rbloat waste\n{json}\nrbloat growth\nrbloat gems\n[]\n")).unwrap()
    }

    #[test]
    fn answers_have_their_names_and_the_order_of_columns() {
        let found = hostile();
        let names: Vec<_> = found.iter().map(|it| (&*it.name, it.rows.len())).collect();
        assert_eq!(names, [("waste", 2), ("growth", 0), ("gems", 0)]);
        assert_eq!(found[0].columns(), ["service", "mib", "cost"]);
        assert!(answers("rbloat waste\nError").is_err());
    }

    /// An archive of another machine wrote to the terminal.
    #[test]
    fn texts_of_an_archive_move_no_cursor_in_any_format() {
        let answer = &hostile()[0];
        assert_eq!(answer.cells()[0], ["a [31m   ,\" b", "93.6", ""]);
        assert_eq!(answer.csv(), "service,mib,cost\n\"a [31m   ,\"\" b\",93.6,\nb,1,2\n");
        let json = answer.json();
        assert!(!json.contains(|it| it != '\n' && is_control(it)), "{json}");
        let rows: Vec<Row> = serde_json::from_str(&json).unwrap();
        assert_eq!(rows, answer.rows);
    }

    #[test]
    fn columns_are_aligned_and_an_empty_answer_is_no_error() {
        let rows = [["shop", "93.6", ""], ["häuser", "1204.0", "5"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let text = table("waste", &["service", "rss_mib", "cost"], &rows, 80);
        let text = anstream::adapter::strip_str(&text).to_string();
        let expected =
            "waste\nservice  rss_mib  cost\nshop        93.6\nhäuser    1204.0     5\n\n";
        assert_eq!(text, expected);
        assert!(table("gems", &[], &[], 80).ends_with("(no rows)\n\n"));
    }
}
