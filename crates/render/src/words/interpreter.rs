use formats::Report;
use ledger::{Cause, InterpreterKind, Size};

/// Returns the explanation of a kind of the interpreter's memory.
#[must_use]
pub const fn interpreter_kind(kind: InterpreterKind) -> &'static str {
    match kind {
        InterpreterKind::Bytecode => "compiled code, with its inline caches",
        InterpreterKind::Methods => "method entries and definitions",
        InterpreterKind::Caches => "call sites, and caches of methods and constants",
        InterpreterKind::Classes => "classes and modules, with their tables",
        InterpreterKind::Symbols => "tables of symbols and of deduplicated strings",
        InterpreterKind::ObjectIds => "tables of object ids",
        InterpreterKind::GenericVariables => {
            "the table of instance variables of strings, arrays and the like"
        }
        InterpreterKind::Finalizers => "the table of finalizers",
        InterpreterKind::GcProfile => "the records of GC::Profiler",
        InterpreterKind::VmStacks => "the VM stack of the main thread",
        InterpreterKind::Other => "the virtual machine, environments of blocks, and other tables",
    }
}

/// The largest kind of the interpreter's memory, as the end of a clause.
pub(crate) fn largest_part(report: &Report) -> String {
    let kinds = report.interpreter.iter().flat_map(|it| &it.kinds);
    let Some(largest) = kinds.max_by_key(|part| part.resident_bytes) else {
        return ": classes, methods, bytecode and its tables".into();
    };
    let row = report.causes.iter().find(|row| row.cause == Cause::RubyVm);
    let size = Size(largest.resident_bytes);
    let kind = match largest.kind {
        // It may be any of these, or none. The evidence has the owners.
        InterpreterKind::Other => "of no kind of their own",
        kind => interpreter_kind(kind),
    };
    if largest.resident_bytes > row.map_or(0, |row| row.bytes) / 2 {
        format!(", most of them ({size}) {kind}")
    } else {
        format!(", {size} of them {kind}")
    }
}
