//! Adds snapshots to an archive.

use std::path::{Path, PathBuf};

use archive::Look;
use clap::Args;
use examine::{Sandbox, report_of_file};
use formats::{Container, Place, Report};
use ledger::Size;
use output::Folder;

use crate::arguments::SandboxArguments;
use crate::arguments::parse_size;
use crate::failure::{Failure, Outcome};
use crate::terminal;

/// The names of the processes in the snapshots.
#[derive(Debug, Args)]
pub(crate) struct AddArguments {
    /// Add these snapshots to the archive
    ///
    /// They are files that `rbloat snapshot` wrote. A snapshot that is added again replaces its former rows
    #[arg(long, value_name = "SNAPSHOT", num_args = 1.., conflicts_with_all = ["AskArguments", "questions"])]
    pub(super) add: Vec<PathBuf>,
    /// With --add: the service of the processes [default: the container, systemd's unit or the role]
    #[arg(long, value_name = "NAME", requires = "add", hide_short_help = true)]
    service: Option<String>,
    /// With --add: a name that snapshots lack: node, namespace, pod, container or role
    #[arg(
        long = "label",
        value_name = "NAME=VALUE",
        requires = "add",
        value_parser = parse_label,
        hide_short_help = true
    )]
    labels: Vec<Label>,
    /// With --add: the memory limit of their container: 2GiB
    #[arg(long, value_name = "SIZE", requires = "add", value_parser = parse_size, hide_short_help = true)]
    limit: Option<u64>,
    #[command(flatten)]
    sandbox: SandboxArguments,
}

/// A name that is the same for all snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Label {
    Node(String),
    Namespace(String),
    Pod(String),
    Container(String),
    Role(String),
}

fn parse_label(text: &str) -> Result<Label, String> {
    let (name, value) = text.split_once('=').ok_or("write a label as pod=shop-1")?;
    let value = linux::one_line(value);
    Ok(match name {
        "node" => Label::Node(value),
        "namespace" => Label::Namespace(value),
        "pod" => Label::Pod(value),
        "container" => Label::Container(value),
        "role" => Label::Role(value),
        _ => return Err("the names are node, namespace, pod, container and role".into()),
    })
}

/// Adds the snapshots to the archive in a folder, which is made if there is none.
pub(super) fn run(path: &Path, arguments: &AddArguments) -> Result<Outcome, Failure> {
    let mut archive = None;
    let sandbox = Sandbox::of_analyses(arguments.sandbox.options());
    let (mut added, mut is_complete, mut bytes) = (0_u64, true, 0_u64);
    let mut unread = None;
    for snapshot in &arguments.add {
        let report = match report_of_file(snapshot, &sandbox) {
            Ok(report) => report,
            // The others can still be added. The last error is printed at the end, and is rbloat's exit status.
            Err(error) => {
                if let Some(earlier) = unread.replace(Failure::NoSnapshot(error)) {
                    terminal::complain(earlier);
                }
                continue;
            }
        };
        is_complete &= report.is_complete();
        let look = arguments.look(report);
        // A folder without tables is no archive.
        let archive = match &mut archive {
            Some(archive) => archive,
            none => none.insert(Folder::create(path)?),
        };
        let files = sandbox.run(|| archive::files(&[look]));
        for file in files.map_err(|error| Failure::NotAdded { path: snapshot.clone(), error })? {
            agent::add_to_archive(archive, &file)?;
            bytes += file.bytes.len() as u64;
        }
        added += 1;
    }
    if added > 0 {
        let (folder, size) = (path.display(), Size(bytes));
        let plural = if added == 1 { "" } else { "s" };
        terminal::print(&format!("{added} snapshot{plural} added to {folder} ({size})\n"))?;
    }
    match unread {
        Some(failure) => Err(failure),
        None if is_complete => Ok(Outcome::Done),
        None => Ok(Outcome::Incomplete),
    }
}

impl AddArguments {
    fn look(&self, report: Report) -> Look {
        let unit = report.process.deployment.unit.clone();
        let container = Container { name: unit.unwrap_or_default(), ..Container::default() };
        let mut place = Place { container, role: diagnosis::role(&report.process.command) };
        let mut node = String::new();
        for label in &self.labels {
            match label.clone() {
                Label::Node(name) => node = name,
                Label::Namespace(name) => place.container.namespace = name,
                Label::Pod(name) => place.container.pod = name,
                Label::Container(name) => place.container.name = name,
                Label::Role(name) => place.role = name,
            }
        }
        let service = self.service.clone().unwrap_or_else(|| diagnosis::service(&place));
        Look {
            service,
            node,
            place,
            pss_bytes: None,
            limit_bytes: self.limit,
            used_bytes: None,
            report,
            is_only_kill: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_a_known_name_and_a_value() {
        assert_eq!(parse_label("pod=a=b"), Ok(Label::Pod("a=b".into())));
        assert!(parse_label("pod").unwrap_err().contains("pod=shop-1"));
        assert!(parse_label("pid=1").unwrap_err().contains("node, namespace"));
    }
}
