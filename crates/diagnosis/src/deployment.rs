use formats::{Deployment, Platform, Server};
use ledger::Ledger;
use linux::ProcessInfo;

use crate::fix::REPLACED_VARIABLES;
use crate::place::server;

/// The beginnings of a control group's name that container runtimes choose, and the groups that contain such groups.
const RUNTIMES: [&str; 7] =
    ["docker-", "libpod-", "crio-", "cri-containerd-", "docker", "ecs", "machine.slice"];
/// Objects that only the process of this server has.
const SERVERS: [(&str, Server); 5] = [
    ("Puma::Launcher", Server::Puma),
    ("Puma::Server", Server::Puma),
    ("Puma::Cluster::Worker", Server::Puma),
    ("Sidekiq::Launcher", Server::Sidekiq),
    ("Sidekiq::Manager", Server::Sidekiq),
];

/// Returns the way in which a process was started and is configured, as far as the kernel's account and the classes of
/// its objects show it.
#[must_use]
pub(crate) fn deployment(ledger: &Ledger) -> Deployment {
    let process = &ledger.process;
    let has = |name: &str| ledger.classes().any(|class| class.name == name);
    let has_any_of = |module: &str| ledger.classes().any(|class| class.name.starts_with(module));
    let by_object = SERVERS.iter().find(|(class, _)| has(class)).map(|(_, server)| *server);
    let (platform, unit) = platform(process);
    let is_set = |name: &&&str| process.variable(name).is_some();
    Deployment {
        platform,
        unit,
        server: by_object.or_else(|| server(&process.command)),
        rails: has_any_of("Rails::"),
        bundler: has_any_of("Bundler::"),
        variables: REPLACED_VARIABLES.iter().filter(is_set).map(|name| (*name).into()).collect(),
    }
}

/// Returns the platform that started a process, and the name of its systemd unit.
fn platform(process: &ProcessInfo) -> (Option<Platform>, Option<String>) {
    let is_set = |name| process.variable(name).is_some();
    let group = process.control_group.as_deref().unwrap_or_default();
    let is_in = |names: &[&str]| {
        let mut levels = group.split('/');
        levels.any(|level| names.iter().any(|name| level.starts_with(name)))
    };
    // A service may be named like a runtime.
    let mut levels = group.split('/').filter(|level| !level.ends_with(".service"));
    let is_runtime = levels.any(|level| RUNTIMES.iter().any(|name| level.starts_with(name)));
    let unit = unit(group);
    // A program that a service starts, such as a login shell, may have an environment of its own. It is no part of the
    // service then.
    let is_service = is_set("INVOCATION_ID") || process.environment.is_none();
    let platform = if is_set("DYNO") {
        Platform::Heroku
    } else if is_set("KUBERNETES_SERVICE_HOST") || is_in(&["kubepods"]) {
        Platform::Kubernetes
    } else if is_set("container") || process.is_contained || is_runtime {
        Platform::Container
    } else if unit.is_some() && is_service {
        let is_users = is_in(&["user@"]);
        let platform = if is_users { Platform::SystemdUser } else { Platform::Systemd };
        return (Some(platform), unit);
    } else if is_set("PS") {
        Platform::Procfile
    } else if process.control_group.is_none() && process.started_ticks.is_none() {
        // A core does not have the control group.
        return (None, None);
    } else {
        Platform::Shell
    };
    (Some(platform), None)
}

/// Returns the service of systemd that a control group belongs to.
fn unit(group: &str) -> Option<String> {
    let is_unit = |level: &&str| level.ends_with(".service") || level.ends_with(".scope");
    let innermost = group.split('/').rfind(is_unit)?;
    let is_service = innermost.ends_with(".service") && !innermost.starts_with("user@");
    is_service.then(|| innermost.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(group: &str, variables: &[&str]) -> (Option<Platform>, Option<String>) {
        platform(&ProcessInfo {
            control_group: Some(group.into()).filter(|group: &String| !group.is_empty()),
            environment: Some(
                variables.iter().map(|name| ((*name).into(), String::new())).collect(),
            ),
            started_ticks: Some(1),
            ..ProcessInfo::default()
        })
    }

    #[test]
    fn platforms_are_recognized_by_control_group_and_environment() {
        let cases: [(&str, &[&str], Platform, Option<&str>); 15] = [
            (
                "/system.slice/puma.service",
                &["INVOCATION_ID"],
                Platform::Systemd,
                Some("puma.service"),
            ),
            (
                "/system.slice/system-puma.slice/puma@web.service/workers",
                &["INVOCATION_ID", "PS"],
                Platform::Systemd,
                Some("puma@web.service"),
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/job.service",
                &["INVOCATION_ID"],
                Platform::SystemdUser,
                Some("job.service"),
            ),
            // The child of a service, with an environment of its own: cron, sshd.
            ("/system.slice/cron.service", &[], Platform::Shell, None),
            ("/user.slice/user-0.slice/session-1.scope", &["INVOCATION_ID"], Platform::Shell, None),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope",
                &["INVOCATION_ID"],
                Platform::Shell,
                None,
            ),
            (
                "/system.slice/ecs-worker.service",
                &["INVOCATION_ID"],
                Platform::Systemd,
                Some("ecs-worker.service"),
            ),
            ("/system.slice/docker-0123.scope", &["INVOCATION_ID"], Platform::Container, None),
            ("/docker/0123", &[], Platform::Container, None),
            (
                "/kubepods.slice/kubepods-burstable.slice/cri-containerd-01.scope",
                &[],
                Platform::Kubernetes,
                None,
            ),
            ("", &["KUBERNETES_SERVICE_HOST", "container"], Platform::Kubernetes, None),
            ("", &["container"], Platform::Container, None),
            ("", &["DYNO", "PS"], Platform::Heroku, None),
            ("", &["PS"], Platform::Procfile, None),
            ("", &[], Platform::Shell, None),
        ];
        for (group, variables, platform, unit) in cases {
            let expected = (Some(platform), unit.map(Into::into));
            assert_eq!(of(group, variables), expected, "{group} {variables:?}");
        }
    }

    #[test]
    fn a_service_is_recognized_if_its_environment_cannot_be_read() {
        let group = Some("/system.slice/puma.service".into());
        let process = ProcessInfo { control_group: group, ..ProcessInfo::default() };
        assert_eq!(platform(&process).0, Some(Platform::Systemd));
    }

    #[test]
    fn the_platform_of_a_core_is_unknown_unless_its_environment_tells_it() {
        let mut process = ProcessInfo { environment: Some(vec![]), ..ProcessInfo::default() };
        assert_eq!(platform(&process), (None, None));
        process.environment = Some(vec![("DYNO".into(), String::new())]);
        assert_eq!(platform(&process), (Some(Platform::Heroku), None));
    }
}
