//! Lines to paste, for each platform.

use diagnosis::{GEM, JEMALLOC, Variable};
use formats::{Deployment, Platform, Server};

use crate::text::quoted;

/// Lines to paste, and the place for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// The place, up to a colon.
    pub(super) place: String,
    pub(super) lines: Vec<String>,
}

impl Block {
    pub(crate) fn new(place: &str, lines: impl Into<Vec<String>>) -> Self {
        Self { place: place.into(), lines: lines.into() }
    }

    fn lines<const N: usize>(place: &str, lines: [&str; N]) -> Self {
        Self::new(place, lines.map(String::from))
    }
}

/// The lines that load jemalloc. With `is_broken`, LD_PRELOAD names it already.
pub(super) fn jemalloc(deployment: &Deployment, is_broken: bool) -> Vec<Block> {
    let installation = match deployment.platform {
        Some(Platform::Kubernetes | Platform::Container) => Block::lines(
            "In the Dockerfile, before USER (for images of Debian or Ubuntu, such as the official ruby images):",
            [
                "RUN apt-get update && apt-get install -y --no-install-recommends libjemalloc2 && rm -rf /var/lib/apt/lists/*",
            ],
        ),
        Some(Platform::Heroku) => Block::lines(
            "With the line libjemalloc2 in the file Aptfile, before the next deployment:",
            ["heroku buildpacks:add --index 1 heroku-community/apt"],
        ),
        _ => Block::lines(
            "On the machine (Debian, Ubuntu; other distributions call the package jemalloc):",
            ["sudo apt-get install libjemalloc2"],
        ),
    };
    let mut blocks = vec![installation];
    let mut known = deployment.clone();
    if is_broken {
        known.variables.retain(|name| name != "LD_PRELOAD");
    }
    blocks.extend(set(&known, &JEMALLOC));
    blocks
}

/// The lines that load the gem and start AutoTrim.
pub(super) fn gem(deployment: &Deployment) -> Vec<Block> {
    let is_image = matches!(deployment.platform, Some(Platform::Kubernetes | Platform::Container));
    let installation = match (deployment.bundler, is_image) {
        (true, _) => Block::lines(
            "In the Gemfile, followed by `bundle install`. If no gem server of yours has the gem, copy its file into vendor/cache \
             before:",
            ["gem \"rbloat\""],
        ),
        (false, true) => Block::lines(
            "In the Dockerfile, after a line that copies the gem's file, unless a gem server of yours has it (the gem has a C \
             extension, so this needs a C compiler and make):",
            ["RUN gem install rbloat"],
        ),
        (false, false) => Block::lines(
            "On the machine, in the folder with the gem's file, unless a gem server of yours has it (the gem has a C extension, so \
             this needs a C compiler, make and Ruby's headers):",
            ["gem install rbloat"],
        ),
    };
    let mut blocks = vec![installation];
    match deployment.server {
        Some(Server::Puma) => {
            blocks.push(Block::lines("In config/puma.rb:", ["plugin :rbloat"]));
        }
        Some(Server::Sidekiq) => blocks.push(Block::lines(
            "In config/initializers/rbloat.rb; without Rails in the file that `sidekiq -r` names:",
            ["require \"rbloat/sidekiq\""],
        )),
        _ if deployment.rails => blocks
            .push(Block::lines("In config/application.rb:", ["config.rbloat.profile = :server"])),
        _ if deployment.bundler => blocks.push(Block::lines(
            "At the start of the program, after Bundler is set up:",
            ["require \"rbloat\"", "Rbloat::AutoTrim.start"],
        )),
        _ => blocks.extend(set(deployment, &GEM)),
    }
    blocks
}

/// The lines that set environment variables on the platform.
pub(super) fn set(deployment: &Deployment, variables: &[Variable]) -> Vec<Block> {
    let lines = |line: fn(&Variable) -> String| variables.iter().map(line).collect::<Vec<_>>();
    let mut blocks = match deployment.platform {
        Some(Platform::Kubernetes) => {
            let mut manifest = vec!["env:".to_owned()];
            for (name, value) in variables {
                manifest.push(format!("  - name: {name}"));
                manifest.push(format!("    value: \"{value}\""));
            }
            vec![Block::new(
                "In the manifest, in the entry of the container (append to `env` if the entry has one):",
                manifest,
            )]
        }
        Some(Platform::Container) => {
            let lines = lines(|it| format!("ENV {}", assignment(it)));
            vec![Block::new("In the Dockerfile, after all lines with RUN:", lines)]
        }
        Some(Platform::Systemd) => service(deployment, variables, "sudo systemctl"),
        Some(Platform::SystemdUser) => service(deployment, variables, "systemctl --user"),
        Some(Platform::Heroku) => {
            let line = format!("heroku config:set {}", lines(assignment).join(" "));
            vec![Block::new("Run (this restarts the dynos):", [line])]
        }
        Some(Platform::Procfile) => {
            vec![Block::new("In the file .env beside the Procfile:", lines(assignment))]
        }
        Some(Platform::Shell) | None => {
            let lines = lines(|it| format!("export {}", assignment(it)));
            vec![Block::new("In the shell or script that starts the process:", lines)]
        }
    };
    let names = variables.iter().map(|(name, _)| *name);
    let replaced = names.filter(|name| deployment.variables.iter().any(|set| set == name));
    blocks.extend(replaced.map(|name| Block { place: present_value(name), lines: vec![] }));
    blocks
}

/// A drop-in for a systemd service.
fn service(deployment: &Deployment, variables: &[Variable], systemctl: &str) -> Vec<Block> {
    let unit = deployment.unit.as_deref().map_or_else(|| "NAME.service".into(), quoted);
    let lines = variables.iter().map(|(name, value)| format!("Environment=\"{name}={value}\""));
    vec![
        Block::new(
            &format!("In the file that `{systemctl} edit -- {unit}` opens:"),
            [vec!["[Service]".to_owned()], lines.collect()].concat(),
        ),
        Block::new("Then:", [format!("{systemctl} restart -- {unit}")]),
    ]
}

fn assignment((name, value): &Variable) -> String {
    format!("{name}=\"{value}\"")
}

/// A sentence about a variable that is set already.
fn present_value(name: &str) -> String {
    let separator = match name {
        "LD_PRELOAD" => "a colon",
        "MALLOC_CONF" => "a comma",
        "RUBYOPT" => "a space",
        _ => return format!("{name} is set now: replace its value."),
    };
    format!("{name} is set now: keep its value, and append this one after {separator}.")
}
