use ledger::InterpreterKind;

/// Returns the explanation of a kind of the interpreter's memory.
#[must_use]
pub const fn interpreter_kind(kind: InterpreterKind) -> &'static str {
    match kind {
        InterpreterKind::Bytecode => "compiled code, with its inline caches",
        InterpreterKind::Methods => "method entries and definitions",
        InterpreterKind::Caches => "call sites, and caches of methods and constants",
        InterpreterKind::Classes => "classes and modules, with their tables",
        InterpreterKind::Symbols => "tables of symbols and of deduplicated strings",
        InterpreterKind::Other => "the virtual machine, the GC's records, and other tables",
    }
}
