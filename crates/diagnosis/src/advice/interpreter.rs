//! Steps against the interpreter's memory: classes, code and tables.

use formats::{Action, Advice, LargeGem};
use ledger::{Cause, InterpreterKind, Ledger, OwnerKind, Retainer, percent};

use super::objects::{
    code_of_root, release, release_objects, retaining_most, retaining_most_bytes,
};
use super::stacks::{recurse_less, vm_stack_is_larger};
use super::worth::{is_main, is_worth, step};
use crate::path::{ARROW, class_of, class_of_hidden, is_in_containers, root_of};
use crate::verdict::is_behind_object;

/// The least bytecode of a gem that is worth loading later, in bytes and in percent of RSS.
const MIN_CODE_BYTES: u64 = 4 << 20;
const MIN_CODE_SHARE: f64 = 2.0;
/// Gems that are named, at most.
const MAX_GEMS: usize = 3;

/// The steps against the interpreter's memory. The first one is against its largest part if this is the verdict's memory. Otherwise its
/// classes and gems are what a program needs, unless an object retains most classes.
pub(super) fn against_interpreter(ledger: &Ledger, is_verdict: bool) -> Vec<Option<Advice>> {
    use InterpreterKind::{Bytecode, Classes, Methods, VmStacks};
    let kinds = ledger.interpreter.iter().flat_map(|it| &it.kinds);
    let largest = kinds.max_by_key(|part| part.size.resident_bytes).map(|part| part.kind);
    let recurse_less = recurse_less(ledger).filter(|_| vm_stack_is_larger(ledger));
    if !is_verdict {
        let is_behind_object = |it: &Advice| match &it.action {
            Action::ReleaseObjects { path, .. } => path.as_deref().is_some_and(is_behind_object),
            _ => false,
        };
        return vec![
            release_classes(ledger).filter(is_behind_object),
            limit_table(ledger),
            have_fewer_symbols(ledger),
            define_code_once(ledger),
            recurse_less,
        ];
    }
    let mut steps = match largest {
        Some(Classes) => {
            vec![release_classes(ledger), define_code_once(ledger), load_less_code(ledger)]
        }
        Some(Bytecode | Methods) => {
            let classes = release_classes(ledger);
            // Most methods may be those that a gem defines for the classes while the program runs.
            let bytes = |it: &Advice| match it.action {
                Action::ReleaseObjects { bytes, .. } => bytes,
                _ => 0,
            };
            let are_most = 2 * classes.as_ref().map_or(0, bytes) > ledger.causes[Cause::RubyVm];
            match are_most {
                true => vec![classes, release_scripts(ledger), define_code_once(ledger)],
                false => vec![
                    release_scripts(ledger),
                    define_code_once(ledger),
                    classes,
                    load_less_code(ledger),
                ],
            }
        }
        _ => vec![
            limit_table(ledger),
            have_fewer_symbols(ledger),
            release_users(ledger),
            release_classes(ledger),
            define_code_once(ledger),
        ],
    };
    steps.insert(if largest == Some(VmStacks) { 0 } else { steps.len() }, recurse_less);
    steps
}

/// The tables that grow with what the program does, and not with its code.
fn limit_table(ledger: &Ledger) -> Option<Advice> {
    use InterpreterKind::{Finalizers, GcProfile, GenericVariables, ObjectIds};
    let interpreter = ledger.interpreter.as_ref()?;
    // Of symbols and deduplicated strings, only those that the table of symbols retains can be fewer.
    let tables = [ObjectIds, GenericVariables, Finalizers, GcProfile];
    let table = tables.into_iter().max_by_key(|table| interpreter.resident_bytes(*table))?;
    let bytes = interpreter.resident_bytes(table);
    // The same step with the entries counts more.
    let is_there = release(ledger)
        .is_some_and(|it| matches!(it.action, Action::LimitTable { table: of, .. } if of == table));
    (is_worth(ledger, bytes) && !is_there)
        .then(|| step(Action::LimitTable { table, bytes, is_room: false }))
}

/// The tables of symbols and of deduplicated strings if most of them is room for entries that are gone: after a burst, a table keeps it until
/// as many new entries were made.
fn have_fewer_symbols(ledger: &Ledger) -> Option<Advice> {
    /// More bytes than the tables have for one string or symbol: entries in up to three tables of which each has at most four times the
    /// entries that are in use, and bins.
    const MAX_ENTRY_BYTES: u64 = 512;
    let table = InterpreterKind::Symbols;
    let bytes = ledger.interpreter.as_ref()?.resident_bytes(table);
    let objects = &ledger.ruby.as_ref()?.objects;
    let entries = ["T_STRING", "T_SYMBOL"].map(|kind| objects.get(kind).copied().unwrap_or(0));
    let used = entries.iter().sum::<u64>().saturating_mul(MAX_ENTRY_BYTES);
    (is_worth(ledger, bytes) && used < bytes / 2)
        .then(|| step(Action::LimitTable { table, bytes, is_room: true }))
}

