use formats::{DumpDiff, DumpGroup, DumpSampling, Kept, KeptJudgement, KeptRow};

use crate::path::is_in_module;

/// Adds the lines that made the objects of dumps, where the process traced none: those of objects of the same class that the same root
/// kept.
pub fn add_lines_to_dumps(diff: &mut DumpDiff, kept: &Kept) {
    let Kept { pid, ref command, elapsed_ms, .. } = *kept;
    diff.sampling = Some(DumpSampling { pid, command: command.clone(), elapsed_ms });
    for group in diff.groups.iter_mut().filter(|it| it.line.is_none()) {
        if let Some(row) = row(kept, group) {
            group.samples = row.samples;
            group.made_by = row.lines.clone();
        }
    }
}

/// The row of a group. In files of `ObjectSpace.dump_all`, roots are modules, and one of several constants in a module is not known.
fn row<'a>(kept: &'a Kept, group: &DumpGroup) -> Option<&'a KeptRow> {
    let root = group.root.as_deref()?;
    let is_module = group.path.first().is_some_and(|first| first != root);
    let is_its = |row: &&KeptRow| {
        let its = row.root.as_deref();
        let is_of_root =
            its.is_some_and(|its| its == root || (is_module && is_in_module(its, root)));
        row.judgement == KeptJudgement::Named && row.class == group.class && is_of_root
    };
    let mut rows = kept.rows.iter().filter(is_its);
    rows.next().filter(|_| rows.next().is_none())
}

#[cfg(test)]
mod tests {
    use formats::KeptLine;

    use super::*;

    #[test]
    fn lines_are_those_of_the_same_class_and_root() {
        let line = |number| KeptLine {
            samples: 20,
            method: "Audit#note".into(),
            calls: None,
            path: Some("audit.rb".into()),
            line: Some(number),
        };
        let row = |class: &str, root: &str, judgement, number| KeptRow {
            class: class.into(),
            root: Some(root.into()),
            path: None,
            samples: 20,
            objects_before: 0,
            objects_after: 900,
            bytes: 0,
            judgement,
            lines: vec![line(number)],
        };
        let named = KeptJudgement::Named;
        let rows = vec![
            row("Entry", "Audit::LOG", named, 1),
            row("String", "Audit::LOG", named, 2),
            row("String", "Audit.@texts", named, 3),
            row("Array", "Audit::LOG", KeptJudgement::Passing, 4),
            row("Entry", "Auditor::LOG", named, 5),
        ];
        let kept = Kept { pid: 7, rows, ..Kept::default() };
        let lines_of = |class: &str, root: &str, first: Option<&str>, traced: Option<&str>| {
            let group = DumpGroup {
                class: class.into(),
                line: traced.map(str::to_owned),
                root: Some(root.into()),
                new: Default::default(),
                gone: Default::default(),
                example: None,
                path: first.into_iter().map(str::to_owned).collect(),
                samples: 0,
                made_by: Vec::new(),
            };
            let mut diff = DumpDiff { groups: vec![group], ..DumpDiff::default() };
            add_lines_to_dumps(&mut diff, &kept);
            assert_eq!(diff.sampling.unwrap().pid, 7);
            let group = diff.groups.remove(0);
            assert_eq!(group.samples > 0, !group.made_by.is_empty());
            group.made_by.first().and_then(|it| it.line)
        };
        let ours = |class, root| lines_of(class, root, Some(root), None);
        assert_eq!(
            [ours("Entry", "Audit::LOG"), ours("String", "Audit.@texts")],
            [Some(1), Some(3)]
        );
        // Other classes and roots, a row without a named line, and a module that retains objects itself.
        for (class, root) in
            [("Hash", "Audit::LOG"), ("Entry", "LOG"), ("Array", "Audit::LOG"), ("Entry", "Audit")]
        {
            assert_eq!(ours(class, root), None, "{class} {root}");
        }
        assert_eq!(lines_of("Entry", "Audit::LOG", None, Some("a.rb:9")), None);
        // Files of dump_all: two constants of the module keep strings.
        let of_module = |class| lines_of(class, "Audit", Some("vm"), None);
        assert_eq!([of_module("Entry"), of_module("String")], [Some(1), None]);
    }
}
