use diagnosis::{root, user_of_interpreter};
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

/// The step against a table of the interpreter, and the calls to use instead.
pub(super) fn limit_table(
    table: InterpreterKind,
    size: Size,
    report: &Report,
) -> (String, &'static str) {
    // Up to Ruby 3.2, maps of weak references define them to learn that an object is gone (wmap_aset of gc.c).
    let version = report.process.ruby_version.as_deref();
    let has_weak_finalizers = version.is_some_and(|version| version < "3.3");
    match table {
        InterpreterKind::ObjectIds => (
            format!(
                "Call object_id of fewer objects: each object of which it was called has entries in tables, which take {size}."
            ),
            "compare_by_identity for a Hash, instead of keys from object_id",
        ),
        InterpreterKind::Symbols => (
            format!(
                "Make fewer symbols: {size} are names that the interpreter's table of symbols retains, and the table. A name \
                 that a method has had stays for ever."
            ),
            "strings instead of to_sym and intern, and no names from input for define_method, instance_variable_set or Thread#[]=",
        ),
        InterpreterKind::GenericVariables => (
            format!(
                "Set fewer instance variables on strings, arrays and objects of C extensions: a table has them, and takes {size}."
            ),
            "a class of the program's own, instead of instance_variable_set on a String or an Array",
        ),
        InterpreterKind::Finalizers => (
            format!(
                "Define fewer finalizers{}: the table with one entry for each object, and its entries, take {size}.",
                if has_weak_finalizers {
                    ", or keep fewer WeakRefs and fewer entries of ObjectSpace::WeakMap, which have some in this Ruby"
                } else {
                    ""
                }
            ),
            "a method that closes, and ObjectSpace.undefine_finalizer in it",
        ),
        InterpreterKind::GcProfile => (
            format!(
                "Clear the records of GC::Profiler, which take {size}: once it is enabled, it keeps one of each collection."
            ),
            "GC::Profiler.clear at times, or GC::Profiler.disable and then clear; GC.stat has totals",
        ),
        InterpreterKind::Bytecode
        | InterpreterKind::Methods
        | InterpreterKind::Caches
        | InterpreterKind::Classes
        | InterpreterKind::VmStacks
        | InterpreterKind::Other => (
            format!("Find the code that fills this memory, which takes {size}."),
            "`rbloat who`, while it grows",
        ),
    }
}

/// The step against the tables of symbols and of deduplicated strings if most of them is room.
pub(super) fn have_fewer_symbols(size: Size) -> (String, &'static str) {
    (
        format!(
            "Have fewer symbols and deduplicated strings at the same time: the interpreter's tables of them take {size}, most of it room \
             for entries that are gone."
        ),
        "input that is read in parts: the Strings that are keys of Hashes are deduplicated, and so is -string",
    )
}

/// The largest kind of the interpreter's memory, as the end of a clause.
pub(crate) fn largest_part(report: &Report) -> String {
    let kinds = report.interpreter.iter().flat_map(|it| &it.kinds);
    let Some(largest) = kinds.max_by_key(|part| part.resident_bytes) else {
        return ": classes, methods, bytecode and its tables".into();
    };
    if largest.kind == InterpreterKind::Other
        && let Some((path, class, bytes)) = user_of_interpreter(report)
    {
        let size = Size(bytes);
        return format!(
            ", most of them ({size}) parts of objects of class {class}, which {} retains",
            root(path)
        );
    }
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