/// Bytecode of one name that takes so much was probably compiled many times: a file with 16 MiB of it would have some 50,000 lines. So was
/// that of one class or module, or of the blocks in one list, if each time it got another name.
fn define_code_once(ledger: &Ledger) -> Option<Advice> {
    let of_file = || {
        let files = ledger.interpreter.as_ref()?.files.as_ref()?;
        let largest = files.iter().find(|file| file.path.is_some())?;
        Some((largest.path.clone()?, largest.size.objects, largest.size.weight_bytes()))
    };
    let of_module = || {
        let iseqs = ledger.owners.iter().find(|owner| owner.name == "(imemo_iseq)")?;
        let most = retaining_most(iseqs)?;
        let path = most.path.as_deref()?;
        if is_behind_object(path) && !is_in_containers(path) {
            return None;
        }
        let root = root_of(path);
        (!root.starts_with('(')).then(|| (root.to_owned(), most.objects, most.bytes))
    };
    let is_large = |&(_, _, bytes): &(String, u64, u64)| is_main(ledger, bytes);
    let (path, iseqs, bytes) =
        of_file().filter(is_large).or_else(|| of_module().filter(is_large))?;
    Some(step(Action::DefineCodeOnce { path, iseqs, bytes }))
}

/// The compiled scripts that a program keeps. Other objects with most of the bytecode, such as a router with its blocks, are the program
/// itself.
fn release_scripts(ledger: &Ledger) -> Option<Advice> {
    release_users(ledger).filter(|it| match &it.action {
        Action::ReleaseObjects { class, .. } => class.starts_with("RubyVM::"),
        _ => false,
    })
}

/// Objects of the program that retain most of a kind of the interpreter's objects: syntax trees belong to their nodes.
fn release_users(ledger: &Ledger) -> Option<Advice> {
    let hidden = ledger.owners.iter().filter(|owner| {
        owner.cause == Cause::RubyVm
            && owner.kind == OwnerKind::Internal
            && !owner.retainers.is_empty()
    });
    let hidden = hidden.max_by_key(|owner| owner.weight_bytes())?;
    let most = retaining_most_bytes(hidden)?;
    let is_of_program =
        class_of_hidden(most.path.as_deref()?).is_some_and(|class| class != "Class");
    (is_of_program && is_main(ledger, most.bytes))
        .then(|| step(release_objects(hidden, Some(most))))
}

/// Classes and modules are objects whose memory is the interpreter's.
fn release_classes(ledger: &Ledger) -> Option<Advice> {
    let mut classes = ledger.owners.iter().filter(|owner| owner.cause == Cause::RubyVm);
    let class = classes.find(|owner| ["Class", "Module"].contains(&owner.name.as_str()))?;
    // Most of their tables refer to nothing, so that they are not among the bytes of a root.
    let most = retaining_most(class);
    if let Some(step) = release(ledger).filter(|it| has_singleton_classes(&it.action, most)) {
        return Some(step);
    }
    // Classes that a program creates have their methods, with the bytecode, which a gem may have defined for them.
    let of_code = most.map_or(0, |most| code_of_root(ledger, class, most));
    let bytes = class.weight_bytes().saturating_add(of_code);
    is_main(ledger, bytes).then(|| match release_objects(class, most) {
        Action::ReleaseObjects { class, path, are_garbage, garbage_bytes, .. } if of_code > 0 => {
            step(Action::ReleaseObjects { class, bytes, path, are_garbage, garbage_bytes })
        }
        action => step(action),
    })
}

/// Returns true for the step against the objects that these classes belong to.
fn has_singleton_classes(step: &Action, classes: Option<&Retainer>) -> bool {
    let steps = classes.and_then(|it| it.path.as_deref()).map(|path| path.rsplit(ARROW));
    let owner = steps.and_then(|mut it| it.nth(1)).map(class_of);
    matches!(step, Action::ReleaseObjects { class, .. } if owner == Some(class))
}

fn load_less_code(ledger: &Ledger) -> Option<Advice> {
    let gems = ledger.interpreter.as_ref()?.gems()?.into_iter().filter(|it| it.gem.is_gem());
    let gems = gems.map(|it| LargeGem { bytes: it.size.weight_bytes(), gem: it.gem.name });
    let is_large = |gem: &LargeGem| {
        gem.bytes >= MIN_CODE_BYTES && percent(gem.bytes, ledger.rss_bytes) >= MIN_CODE_SHARE
    };
    let gems: Vec<LargeGem> = gems.filter(is_large).take(MAX_GEMS).collect();
    (!gems.is_empty()).then(|| step(Action::LoadLessCode { gems }))
}
