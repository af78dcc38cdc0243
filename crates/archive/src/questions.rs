//! Questions about an archive, in SQL that is written for DuckDB and Spark alike.
//!
//! The questions read views: one for each table, `settings`, and those in [`VIEWS`]. The views of tables are in DuckDB's
//! dialect; everything else is common to both.

use std::fmt::Write as _;

use crate::schema::{LOOKS, TABLES, Table};

/// A question.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    /// Its name.
    pub name: &'static str,
    /// A query. Its first lines are a comment that says what the rows are.
    pub sql: &'static str,
}

macro_rules! question {
    ($name:literal) => {
        Question { name: $name, sql: include_str!(concat!("../sql/", $name, ".sql")) }
    };
}

/// The questions.
pub const QUESTIONS: [Question; 10] = [
    question!("free"),
    question!("remedies"),
    question!("growth"),
    question!("changes"),
    question!("days"),
    question!("outliers"),
    question!("kills"),
    question!("gems"),
    question!("limits"),
    question!("spare"),
];

/// Views that several questions read, in the order in which they are made.
pub const VIEWS: [&str; 3] = [
    include_str!("../sql/past.sql"),
    include_str!("../sql/latest.sql"),
    include_str!("../sql/trends.sql"),
];

/// Returns the snapshots after [`Settings::as_of_ms`] by machine, which questions leave out.
pub const FUTURE: Question = question!("future");

/// The settings of the questions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// The price of a GiB for a month; `None` if no costs are wanted.
    pub price: Option<f64>,
    /// The time of a deploy, in ms since 1970.
    pub since_ms: Option<u64>,
    /// Later snapshots are left out, in ms since 1970.
    pub as_of_ms: u64,
    /// A process without a snapshot for this time before the latest snapshot has ended.
    pub window_ms: u64,
}

impl Question {
    /// Returns its meaning: the comment.
    #[must_use]
    pub fn title(&self) -> String {
        let lines = self.sql.lines().map_while(|line| line.strip_prefix("-- "));
        lines.collect::<Vec<_>>().join(" ")
    }

    /// Returns true if it reads this table.
    #[must_use]
    pub fn reads(&self, table: &str) -> bool {
        let words: Vec<_> = self.sql.split_whitespace().collect();
        words.windows(2).any(|pair| ["FROM", "JOIN"].contains(&pair[0]) && pair[1] == table)
    }

    /// Returns true if it is about snapshots, not about kills alone.
    #[must_use]
    pub fn reads_looks(&self) -> bool {
        ["past", "latest", "trends"].iter().any(|view| self.reads(view))
    }
}

impl Settings {
    /// Returns the statement that makes the view `settings`.
    #[must_use]
    pub fn view(&self) -> String {
        let number = |value: Option<String>| value.unwrap_or_else(|| "NULL".to_owned());
        format!(
            "CREATE OR REPLACE TEMPORARY VIEW settings AS\nSELECT CAST({} AS DOUBLE) AS price, CAST({} AS BIGINT) AS since_ms, \
             CAST({} AS BIGINT) AS as_of_ms, CAST({} AS BIGINT) AS window_ms\n",
            number(self.price.map(|price| format!("{price:e}"))),
            number(self.since_ms.map(|time| time.to_string())),
            self.as_of_ms,
            self.window_ms
        )
    }
}

/// Returns the statements by which DuckDB, in the folder of an archive, makes a view for each table. A table that has no rows
/// has no folder.
#[must_use]
pub fn duckdb_views(exists: impl Fn(&Table) -> bool) -> String {
    let mut sql = String::new();
    for table in &TABLES {
        let Table { name, .. } = table;
        let columns =
            table.all_columns().map(|it| format!("NULL::{} AS {}", it.kind.sql(), it.name));
        let columns: Vec<_> = columns.collect();
        let none = format!(
            "SELECT {}, NULL::DATE AS dt, NULL::VARCHAR AS service WHERE false",
            columns.join(", ")
        );
        let files = format!(
            "SELECT * FROM read_parquet('{name}/*/*/*.parquet', hive_partitioning = true, hive_types = {{dt: DATE, service: \
             VARCHAR}}"
        );
        let rows = match exists(table) {
            // Files of earlier versions lack columns.
            true if *name == LOOKS.name => {
                format!("{none} UNION ALL BY NAME {files}, union_by_name = true)")
            }
            true => format!("{files})"),
            false => none,
        };
        writeln!(sql, "CREATE VIEW {name} AS {rows};").expect("a string takes all");
    }
    sql
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_name_the_tables_that_they_read() {
        let reading = |table: &str| -> Vec<&str> {
            QUESTIONS.iter().filter(|it| it.reads(table)).map(|it| it.name).collect()
        };
        assert_eq!(reading("causes"), ["free", "changes", "days", "outliers"]);
        assert_eq!(reading("owners"), ["growth"]);
        assert_eq!(reading("remedies"), ["remedies"]);
        assert_eq!(reading("gems"), ["gems"]);
        assert_eq!(reading("kills"), ["kills"]);
        // They see no snapshot of the future.
        assert_eq!(reading("looks"), [""; 0]);
        let others = QUESTIONS.iter().filter(|it| !it.reads_looks()).map(|it| it.name);
        assert!(others.eq(["kills"]));
    }
}
