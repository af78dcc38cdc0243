//! The lines of code that made objects, in words.

use formats::{KeptChange, KeptLine, RootUses, WhoFrame};
use ledger::{Count, Gem};

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

/// The lines that are named; of more, their number.
const MAX_USES: usize = 2;

/// "EventBus::SUBSCRIBERS is used in Audit#note (/srv/app/audit.rb:8)", or "@rows of Registry is used in …": of the root of a path, or of a
/// variable on it. `None` if no such code is known.
pub(crate) fn is_used_in(path: &str, all: &[RootUses]) -> Option<String> {
    let uses = RootUses::of_path(path, all)?;
    let subject = match uses.variable() {
        Some((class, name)) => format!("{name} of {class}"),
        None => uses.root.clone(),
    };
    Some(format!("{subject} is {}", used_in(uses)?))
}

/// "used in Audit#note (/srv/app/audit.rb:8)", and the number of further lines.
pub(crate) fn used_in(uses: &RootUses) -> Option<String> {
    let place = |it: &WhoFrame| in_file(it.method.clone(), it.path.as_deref(), it.line);
    let mut named: Vec<String> = uses.places.iter().take(MAX_USES).map(place).collect();
    match uses.lines.saturating_sub(named.len() as u64) {
        0 => {}
        1 => named.push("1 other line".into()),
        others => named.push(format!("{} other lines", Count(others))),
    }
    let last = named.pop()?;
    let first = match &named[..] {
        [] => String::new(),
        first => format!("{} and ", first.join(", ")),
    };
    Some(format!("used in {first}{last}"))
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

    #[test]
    fn of_many_lines_the_first_are_named() {
        let place = |line| WhoFrame {
            method: "Audit#note".into(),
            path: Some("/srv/app/audit.rb".into()),
            line: Some(line),
        };
        let words = |root: &str, lines: u64, places: &[u64]| {
            let places = places.iter().map(|&line| place(line)).collect();
            is_used_in(
                "LOG → Audit → Array → String",
                &[RootUses { root: root.into(), lines, places }],
            )
        };
        let named = "Audit#note (/srv/app/audit.rb:8)";
        assert_eq!(words("LOG", 1, &[8]), Some(format!("LOG is used in {named}")));
        let two = "@items of Audit is used in Audit#note (/srv/app/audit.rb:8) and Audit#note (/srv/app/audit.rb:9)";
        assert_eq!(words("Audit#@items", 2, &[8, 9]).as_deref(), Some(two));
        let many = words("LOG", 12, &[8, 9, 10, 11]).unwrap();
        assert!(
            many.ends_with("audit.rb:8), Audit#note (/srv/app/audit.rb:9) and 10 other lines"),
            "{many}"
        );
        assert_eq!(words("OTHER", 1, &[8]), None);
    }

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
