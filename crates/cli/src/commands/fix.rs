use clap::{Args, ValueEnum};
use formats::Platform;

use crate::arguments::SourceArguments;
use crate::failure::{Failure, Outcome};
use crate::sandbox::Sandbox;
use crate::source::{Detail, Source};
use crate::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat fix 4242                   the changes that lower its memory
  rbloat fix 4242 --for kubernetes  the same as lines of a manifest
  rbloat fix app.rbloat             for the process of a snapshot";

#[derive(Debug, Args)]
pub(crate) struct FixArguments {
    #[command(flatten)]
    pub(crate) source: SourceArguments,
    /// The platform to print the changes for. [default: the platform that started the process]
    #[arg(long = "for", value_enum, value_name = "PLATFORM")]
    pub(crate) target: Option<Target>,
}

/// A platform that starts processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// Docker, Podman and others: lines of a Dockerfile
    Container,
    /// Lines of a manifest, and of the Dockerfile
    Kubernetes,
    /// A drop-in for a service
    Systemd,
    /// A drop-in for a service of a user
    SystemdUser,
    /// Commands for Heroku's command line
    Heroku,
    /// Lines of .env beside the Procfile
    Procfile,
    /// Lines of a shell script
    Shell,
}

impl From<Target> for Platform {
    fn from(target: Target) -> Self {
        match target {
            Target::Container => Self::Container,
            Target::Kubernetes => Self::Kubernetes,
            Target::Systemd => Self::Systemd,
            Target::SystemdUser => Self::SystemdUser,
            Target::Heroku => Self::Heroku,
            Target::Procfile => Self::Procfile,
            Target::Shell => Self::Shell,
        }
    }
}

pub(crate) fn run(arguments: &FixArguments) -> Result<Outcome, Failure> {
    let source = Source::open(arguments.source.name()?)?;
    let argument = source.argument();
    let next = if matches!(source, Source::Process(_)) { "snapshot" } else { "report" };
    let sandbox = Sandbox::new(arguments.source.capture.sandbox, []);
    let report = source.account(arguments.source.capture, Detail::OWNERS, &sandbox)?.report;
    let platform = arguments.target.map(Platform::from);
    terminal::print(&render::fix(&report, platform, terminal::width()))?;
    // A snapshot before the change shows its effect: `rbloat diff`.
    terminal::suggest(&["rbloat", next, &argument])?;
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}
