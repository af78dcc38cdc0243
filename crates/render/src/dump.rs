use std::path::Path;

use ledger::Count;
use linux::one_line;

/// The summary of a dump that was saved: the numbers of objects, of references, and of slots that could not be read.
#[must_use]
pub fn saved_dump(counts: [u64; 3], path: &Path, values: bool) -> String {
    let [objects, references, unread_slots] = counts;
    let contents = match values {
        true => {
            "The dump has the texts of strings, so keep it as secret as the memory of the process."
        }
        false => {
            "The dump has addresses, sizes, and names of classes, constants, variables, methods and files, but no texts of strings."
        }
    };
    let mut text = format!(
        "{} objects with {} references saved in {}\n{contents}\n",
        Count(objects),
        Count(references),
        one_line(&path.display().to_string()),
    );
    if unread_slots > 0 {
        text += &format!(
            "Incomplete: {} slots are swapped out and were not read.\n",
            Count(unread_slots)
        );
    }
    text
}
