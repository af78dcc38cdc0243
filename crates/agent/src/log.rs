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

impl Log {
    /// Returns the sentence on the failed examination of one of several processes: it names the process once.
    pub(crate) fn about(&self, pid: i32, error: &examine::Error) -> String {
        let (message, name) = ((self.explain)(error), format!("process {pid}"));
        if message.contains(&name) { message } else { format!("{name}: {message}") }
    }
}

/// For tests.
#[cfg(test)]
pub(crate) const SILENT: Log =
    Log { say: |_| {}, complain: |_| {}, explain: |error| error.to_string() };
