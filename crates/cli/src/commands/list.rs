use capture::elf;
use render::ListedProcess;

use crate::terminal;

/// Lists the Ruby processes on this machine.
pub(crate) fn list() -> Result<String, capture::Error> {
    let mut refused = 0;
    let mut processes: Vec<ListedProcess> = Vec::new();
    for pid in capture::proc::processes()? {
        match capture::look(pid) {
            Ok(image) => processes.extend(describe(&image)),
            Err(capture::Error::NotPermitted { .. }) => refused += 1,
            // Kernel threads have no memory, and processes may have ended meanwhile.
            Err(_) => {}
        }
    }
    processes.sort_by_key(|process| (std::cmp::Reverse(process.rss_bytes), process.pid));
    let mut text = if processes.is_empty() {
        "No Ruby processes found.\n".into()
    } else {
        render::processes(&processes, terminal::width())
    };
    if refused > 0 {
        let processes = if refused == 1 { "process" } else { "processes" };
        text += &format!(
            "Skipped {refused} {processes}: permission denied. Run as root to see all of them.\n"
        );
    }
    Ok(text)
}

fn describe(image: &capture::Image<'_>) -> Option<ListedProcess> {
    let modules = elf::modules(image);
    let interpreter = ruby::find_in(image, &modules)?;
    let caller = interpreter.module_among(&modules);
    let allocator = allocator::find_allocator(image, &modules, caller).allocator;
    let process = &image.state.process;
    Some(ListedProcess {
        pid: process.pid,
        namespace_pid: process.namespace_pid,
        rss_bytes: process.rss_bytes,
        ruby_version: interpreter.version,
        libc: allocator::libc(image, &modules).to_string(),
        allocator: allocator.to_string(),
        threads: process.threads,
        command: process.command.clone(),
    })
}
