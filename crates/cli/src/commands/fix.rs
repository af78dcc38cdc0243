use clap::{Args, ValueEnum};
use examine::{Detail, Sandbox, Source};
use formats::Platform;

use crate::arguments::SourceArguments;
use crate::failure::{Failure, Outcome};
use crate::progress::Progress;
use crate::{naming, terminal};

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
    pub(crate) target: Option<PlatformName>,
}

/// A platform that starts processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlatformName {
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

impl From<PlatformName> for Platform {
    fn from(target: PlatformName) -> Self {
        match target {
            PlatformName::Container => Self::Container,
            PlatformName::Kubernetes => Self::Kubernetes,
            PlatformName::Systemd => Self::Systemd,
            PlatformName::SystemdUser => Self::SystemdUser,
            PlatformName::Heroku => Self::Heroku,
            PlatformName::Procfile => Self::Procfile,
            PlatformName::Shell => Self::Shell,
        }
    }
}

pub(crate) fn run(arguments: &FixArguments) -> Result<Outcome, Failure> {
    let source = naming::source(arguments.source.name()?)?;
    let argument = source.argument();
    let next = if matches!(source, Source::Process(_)) { "snapshot" } else { "report" };
    let how = arguments.source.capture.options();
    let sandbox = Sandbox::new(how.sandbox, []);
    let report = source.account(how, Detail::OWNERS, &sandbox, &Progress::new())?.report;
    let platform = arguments.target.map(Platform::from);
    terminal::print(&render::fix(&report, platform, terminal::width()))?;
    // A snapshot before the change shows its effect: `rbloat diff`.
    terminal::suggest(&["rbloat", next, &argument])?;
    Ok(if report.is_complete() { Outcome::Done } else { Outcome::Incomplete })
}
