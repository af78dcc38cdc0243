/// The place of the agent's messages.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    /// Prints a line about something that was done.
    pub say: fn(&str),
    /// Prints a line about something that could not be done.
    pub complain: fn(&str),
    /// Returns the sentence on a failed examination, with what the user can do.
    pub explain: fn(&examine::Error) -> String,
}

/// For tests.
#[cfg(test)]
pub(crate) const SILENT: Log =
    Log { say: |_| {}, complain: |_| {}, explain: |error| error.to_string() };
