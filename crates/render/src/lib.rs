#![doc = include_str!("../README.md")]

mod answers;
mod comparison;
mod diff;
mod draw;
mod dump;
mod explain;
mod family;
mod family_diff;
mod files;
mod fit;
mod fix;
mod interpreter;
mod kept;
mod made_by;
mod map;
mod metrics;
mod monitoring;
mod node_processes;
mod otlp;
mod otlp_profile;
mod page;
mod pins;
mod plain;
mod plot;
mod pprof;
mod processes;
mod push;
mod ractors;
mod report;
mod rows;
mod sample;
mod stable;
mod stacks;
mod text;
mod threads;
mod top;
mod tree;
mod trim;
mod waste;
mod who;
mod why;
pub mod words;

pub use answers::{Answer, Row, answers, duckdb_mark};
pub use comparison::{comparison, comparison_on_terminal, recommendation};
pub use diff::diff;
pub use dump::{dump_diff, dump_diff_summary, saved_dump};
pub use explain::{explained_words, explanation, explanations, explanations_summary};
pub use family::{family, family_summary, saved_family};
pub use family_diff::{family_diff, family_diff_summary};
pub use fit::{fit, fit_html, fit_png, fit_summary, fit_svg};
pub use fix::fix;
pub use kept::{kept, kept_summary, no_lines};
pub use map::{PageColours, map_html, map_png};
pub use metrics::{MetricsFormat, metrics, metrics_request};
pub use monitoring::{alert_rules, dashboard};
pub use node_processes::node_processes;
pub use otlp::{SavedSnapshot, log_request};
pub use page::report_html;
pub use plain::plain;
pub use plot::Plot;
pub use pprof::{Profile, owners_pprof, owners_profile};
pub use processes::{processes, processes_summary};
pub use push::ProfileServer;
pub use report::{TextOptions, report, saved_snapshot, written};
pub use sample::{duration, fewer_searches, recording_end, sample, sample_view};
pub use stable::stable_point;
pub use stacks::Stacks;
pub use text::{bar, clipped, quoted, wrapped};
pub use top::{
    TopCauses, TopOrder, TopProcess, top_detail, top_head, top_help, top_keys, top_row, top_title,
};
pub use tree::trees;
pub use trim::{
    family_trim, family_trim_summary, trim_of_member, trim_outcome, trim_prediction, trim_summary,
    trim_watch,
};
pub use who::{who, who_summary};
pub use why::{why, why_summary};
