use std::path::PathBuf;

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

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat export *.rbloat -o archive                     add snapshots
  rbloat export a.rbloat -o archive --service shop      name the service
  rbloat export a.rbloat -o archive --label pod=shop-1  name the pod";

#[derive(Debug, Args)]
pub(crate) struct ExportArguments {
    /// Files that `rbloat snapshot` wrote
    #[arg(value_name = "SNAPSHOT", required = true)]
    snapshots: Vec<PathBuf>,
    /// The folder of the archive
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// The service of the processes [default: the unit of systemd, or the role]
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// A name that snapshots lack: node, namespace, pod, container or role
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = parse_label)]
    labels: Vec<Label>,
    /// The memory limit of their container: 2GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
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

pub(crate) fn run(arguments: &ExportArguments) -> Result<Outcome, Failure> {
    let archive = Folder::create(&arguments.output)?;
    let sandbox = Sandbox::of_analyses(arguments.sandbox.options());
    let (mut exported, mut is_complete, mut bytes) = (0_u64, true, 0_u64);
    let mut unread = None;
    for path in &arguments.snapshots {
        let report = match report_of_file(path, &sandbox) {
            Ok(report) => report,
            // The others can still be exported. The last error is printed at the end, and is rbloat's exit status.
            Err(error) => {
                if let Some(earlier) = unread.replace(Failure::from(error)) {
                    terminal::complain(earlier);
                }
                continue;
            }
        };
        is_complete &= report.is_complete();
        let look = arguments.look(report);
        let files = sandbox.run(|| archive::files(&[look]));
        for file in files.map_err(|error| Failure::NotExported { path: path.clone(), error })? {
            agent::add_to_archive(&archive, &file)?;
            bytes += file.bytes.len() as u64;
        }
        exported += 1;
    }
    if exported > 0 {
        let (folder, size) = (arguments.output.display(), Size(bytes));
        let plural = if exported == 1 { "" } else { "s" };
        terminal::print(&format!("{exported} snapshot{plural} exported to {folder} ({size})\n"))?;
    }
    match unread {
        Some(failure) => Err(failure),
        None if is_complete => Ok(Outcome::Done),
        None => Ok(Outcome::Incomplete),
    }
}

impl ExportArguments {
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
        Look { service, node, place, pss_bytes: None, limit_bytes: self.limit, report }
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
