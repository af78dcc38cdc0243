//! The list of the Ruby processes on this machine.

use formats::{Container, ListedProcess, Processes};
use image::Target;
use linux::proc;

use crate::containers::Containers;
use crate::error::Error;
use crate::isolation::isolated;
use crate::process::{nearest_ancestor, open_target};

/// Lists the Ruby processes on this machine. `complain` gets those that cannot be examined, unless that is a lack of rights.
///
/// # Errors
/// If /proc cannot be read.
pub fn list(complain: impl Fn(i32, Error)) -> Result<Processes, Error> {
    let mut refused = 0;
    let mut processes: Vec<ListedProcess> = Vec::new();
    let mut containers = Containers::default();
    for pid in proc::processes()? {
        // Another rbloat may read a process.
        if proc::member(pid).is_none_or(|member| member.is_copy) {
            continue;
        }
        match isolated(pid, || Ok::<_, Error>(describe(&open_target(pid)?, &mut containers))) {
            Ok(process) => processes.extend(process),
            Err(error) if error.is_not_permitted() => refused += 1,
            Err(error) if error.is_without_memory() => {}
            Err(error) => complain(pid, error),
        }
    }
    let rubies = processes.iter().map(|process| process.pid).collect();
    for process in &mut processes {
        let parent = |pid| Some(proc::member(pid)?.parent);
        process.parent = nearest_ancestor(process.pid, &rubies, parent);
    }
    Ok(Processes { processes, refused })
}

fn describe(target: &Target, containers: &mut Containers) -> Option<ListedProcess> {
    let (image, modules) = (target.image(), target.modules());
    let interpreter = ruby::find_in(image, modules)?;
    let caller = interpreter.module_among(modules);
    let allocator = allocator::find_allocator(image, modules, caller).allocator;
    let process = &image.state.process;
    let Container { namespace, pod, name } = containers.of(process.control_group.as_deref());
    let container: Vec<_> =
        [namespace, pod, name].into_iter().filter(|it| !it.is_empty()).collect();
    Some(ListedProcess {
        pid: process.pid,
        namespace_pid: process.namespace_pid,
        container: Some(container.join("/")).filter(|it| !it.is_empty()),
        parent: None,
        rss_bytes: process.rss_bytes,
        pss_bytes: proc::rollup(process.pid).ok().map(|rollup| rollup.pss_bytes),
        ruby_version: interpreter.version,
        libc: allocator::libc(image, modules).to_string(),
        allocator: allocator.to_string(),
        threads: process.threads,
        command: process.command.clone(),
    })
}
