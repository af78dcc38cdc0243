//! docs/formats.md describes the tables that there are, and docs/archive.md the questions.

use archive::{Column, DUMP_QUESTIONS, DUMP_TABLES, KEYS, QUESTIONS, TABLES, Table};

const FORMATS: &str = include_str!("../../../docs/formats.md");
const PAGE: &str = include_str!("../../../docs/archive.md");
const DUMPS: &str = include_str!("../../../docs/dump.md");

fn row(column: &Column) -> String {
    let optional = if column.optional { ", may be NULL" } else { "" };
    format!("| `{}` | {}{optional} | {} |", column.name, column.kind.sql(), column.meaning)
}

/// The rows of the first table in a section.
fn rows(section: &str) -> Vec<&str> {
    let (_, rows) = section.split_once("|---|---|---|\n").unwrap();
    rows.lines().take_while(|line| line.starts_with("| `")).collect()
}

#[test]
fn the_page_lists_the_columns_of_each_table() {
    let (_, layout) = FORMATS.split_once("## Archives\n").unwrap();
    assert_eq!(rows(layout), KEYS.iter().map(row).collect::<Vec<_>>());
    for Table { name, row: meaning, columns } in &TABLES {
        let (_, section) = layout.split_once(&format!("\n### {name}\n")).unwrap();
        assert!(section.starts_with(&format!("\nA row is {meaning}.\n")), "{name}");
        assert_eq!(rows(section), columns.iter().map(row).collect::<Vec<_>>(), "{name}");
    }
    assert_eq!(layout.matches("\n### ").count(), TABLES.len());
}

#[test]
fn the_page_lists_the_questions() {
    let (_, questions) = PAGE.split_once("## Questions\n").unwrap();
    for question in &QUESTIONS {
        assert!(questions.contains(&format!("\n| `{}` | ", question.name)), "{}", question.name);
        assert!(!question.title().is_empty(), "{}", question.name);
        // Statements are separated by semicolons.
        assert!(!question.sql.contains(';'), "{}", question.name);
    }
}

#[test]
fn the_page_lists_the_columns_of_each_table_of_a_dump() {
    let (_, layout) = FORMATS.split_once("## Dumps\n").unwrap();
    let (layout, _) = layout.split_once("\n## Archives\n").unwrap();
    for Table { name, row: meaning, columns } in &DUMP_TABLES {
        let (_, section) = layout.split_once(&format!("\n### {name}\n")).unwrap();
        assert!(section.starts_with(&format!("\nA row is {meaning}.\n")), "{name}");
        assert_eq!(rows(section), columns.iter().map(row).collect::<Vec<_>>(), "{name}");
    }
    assert_eq!(layout.matches("\n### ").count(), DUMP_TABLES.len());
    for question in &DUMP_QUESTIONS {
        assert!(DUMPS.contains(&format!("{}.sql", question.name)), "{}", question.name);
        assert!(!question.title().is_empty(), "{}", question.name);
    }
}
