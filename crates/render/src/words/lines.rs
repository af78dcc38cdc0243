//! The lines of code that made objects, in words.

use formats::{KeptChange, KeptLine};
use ledger::Gem;

/// "made by Audit#note (/srv/app/audit.rb:8), about 35 of 39 samples"; `None` if no objects were sampled between the snapshots.
pub(crate) fn made_by(kept: &KeptChange) -> Option<String> {
    let samples = kept.samples?;
    Some(match kept.made_by.first() {
        Some(line) => {
            // Samples of one class are too few then. Other objects have other lines.
            let of = match (kept.class.is_none() || kept.samples_of_class, &kept.sampled_class) {
                (true, _) => String::new(),
                (false, None) => " of all it keeps".into(),
                (false, Some(class)) => format!(" of all it keeps, most of them of {class}"),
            };
            made_by_line(line, samples) + &of
        }
        None if samples == 0 => "no samples".into(),
        None if samples == 1 => "1 sample, too few to name a line".into(),
        None => format!("{samples} samples, too few to name a line"),
    })
}

/// "made by Audit#note (/srv/app/audit.rb:8), about 35 of 39 samples".
pub(crate) fn made_by_line(line: &KeptLine, samples: u64) -> String {
    format!("made by {}, about {} of {samples} samples", place(line), line.samples)
}

/// "Audit#note → Array.new (/srv/app/audit.rb:8)". The stack of a Fiber of a gem has lines of the gem only: who resumes it made the gem
/// make the object.
pub(crate) fn place(line: &KeptLine) -> String {
    let KeptLine { method, calls, path, line, .. } = line;
    let mut text = method.clone();
    if let Some(calls) = calls {
        text += &format!(" → {calls}");
    }
    let mut text = in_file(text, path.as_deref(), *line);
    if path.as_deref().is_some_and(|path| Gem::of(Some(path)).is_library()) {
        text += ", without a line of the application on the stack";
    }
    text
}

/// Adds the file and line of code, if they are known.
pub(crate) fn in_file(code: String, path: Option<&str>, line: Option<u64>) -> String {
    match (path, line) {
        (Some(path), Some(line)) => code + &format!(" ({path}:{line})"),
        (Some(path), None) => code + &format!(" ({path})"),
        (None, _) => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Made in CSV::Parser#start_row": the parser runs in a Fiber, and the line that keeps its rows was not on the stack.
    #[test]
    fn a_line_of_a_gem_has_no_caller_in_the_application() {
        let at = |path: &str| {
            let path = Some(path.into());
            let method = "CSV::Parser#start_row".into();
            place(&KeptLine { samples: 12, method, calls: None, path, line: Some(9) })
        };
        let alone = ", without a line of the application on the stack";
        for gem in
            ["/usr/lib/ruby/3.3.0/csv/parser.rb", "/usr/lib/ruby/gems/3.4.0/gems/csv-3.3.2/p.rb"]
        {
            assert_eq!(at(gem), format!("CSV::Parser#start_row ({gem}:9){alone}"));
        }
        for own in ["/srv/app/csv.rb", "(eval)", "(eval at /srv/app/csv.rb:3)"] {
            assert_eq!(at(own), format!("CSV::Parser#start_row ({own}:9)"));
        }
    }
}
