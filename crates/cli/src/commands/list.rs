use formats::{Container, ListedProcess, Processes, to_json};
use image::Target;
use linux::proc;

use crate::containers::Containers;
use crate::failure::{Failure, Outcome};
use crate::isolation::isolated;
use crate::process::nearest_ancestor;
use crate::terminal;

/// Lists the Ruby processes on this machine.
pub(super) fn run(json: bool) -> Result<Outcome, Failure> {
    let mut refused = 0;
    let mut processes: Vec<ListedProcess> = Vec::new();
    let mut containers = Containers::default();
    for pid in proc::processes()? {
        // Another rbloat may read a process.
        if proc::member(pid).is_none_or(|member| member.is_copy) {
            continue;
        }
        match isolated(pid, || Ok(describe(&crate::process::target(pid)?, &mut containers))) {
            Ok(process) => processes.extend(process),
            Err(Failure::Capture(linux::Error::NotPermitted { .. })) => refused += 1,
            Err(failure) if failure.is_without_memory() => {}
            Err(failure) => terminal::complain(failure.about(pid)),
        }
    }
    let rubies = processes.iter().map(|process| process.pid).collect();
    for process in &mut processes {
        let parent = |pid| Some(proc::member(pid)?.parent);
        process.parent = nearest_ancestor(process.pid, &rubies, parent);
    }
    let list = Processes { processes, refused };
    terminal::print(&match json {
        true => to_json(&list, &render::processes_summary(&list)),
        false => render::processes(&list, terminal::width()),
    })?;
    let largest = list.processes.iter().max_by_key(|process| process.rss_bytes);
    if let Some(largest) = largest.filter(|_| !json) {
        terminal::suggest(&["rbloat", "report", &largest.pid.to_string()])?;
    }
    Ok(Outcome::Done)
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
