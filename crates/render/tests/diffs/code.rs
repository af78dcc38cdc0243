//! Verdicts on code and on other memory of the interpreter.

use diagnosis::growth;
use formats::{DiffKind, Doubt, FileCode, Interpreter, InterpreterPart, KeptBy, Report};
use ledger::{Cause, InterpreterKind};
use render::words::diff_verdict;

use super::{MIB, grow, look};

/// "The program still loads code, defines classes or methods again and again": these were records of GC::Profiler.
#[test]
fn records_of_the_gc_that_grow_are_no_code() {
    let growing = |kind| {
        [1, 2, 3].map(|hour| {
            look(hour, |report| {
                grow(report, "ruby.vm", hour * 20 * MIB);
                let part = InterpreterPart {
                    kind,
                    objects: 0,
                    slot_bytes: 0,
                    resident_bytes: hour * 20 * MIB,
                };
                report.interpreter =
                    Some(Interpreter { kinds: vec![part], gems: None, files: None });
            })
        })
    };
    let of_gc = growth(&growing(InterpreterKind::Other));
    assert_eq!(of_gc.verdict.doubt, Some(Doubt::Unproven), "{:?}", of_gc.verdict);
    let words = diff_verdict(&of_gc).summary;
    assert!(words.contains("most of it the virtual machine, environments"), "{words}");
    assert!(!words.contains("loads code"), "{words}");
    let of_code = growth(&growing(InterpreterKind::Methods));
    assert_eq!(of_code.verdict.doubt, Some(Doubt::CodeIsLoaded), "{:?}", of_code.verdict);
}

/// "Code leak … Medium confidence", of evaluated code that nothing keeps: the objects of all code stay, as long as no garbage is collected.
#[test]
fn evaluated_code_that_nothing_keeps_is_no_leak() {
    let kind = |garbage_of: fn(u64) -> u64| {
        let looks = [1, 2, 3].map(|hour| look(hour, |it| evaluate(it, 4_000 * hour, garbage_of)));
        growth(&looks).verdict.kind
    };
    assert_eq!(kind(|_| 0), DiffKind::CodeLeak);
    assert_eq!(kind(|iseqs| iseqs - 100), DiffKind::Growth);
}

/// Adds iseqs of one file, with 2 KiB each. A part of them is garbage.
fn evaluate(report: &mut Report, iseqs: u64, garbage_of: fn(u64) -> u64) {
    let bytes = iseqs * 2 * 1024;
    grow(report, "ruby.vm", bytes);
    let ruby = report.ruby.as_mut().unwrap();
    let mut class = ruby.classes[0].clone();
    class.name = "(imemo_iseq)".into();
    (class.objects, class.slot_bytes, class.malloc_bytes) = (iseqs, iseqs * 40, bytes);
    ruby.classes.push(class);
    let owners = report.owners.as_mut().unwrap();
    let mut owner = owners[0].clone();
    (owner.owner, owner.kind) = ("(imemo_iseq)".into(), "internal".into());
    owner.cause = Some(Cause::RubyVm);
    owner.objects = iseqs;
    (owner.slot_bytes, owner.exclusive_bytes, owner.shared_bytes) = (iseqs * 40, bytes, 0);
    owner.resident_bytes = None;
    let garbage = garbage_of(iseqs);
    let kept = |path: Option<&str>, objects| KeptBy {
        path: path.map(Into::into),
        objects,
        bytes: objects * 2 * 1024,
        other_path: None,
        shared: None,
    };
    owner.kept_by = vec![kept(None, garbage), kept(Some("Rules → (imemo_iseq)"), iseqs - garbage)];
    owners.push(owner);
    let file = FileCode {
        path: Some("rules.rb".into()),
        gem: "(application)".into(),
        iseqs,
        slot_bytes: iseqs * 40,
        resident_bytes: bytes,
    };
    let part = InterpreterPart {
        kind: InterpreterKind::Bytecode,
        objects: iseqs,
        slot_bytes: iseqs * 40,
        resident_bytes: bytes,
    };
    report.interpreter =
        Some(Interpreter { kinds: vec![part], gems: None, files: Some(vec![file]) });
}
