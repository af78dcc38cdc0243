use formats::DominatorRow;
use ledger::Count;

/// Returns the name of a dominator, as a row of the tree shows it.
#[must_use]
pub fn dominator(row: &DominatorRow) -> String {
    let address = || row.address.as_deref().unwrap_or_default();
    match (row.kind.as_str(), row.count) {
        ("thread", _) => match &row.method {
            Some(method) => {
                format!("{} {} in {method}, its stack and variables", row.name, address())
            }
            None => format!("{} {}, its stack and variables", row.name, address()),
        },
        ("memory", _) => format!("memory of {}, retained by several roots", row.name),
        ("objects" | "internal", 1) => match &row.path {
            Some(path) => format!("{} {}, shortest path: {path}", row.name, address()),
            None => format!("{} {}", row.name, address()),
        },
        ("objects" | "internal", count) => match &row.path {
            Some(path) => {
                format!("{} × {}, shortest path to the largest: {path}", row.name, Count(count))
            }
            None => format!("{} × {}", row.name, Count(count)),
        },
        _ => row.name.clone(),
    }
}

/// Returns a short name of a dominator, for a box in a picture.
#[must_use]
pub fn dominator_label(row: &DominatorRow) -> String {
    match (row.kind.as_str(), row.count) {
        ("memory", _) => format!("memory of {}", row.name),
        (_, 0 | 1) => row.name.clone(),
        (_, count) => format!("{} × {}", row.name, Count(count)),
    }
}
