//! Remarks on an observation of growth by code.

use examine::Note;

use crate::failure::Failure;

/// Returns a remark on an observation as a sentence.
pub(crate) fn sentence(note: Note) -> String {
    let of = |error| Failure::from(error);
    match note {
        Note::NothingObserved => "the program ended before the observation began".into(),
        Note::ProcessEnded(seconds) => format!("the process ended after {seconds} s"),
        Note::Failed(seconds, error) => {
            format!("the observation ended after {seconds} s: {}", of(error))
        }
        Note::NoStacks(pid, error) => {
            format!("the stacks of process {pid} are unknown: {}", of(error))
        }
    }
}
