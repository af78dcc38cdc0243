use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The way in which a process was started and is configured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Deployment {
    /// The platform that started it. `null` if unknown, as for most cores.
    pub platform: Option<Platform>,
    /// The name of the systemd service. `null` on other platforms.
    pub unit: Option<String>,
    /// The server that it runs. `null` for other programs.
    pub server: Option<Server>,
    /// True if the process has objects of Rails.
    pub rails: bool,
    /// True if the process has objects of Bundler.
    pub bundler: bool,
    /// The names of environment variables that are set and that advice may change: `LD_PRELOAD`, `MALLOC_ARENA_MAX`,
    /// `MALLOC_CONF`, `RUBYOPT`.
    pub variables: Vec<String>,
}

/// A platform that starts processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Platform {
    /// A pod of Kubernetes.
    Kubernetes,
    /// A container of Docker, Podman or another runtime.
    Container,
    /// A unit of systemd.
    Systemd,
    /// A unit of a user's own systemd.
    SystemdUser,
    /// A dyno of Heroku.
    Heroku,
    /// A program that runs a Procfile, such as foreman.
    Procfile,
    /// A shell, or an unknown program.
    Shell,
}

/// A server of Ruby programs with a configuration of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Server {
    /// Puma.
    Puma,
    /// Sidekiq, also that of Enterprise with several processes.
    Sidekiq,
    /// Unicorn.
    Unicorn,
    /// Pitchfork.
    Pitchfork,
    /// Passenger.
    Passenger,
}

impl Server {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Puma => "Puma",
            Self::Sidekiq => "Sidekiq",
            Self::Unicorn => "Unicorn",
            Self::Pitchfork => "Pitchfork",
            Self::Passenger => "Passenger",
        }
    }
}
