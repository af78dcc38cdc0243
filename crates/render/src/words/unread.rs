use formats::{CaptureMethod, Unread};

/// Returns the reason why the memory of a process was not read, as a clause, and the way to have it read.
#[must_use]
pub fn unread(unread: &Unread) -> String {
    let pause = match unread.method {
        CaptureMethod::Fork => "a forked copy would pause the process",
        CaptureMethod::Freeze | CaptureMethod::Core => "the process would be paused",
    };
    format!(
        "{pause} for about {:.0} ms, and the limit is {:.0} ms. Allow more with --max-pause {}ms",
        unread.expected_ms, unread.max_pause_ms, unread.enough_ms
    )
}
