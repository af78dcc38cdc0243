//! Changes of the memory that objects have and do not use.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use formats::{Report, WasteChange, WasteGroup};
use ledger::{MAX_WASTE_GROUPS, WasteKind};

use super::changes::{by_key, series};
use crate::path::root_of;

/// The maximum number of rows in a diff.
const MAX_ROWS: usize = 20;

/// The groups that a report lists.
fn groups(report: &Report) -> impl Iterator<Item = &WasteGroup> {
    report.waste.iter().flat_map(|it| &it.groups)
}

/// Returns the groups of objects by the change of their unused memory, the largest first. Reports list the largest groups only, so a group
/// is left out if it may have been too small for one of them.
pub(super) fn waste(reports: &[&Report]) -> Vec<WasteChange> {
    let key = |group: &WasteGroup| {
        (group.row.kind.name(), group.class.clone(), root_of(&group.path).to_owned())
    };
    let rows = by_key(
        reports,
        |report| groups(report).map(|group| (key(group), &group.row)).collect(),
        |numbers, row: &formats::WasteRow| {
            let figures = [row.objects, row.bytes, row.used_bytes, row.unused_bytes];
            for (number, figure) in numbers.iter_mut().zip(figures) {
                *number = number.saturating_add(figure);
            }
        },
        4,
    );
    let is_known = |wanted: &_| {
        reports.iter().all(|report| {
            let groups = report.waste.as_ref().map(|it| &it.groups);
            groups.is_some_and(|groups| {
                groups.len() < MAX_WASTE_GROUPS || groups.iter().any(|it| key(it) == *wanted)
            })
        })
    };
    // A path may have become longer.
    let mut paths = BTreeMap::new();
    for report in reports {
        paths.extend(groups(report).map(|group| (key(group), group)));
    }
    let mut changes: Vec<WasteChange> = rows
        .into_iter()
        .filter(|(key, _)| is_known(key))
        .filter_map(|(key, numbers)| {
            let [objects, bytes, used_bytes, unused_bytes] = series(&numbers);
            let WasteGroup { class, path, row } = paths.get(&key)?;
            let (class, path, kind): (_, _, WasteKind) = (class.clone(), path.clone(), row.kind);
            Some(WasteChange { kind, class, path, objects, bytes, used_bytes, unused_bytes })
        })
        .collect();
    changes.retain(|it| it.unused_bytes.change != 0);
    changes.sort_by_key(|it| Reverse(it.unused_bytes.change.unsigned_abs()));
    changes.truncate(MAX_ROWS);
    changes
}
