//! The place of a process in a fleet, by names that survive its restart.

use formats::{Container, Place, Server};

/// The beginnings of the titles that servers give to their processes, their roles, and the server if it has a configuration that advice
/// names. The roles of others are the names of their programs.
const TITLES: [(&str, &str, Option<Server>); 18] = [
    ("puma: cluster worker ", "puma worker", Some(Server::Puma)),
    ("puma: ", "puma", Some(Server::Puma)),
    ("puma ", "puma", Some(Server::Puma)),
    ("sidekiqswarm", "sidekiqswarm", Some(Server::Sidekiq)),
    ("sidekiq-", "sidekiq", Some(Server::Sidekiq)),
    ("sidekiq ", "sidekiq", Some(Server::Sidekiq)),
    ("unicorn master", "unicorn master", Some(Server::Unicorn)),
    ("unicorn worker[", "unicorn worker", Some(Server::Unicorn)),
    ("unicorn ", "unicorn", Some(Server::Unicorn)),
    ("pitchfork mold", "pitchfork mold", Some(Server::Pitchfork)),
    ("pitchfork monitor", "pitchfork monitor", Some(Server::Pitchfork)),
    ("pitchfork (gen:", "pitchfork worker", Some(Server::Pitchfork)),
    ("pitchfork ", "pitchfork", Some(Server::Pitchfork)),
    ("Passenger AppPreloader:", "passenger preloader", Some(Server::Passenger)),
    ("Passenger RubyApp:", "passenger worker", Some(Server::Passenger)),
    ("resque-", "resque", None),
    ("solid-queue-", "solid_queue", None),
    ("good_job", "good_job", None),
];
/// Programs whose first argument that is no option is the program to name.
const LAUNCHERS: [&str; 3] = ["bundle", "env", "rbenv"];
/// The longest role, in characters.
const MAX_ROLE: usize = 40;
/// The hexadecimal digits of a container's id.
const ID: usize = 64;

/// Returns the role of a process, by its command line: what it is, without ids, addresses and states, which change.
#[must_use]
pub fn role(command: &str) -> String {
    if let Some((start, role, _)) = title(command) {
        let rest = &command[start.len()..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        // The number of a worker survives its restart, but an id or a version does not.
        let has_number = role.ends_with(" worker") && (1..=3).contains(&digits);
        let is_numbered = has_number && !role.starts_with("pitchfork");
        return if is_numbered {
            format!("{role} {}", &rest[..digits])
        } else {
            (*role).to_owned()
        };
    }
    // Code on the command line is no name.
    let words = command.split(' ').take_while(|word| *word != "-e");
    let words = words.filter(|word| !word.is_empty() && !word.starts_with('-'));
    let mut names = words.map(|word| word.rsplit('/').next().unwrap_or(word));
    let is_launcher = |name: &str| name.starts_with("ruby") || LAUNCHERS.contains(&name);
    let first = names.next().unwrap_or_default();
    let name = match is_launcher(first) {
        true => names.find(|name| !is_launcher(name) && *name != "exec").unwrap_or(first),
        false => first,
    };
    name.chars().take(MAX_ROLE).collect()
}

fn title(command: &str) -> Option<&'static (&'static str, &'static str, Option<Server>)> {
    TITLES.iter().find(|(start, ..)| command.starts_with(start))
}

/// Returns the server of a process that has given itself a title.
pub(crate) fn server(command: &str) -> Option<Server> {
    title(command).and_then(|(_, _, server)| *server)
}

/// Returns a name for the service of a process: its container, or else its role without the number. The path of a control group is none.
#[must_use]
pub fn service(place: &Place) -> String {
    let container = &place.container.name;
    let name = container.strip_suffix(".service").unwrap_or(container);
    if !name.is_empty() && !name.starts_with('/') {
        return name.to_owned();
    }
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    match place.role.rsplit_once(' ') {
        Some((role, number)) if is_number(number) => role.to_owned(),
        _ => place.role.clone(),
    }
}

/// A container in the path of a control group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerIds {
    /// The id of the container, 64 hexadecimal digits.
    pub container: Option<String>,
    /// The id of its pod in Kubernetes.
    pub pod: Option<String>,
    /// The unit of systemd.
    pub unit: Option<String>,
}

/// Reads the path of a control group. Docker, containerd, CRI-O and Podman put the id of the container into it, and the
/// kubelet that of the pod.
#[must_use]
pub fn container_ids(path: &str) -> ContainerIds {
    let mut ids = ContainerIds::default();
    for part in path.split('/') {
        let stem = part.rsplit_once('.').map_or(part, |(stem, _)| stem);
        let id = stem.rsplit(['-', ':']).next().unwrap_or(stem);
        if id.len() == ID && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            ids.container = Some(id.to_owned());
        } else if let Some((_, pod)) = stem.rsplit_once("pod").filter(|(_, id)| id.len() == 36) {
            ids.pod = Some(pod.replace('_', "-"));
        } else if part.ends_with(".service") && ids.container.is_none() {
            ids.unit = Some(part.to_owned());
        }
    }
    ids
}

