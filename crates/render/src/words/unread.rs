use formats::{CaptureMethod, NoCopy, Unread};

/// Returns the reason why the memory of a process was not read, as a clause, and the way to have it read.
#[must_use]
pub fn unread(unread: &Unread) -> String {
    let pause = match unread.method {
        CaptureMethod::Fork => "a forked copy would pause the process",
        CaptureMethod::Freeze | CaptureMethod::Core => "the process would be paused",
    };
    let (expected, limit) = (unread.expected_ms, unread.max_pause_ms);
    // The estimate was lower, and the pause was ended at the limit.
    let longer = match expected.round() > limit.round() {
        true => format!("for about {expected:.0} ms, and the limit is {limit:.0} ms"),
        false => format!("for more than {limit:.0} ms, which is the limit"),
    };
    format!("{pause} {longer}. Allow more with --max-pause {}ms", unread.enough_ms)
}

/// Returns what a user can do about a forked copy that was not made, as the rest of the sentence with the reason.
#[must_use]
pub fn no_copy(no_copy: NoCopy) -> &'static str {
    match no_copy {
        NoCopy::NotSignalled => "; in Docker: --cap-add KILL",
        NoCopy::UnknownLimit => "; in a container: mount /sys/fs/cgroup of the host",
        NoCopy::NoRoom => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Would be paused for about 52 ms, and the limit is 52 ms".
    #[test]
    fn a_pause_that_was_ended_at_the_limit_is_longer_than_it() {
        let words = |expected_ms, max_pause_ms| {
            unread(&Unread {
                method: CaptureMethod::Freeze,
                expected_ms,
                max_pause_ms,
                enough_ms: 200,
            })
        };
        let told = "the process would be paused for more than 52 ms, which is the limit. Allow more with --max-pause 200ms";
        assert_eq!(words(52.1, 52.1), told);
        assert!(words(81.0, 52.1).contains("for about 81 ms, and the limit is 52 ms."));
    }
}
