//! The lines of the program that set constants and define classes.

use formats::{PlaceRow, Report};

/// A sentence that names the line of the constant with which a path begins, or of the class whose variable does, or else that of the class
/// of the objects. Nothing if neither is known.
pub(super) fn place_of(report: &Report, path: Option<&str>, class: &str) -> String {
    let is_set = |place: &PlaceRow| path.is_some_and(|path| root_of(path) == place.name);
    let of_root = path.and_then(|path| PlaceRow::of_root(&report.places, root_of(path)));
    let place = of_root.or_else(|| PlaceRow::of_root(&report.places, class));
    let sentence = |place: &PlaceRow| {
        let verb = if is_set(place) { "set" } else { "defined" };
        format!(" {} is {verb} in {}.", place.name, place.line())
    };
    place.map_or_else(String::new, sentence)
}

/// The line of the constant or class with which a path begins; nothing if that is not known.
pub(crate) fn line_of_root(report: &Report, path: &str) -> String {
    PlaceRow::of_root(&report.places, root_of(path)).map_or_else(String::new, PlaceRow::line)
}

fn root_of(path: &str) -> &str {
    path.split(" → ").next().unwrap_or(path)
}
