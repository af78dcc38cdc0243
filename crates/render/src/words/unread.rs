use formats::{CaptureMethod, NoCopy, Unread};

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

/// Returns what a user can do about a forked copy that was not made, as the rest of the sentence with the reason.
#[must_use]
pub fn no_copy(no_copy: NoCopy) -> &'static str {
    match no_copy {
        NoCopy::NotSignalled => "; in Docker: --cap-add KILL",
        NoCopy::UnknownLimit => "; in a container: mount /sys/fs/cgroup of the host",
    }
}
