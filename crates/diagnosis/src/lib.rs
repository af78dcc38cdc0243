#![doc = include_str!("../README.md")]

mod advice;
mod comparison;
mod deployment;
mod family;
mod family_growth;
mod fit;
mod fix;
mod group;
mod growth;
mod kept;
mod made_by;
mod path;
mod place;
mod series;
mod setting;
mod sizes;
mod stability;
mod stable;
mod statistics;
mod task;
mod trim;
mod variables;
mod verdict;
mod who;

pub use advice::{advise, against, keeps_most_free_slots, keeps_native_threads};
pub use comparison::{Workload, compare};
pub use family::{FamilyFacts, FamilyFrames, GroupFacts, MemberAccount, family};
pub use family_growth::family_growth;
pub use fit::{RecordedWorkers, fit};
pub use fix::{BACKGROUND_THREAD, GEM, JEMALLOC, NATIVE_PRESSURE, TWO_ARENAS, Variable, steps};
pub use group::{add_group, is_much_in_no_process, report_group};
pub use growth::{
    MIN_LISTED, growing_part, growth, has_more_objects, is_defined_again, is_in_free_memory,
    is_native_in_free_memory, kept_besides, least_growth, native_besides, native_blocks_of_verdict,
    native_owner_of_verdict, open_native_blocks, root_of_most, rss_growth, slow_root_besides,
    steady_root_besides, totals,
};
pub use kept::{
    KeptSampling, RetainedObjects, add_lines, add_lines_to_dumps, kept, retained_objects,
};
pub use made_by::{made_by, made_pages, name_code, touched_by};
pub use path::{has_step, is_in_module};
pub use place::{ContainerIds, container_ids, container_of_log, role, service};
pub use series::{Basis, LatestFigures, MemorySeries, growth_per_minute, top_causes};
pub use setting::{Environment, Setting};
pub use stability::stability;
pub use stable::{Early, MIN_STRETCHES, Shape, Slope, StablePoint, Teeth};
pub use statistics::median;
pub use trim::{trim_expectation, trim_watch};
pub use variables::VARIABLES;
pub use verdict::{
    FREE, MIN_BYTES, MIN_SHARE, Majority, NativeHolder, Part, are_kept_by_extensions,
    is_of_extensions, judge, large_in_parts, large_room, large_root, large_table, managed, mapper,
    native_holder, retainer_of_mapper, retaining_few, root, uncollected_garbage, useless,
    user_of_interpreter, was_garbage_alive,
};
pub use who::who;

use formats::{Capture, Report};
use ledger::Ledger;

/// Returns the report on a ledger, with the verdict and advice.
#[must_use]
pub fn report(ledger: &Ledger, capture: Capture) -> Report {
    let verdict = judge(ledger);
    let advice = advise(ledger, verdict.cause);
    Report::new(ledger, capture, deployment::deployment(ledger), verdict, advice)
}