/// Returns the container of a log file that the kubelet names after it, POD_NAMESPACE_CONTAINER-ID.log, with its id.
#[must_use]
pub fn container_of_log(file: &str) -> Option<(String, Container)> {
    let (names, id) = file.strip_suffix(".log")?.rsplit_once('-')?;
    let mut names = names.splitn(3, '_').map(str::to_owned);
    let (pod, namespace, name) = (names.next()?, names.next()?, names.next()?);
    (id.len() == ID).then(|| (id.to_owned(), Container { namespace, pod, name }))
}

impl ContainerIds {
    /// A name for the container that is known by its ids only.
    #[must_use]
    pub fn named(&self) -> Container {
        let id = self.container.as_ref().map(|id| id[..Container::SHORT_ID].to_owned());
        let name = id.or_else(|| self.unit.clone()).unwrap_or_default();
        Container { pod: self.pod.clone().unwrap_or_default(), name, ..Container::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_survives_a_restart() {
        for (command, expected) in [
            ("puma: cluster worker 0: 4242 [shop]", "puma worker 0"),
            ("puma: cluster worker 17: 1 [shop]", "puma worker 17"),
            ("puma 6.4.0 (tcp://0.0.0.0:3000) [shop]", "puma"),
            ("sidekiq 7.2.4 shop [1 of 5 busy]", "sidekiq"),
            ("unicorn worker[2] -c config/unicorn.rb", "unicorn worker 2"),
            ("unicorn master -D", "unicorn master"),
            ("pitchfork (gen:3) worker[0] -c x", "pitchfork worker"),
            ("resque-2.6.0: Processing default since 1700000000", "resque"),
            ("ruby /app/bin/jobs.rb --queue 12", "jobs.rb"),
            ("/usr/bin/ruby3.1 -W0 /usr/bin/thin start", "thin"),
            ("/usr/bin/ruby3.1 -W0 -e require 'fiddle'", "ruby3.1"),
            ("bundle exec rake jobs:work", "rake"),
            ("/usr/local/bin/ruby /usr/local/bin/bundle exec clockwork", "clockwork"),
            ("ruby", "ruby"),
            ("", ""),
        ] {
            assert_eq!(role(command), expected, "{command}");
        }
        assert_eq!(role(&"x".repeat(5000)).len(), MAX_ROLE);
        assert_eq!(server("puma: cluster worker 0: 4242 [shop]"), Some(Server::Puma));
        assert_eq!(server("Passenger RubyApp: /srv/shop (production)"), Some(Server::Passenger));
        assert_eq!(server("pumactl status"), None);
    }

    #[test]
    fn a_service_is_the_container_or_the_program() {
        for (container, role, expected) in [
            ("rails-app", "puma worker 1", "rails-app"),
            ("shop.service", "puma", "shop"),
            ("", "puma worker 12", "puma worker"),
            ("/user.slice/session-3.scope", "puma", "puma"),
            ("", "ruby3.1", "ruby3.1"),
            ("", "", ""),
        ] {
            let container = Container { name: container.into(), ..Container::default() };
            assert_eq!(service(&Place { container, role: role.into() }), expected);
        }
    }

    #[test]
    fn containers_are_found_in_the_paths_of_four_runtimes() {
        let id = "0123456789abcdef".repeat(4);
        let pod = "6b9c1a2e-7f4d-4c55-9f3b-0123456789ab";
        let of_systemd = pod.replace('-', "_");
        for (path, expected_pod) in [
            (format!("/kubepods/burstable/pod{pod}/{id}"), Some(pod)),
            (
                format!(
                    "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{of_systemd}.slice/\
                     cri-containerd-{id}.scope"
                ),
                Some(pod),
            ),
            (format!("/docker/{id}"), None),
            (format!("/system.slice/docker-{id}.scope"), None),
            (format!("/machine.slice/libpod-{id}.scope/container"), None),
        ] {
            let ids = container_ids(&path);
            assert_eq!(ids.container.as_deref(), Some(&id[..]), "{path}");
            assert_eq!(ids.pod.as_deref(), expected_pod, "{path}");
            assert_eq!(ids.named().name, "0123456789ab");
        }
        assert_eq!(container_ids("/system.slice/shop.service").named().name, "shop.service");
        assert_eq!(container_ids("/user.slice/session-3.scope").named(), Container::default());
    }

    #[test]
    fn the_kubelets_logs_name_pods() {
        let id = "0123456789abcdef".repeat(4);
        let (found, container) =
            container_of_log(&format!("web-5d9c-x2x_shop_rails-app-{id}.log")).unwrap();
        let expected = Container {
            namespace: "shop".into(),
            pod: "web-5d9c-x2x".into(),
            name: "rails-app".into(),
        };
        assert_eq!((found, container), (id, expected));
        for file in ["", "web.log", "a_b_c-12.log", "a-b.log"] {
            assert_eq!(container_of_log(file), None, "{file}");
        }
    }
}
