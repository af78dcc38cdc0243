//! `rbloat diff --tree`: the growth of a family of processes.

use examine::{Detail, ProcessName, Sandbox, SnapshotFile, SourceName};
use formats::{Family, to_json};

use super::diff::{DiffArguments, watch};
use super::family;
use crate::failure::{Failure, Outcome};
use crate::{naming, terminal};

pub(super) fn run(arguments: &DiffArguments) -> Result<Outcome, Failure> {
    let names: Vec<_> = arguments.names().collect();
    let repeats = arguments.every.is_some() || arguments.times.is_some();
    let how = arguments.capture.options();
    let sandbox = Sandbox::new(how.sandbox, []);
    let account = |name: &SourceName| {
        let members = family::members_of(std::slice::from_ref(name))?;
        family::account(members, how, Detail::OWNERS, false)
    };
    let accounts = match &names[..] {
        [(_, SourceName::Process(name))] => {
            // Another process may have that name later.
            let pid = naming::process(name.clone())?.pid();
            let name = SourceName::Process(ProcessName::Pid(pid));
            watch(arguments, |_| account(&name))?
        }
        [_] => return Err(Failure::OneSource),
        many if repeats => return Err(Failure::ManySources(many.len())),
        _ => {
            // Files are read after the captures, which take rights.
            let take = |(_, name): &(&str, SourceName)| match name {
                SourceName::File { .. } => family::file(name.clone()).map(Taken::File),
                SourceName::Process(_) => account(name).map(|it| Taken::Account(Box::new(it))),
            };
            let taken = names.iter().map(take).collect::<Result<Vec<_>, _>>()?;
            sandbox.begin();
            let read = |((text, _), taken): (&(&str, SourceName), Taken)| {
                Ok::<_, Failure>((linux::one_line(text), taken.family()?))
            };
            names.iter().zip(taken).map(read).collect::<Result<_, _>>()?
        }
    };
    sandbox.begin();
    let is_complete = accounts.iter().all(|(_, family)| family.findings.is_empty());
    let diff = diagnosis::family_growth(&accounts);
    terminal::print(&match arguments.json {
        true => to_json(&diff, &render::family_diff_summary(&diff)),
        false => render::family_diff(&diff, terminal::width()),
    })?;
    if let (false, Some((argument, _))) = (arguments.json, names.last()) {
        terminal::suggest(&["rbloat", "report", "--tree", argument])?;
    }
    let outcome = if is_complete { Outcome::Done } else { Outcome::Incomplete };
    let grown = diff.memory_bytes.change;
    Ok(arguments.grown_too_much("the memory of the family", grown).unwrap_or(outcome))
}

/// A family, or the open file with it.
enum Taken {
    Account(Box<Family>),
    File(SnapshotFile),
}

impl Taken {
    fn family(self) -> Result<Family, Failure> {
        match self {
            Self::Account(family) => Ok(*family),
            Self::File(file) => Ok(file.family()?),
        }
    }
}
