//! The platforms whose lines can be printed.

use clap::ValueEnum;
use formats::Platform;

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
