//! A family of processes as text.

use std::fmt::Write;
use std::path::Path;

use anstyle::Style;
use formats::{
    CauseRow, Family, FamilyCause, FamilyMember, FamilyStep, IdenticalPages, LateCode, Server,
    WriteRow,
};
use ledger::{Size, Write as Reason, percent};

use crate::report::severity;
use crate::rows::{Heads, Row, write_rows};
use crate::text::{BOLD, DIM, GREEN, mebibytes, write_wrapped};
use crate::words;

/// The owners of a reason, and the gems and files of late code, that the text shows.
const MAX_OWNERS: usize = 3;
const MAX_GEMS: usize = 5;

/// Smaller rows of copied memory are summed up.
const SHOWN: u64 = 100 << 10;

/// Returns the account of a family as text, for a terminal of `width` columns.
#[must_use]
pub fn family(family: &Family, width: usize) -> String {
    let mut text = String::new();
    write(family, &mut text, width).expect("a string takes all text");
    text
}

/// A family that was saved in the snapshot `path` of `bytes` bytes, in one line.
#[must_use]
pub fn saved_family(family: &Family, path: &Path, bytes: u64) -> String {
    format!(
        "{}: {} with {} in {}\n",
        path.display(),
        processes(family.members.len() as u64),
        Size(family.memory_bytes),
        Size(bytes)
    )
}

/// Returns the account of a family in one sentence.
#[must_use]
pub fn family_summary(family: &Family) -> String {
    let Family { rss_bytes, memory_bytes, members, is_estimated, .. } = family;
    let about = if *is_estimated { "about " } else { "" };
    match &members[..] {
        [_] => format!("The process has no family: {} resident.", Size(*rss_bytes)),
        many => format!(
            "{} processes have {about}{}, although their RSS adds up to {}.",
            many.len(),
            Size(*memory_bytes),
            Size(*rss_bytes)
        ),
    }
}

fn write(family: &Family, out: &mut String, width: usize) -> std::fmt::Result {
    write_wrapped(out, "", &family_summary(family), width)?;
    for line in facts(family) {
        write_wrapped(out, " · ", &line, width)?;
    }
    writeln!(out)?;
    write_causes(family, out, width)?;
    write_members(&family.members, out, width)?;
    write_group(family, out, width)?;
    write_copied(family, out, width)?;
    write_late_code(family, out, width)?;
    write_steps(family, out, width)?;
    for finding in &family.findings {
        let severity = severity(finding);
        write_wrapped(out, &format!(" {severity}: "), &words::finding(finding), width)?;
    }
    Ok(())
}

/// The sentences under the first one.
fn facts(family: &Family) -> Vec<String> {
    let mut facts = Vec::new();
    if family.is_estimated {
        facts.push(
            "an estimate: the kernel shows only processes with CAP_SYS_ADMIN which pages are the same. Here pages count as the \
             same if they are shared and have the same address"
                .into(),
        );
    }
    if let Some(outside) = family.outside_bytes.filter(|&bytes| bytes > 0) {
        let pss = Size(family.pss_bytes);
        facts.push(format!(
            "{} of it are also mapped by other processes, such as the pages of libraries. PSS divides them by their users: it \
             adds up to {pss}",
            Size(outside)
        ));
    }
    if let Some(group) = &family.group
        && let Some(limit) = group.limit_bytes
    {
        facts.push(format!(
            "the control group uses {} of its limit of {} ({:.0} %), {} of it for caches of files",
            Size(group.usage_bytes),
            Size(limit),
            percent(group.usage_bytes, limit),
            Size(group.cache_bytes)
        ));
    }
    if let Some(IdenticalPages { read_bytes, distinct_bytes }) = family.identical {
        let saved = read_bytes.saturating_sub(distinct_bytes);
        facts.push(format!(
            "{} would be left if all identical pages were shared: {} of the {} that were compared repeat others",
            Size(family.memory_bytes.saturating_sub(saved)),
            Size(saved),
            Size(read_bytes)
        ));
    }
    let orphans = family.members.iter().filter(|it| it.is_orphan).count() as u64;
    if orphans > 0 {
        facts.push(format!(
            "the parent of {} has ended, so it is unknown which memory was copied there since the fork",
            processes(orphans)
        ));
    }
    facts
}

fn write_causes(family: &Family, out: &mut String, width: usize) -> std::fmt::Result {
    let row = |row: &FamilyCause| Row {
        name: row.cause.name().to_owned(),
        figures: vec![
            mebibytes(row.total()),
            format!("{:.1}", percent(row.total(), family.memory_bytes)),
            mebibytes(row.shared_by_all_bytes),
            mebibytes(row.shared_by_some_bytes),
            mebibytes(row.private_total()),
        ],
        note: vec![(DIM, words::meaning(row.cause).to_owned())],
        ..Row::default()
    };
    let mut rows: Vec<_> = family.causes.iter().filter(|row| row.total() > 0).map(row).collect();
    let sum = |of: fn(&FamilyCause) -> u64| mebibytes(family.causes.iter().map(of).sum());
    rows.push(Row {
        style: BOLD,
        name: "memory".into(),
        figures: vec![
            mebibytes(family.memory_bytes),
            "100.0".into(),
            sum(|row| row.shared_by_all_bytes),
            sum(|row| row.shared_by_some_bytes),
            sum(FamilyCause::private_total),
        ],
        note: Vec::new(),
    });
    let figures = &["MiB", "%", "SHARED\nBY ALL", "BY\nSOME", "PRI-\nVATE"];
    write_rows(out, &Heads { name: "CAUSE", figures, ..Heads::default() }, &rows, width)
}

fn write_members(members: &[FamilyMember], out: &mut String, width: usize) -> std::fmt::Result {
    let row = |member: &FamilyMember| Row {
        figures: vec![
            member.pid.to_string(),
            member.parent.map_or_else(String::new, |pid| pid.to_string()),
            mebibytes(member.rss_bytes),
            mebibytes(member.pss_bytes),
            mebibytes(member.private_bytes),
            mebibytes(member.copied_bytes),
        ],
        note: vec![(Style::new(), member.command.clone())],
        ..Row::default()
    };
    let rows: Vec<_> = members.iter().map(row).collect();
    let figures = &["PID", "PARENT", "RSS", "PSS", "PRI-\nVATE", "CO-\nPIED"];
    write_rows(out, &Heads { name: "", figures, note: "COMMAND", lead: Some("") }, &rows, width)
}

pub(crate) fn processes(count: u64) -> String {
    if count == 1 { "1 process".into() } else { format!("{count} processes") }
}

/// The memory of a control group, from the family's account.
fn write_group(family: &Family, out: &mut String, width: usize) -> std::fmt::Result {
    let (Some(group), Some(parts)) = (&family.group, &family.group_parts) else { return Ok(()) };
    let signed = |bytes: i64| {
        let sign = if bytes < 0 { "-" } else { "" };
        format!("{sign}{}", mebibytes(bytes.unsigned_abs()))
    };
    let row =
        |name: &str, figure| Row { name: name.to_owned(), figures: vec![figure], ..Row::default() };
    let mut rows = vec![row("these Ruby processes", mebibytes(family.memory_bytes))];
    if let Some(bytes) = parts.charged_elsewhere_bytes {
        let charged = signed(-bytes.cast_signed());
        rows.push(row("their memory that is charged to other groups", charged));
    }
    if !parts.others.is_empty() {
        let name = format!("{}, not Ruby (PSS)", processes(parts.others.len() as u64));
        let bytes = words::total(parts.others.iter().map(|it| it.pss_bytes));
        rows.push(row(&name, mebibytes(bytes)));
    }
    let of_files = "caches of files that no process maps";
    let of_tmpfs = "tmpfs and shared memory that no process maps";
    let of_kernel = "the kernel: page tables, stacks, buffers";
    rows.push(row(of_files, mebibytes(parts.unmapped_cache_bytes)));
    rows.push(row(of_tmpfs, mebibytes(parts.unmapped_shmem_bytes)));
    rows.push(row(of_kernel, mebibytes(parts.kernel_bytes)));
    rows.push(row("not explained", signed(parts.unexplained_bytes)));
    rows.push(Row { style: BOLD, ..row("memory", mebibytes(group.usage_bytes)) });
    let heads = Heads { name: "CONTROL GROUP", figures: &["MiB"], ..Heads::default() };
    write_rows(out, &heads, &rows, width)
}

fn write_copied(family: &Family, out: &mut String, width: usize) -> std::fmt::Result {
    let total = words::total(family.copied.iter().map(|row| row.bytes));
    let mut rows: Vec<&CauseRow> = family.copied.iter().filter(|row| row.bytes >= SHOWN).collect();
    if rows.is_empty() {
        return Ok(());
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    write_wrapped(
        out,
        "",
        &format!(
            "{} are copies: private pages of a process whose parent has another page at the same address. Most of them were \
             shared until one of the two wrote to them.",
            Size(total)
        ),
        width,
    )?;
    let others = total.saturating_sub(words::total(rows.iter().map(|row| row.bytes)));
    let rows = rows.iter().map(|row| (row.cause.name(), row.bytes));
    let row = |(name, bytes): (&str, u64)| Row {
        name: name.to_owned(),
        figures: vec![mebibytes(bytes), format!("{:.1}", percent(bytes, total))],
        ..Row::default()
    };
    let rows: Vec<_> = rows.chain([("others", others)]).map(row).collect();
    let heads = Heads { name: "COPIED", figures: &["MiB", "%"], ..Heads::default() };
    write_rows(out, &heads, &rows, width)?;
    let rows: Vec<_> = family.writes.iter().filter(|row| row.bytes >= SHOWN).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let row = |row: &WriteRow| {
        let owners = row.owners.iter().filter(|owner| owner.bytes >= SHOWN);
        let owners: Vec<String> = owners
            .take(MAX_OWNERS)
            .map(|it| format!("{} {}", it.name, mebibytes(it.bytes)))
            .collect();
        Row {
            name: reason(row.reason).into(),
            figures: vec![mebibytes(row.bytes)],
            note: vec![(Style::new(), owners.join(", "))],
            ..Row::default()
        }
    };
    let rows: Vec<_> = rows.into_iter().map(row).collect();
    let heads = Heads {
        name: "REASON OF THE COPY",
        figures: &["MiB"],
        note: "CLASSES, MiB",
        lead: Some("classes, MiB: "),
    };
    write_rows(out, &heads, &rows, width)
}

/// The meaning of a reason. A page counts for one.
pub(crate) fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Same => "the contents are the same again",
        Reason::Collector => "marks and ages by the garbage collector",
        Reason::Allocator => "malloc's headers, and free memory",
        Reason::FreedSlots => "objects were freed",
        Reason::NewObjects => "new objects in free slots",
        Reason::Code => "inline caches, methods, classes",
        Reason::Objects => "objects were changed",
        Reason::Contents => "contents of objects were changed",
        Reason::Other => "stacks, libraries, other memory",
        Reason::Unread => "unknown: not readable",
    }
}

fn write_late_code(family: &Family, out: &mut String, width: usize) -> std::fmt::Result {
    let Some(code) = family.late_code.as_ref().filter(|code| code.bytes >= SHOWN) else {
        return Ok(());
    };
    let LateCode { files, bytes, gems, largest_files, .. } = code;
    let text = format!(
        "{} of bytecode in {} were loaded after the fork: their parents do not have them.",
        Size(*bytes),
        words::counted(*files, "file")
    );
    write_wrapped(out, "", &text, width)?;
    let row = |name: String, files: String, bytes| Row {
        name,
        figures: vec![files, mebibytes(bytes)],
        ..Row::default()
    };
    let gems = gems.iter().take(MAX_GEMS).map(|gem| {
        let version = gem.version.as_deref().unwrap_or_default();
        let name = format!("{} {version}", gem.name);
        row(name.trim_end().into(), gem.files.to_string(), gem.bytes)
    });
    let files = largest_files.iter().take(MAX_GEMS);
    let files = files.map(|file| row(file.path.clone(), String::new(), file.bytes));
    let heads = Heads {
        name: "LOADED AFTER THE FORK",
        figures: &["FILES", "MiB"],
        note: "",
        lead: Some(""),
    };
    write_rows(out, &heads, &gems.chain(files).collect::<Vec<_>>(), width)
}

fn write_steps(family: &Family, out: &mut String, width: usize) -> std::fmt::Result {
    if family.steps.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}WHAT TO DO{BOLD:#}")?;
    for (step, number) in family.steps.iter().zip(1..) {
        let (action, lines, costs) = match step {
            FamilyStep::PrepareHeap { copied_bytes, has_warmup } => (
                format!(
                    "Prepare Ruby's heap before the fork, so that fewer pages with slots are written to afterwards: \
                     {} of them were copied. Collections age objects, and compaction leaves no free slots between them.",
                    Size(*copied_bytes)
                ),
                prepare_heap(family.server, *has_warmup),
                "a restart, and a longer start, by some collections of garbage.",
            ),
            FamilyStep::NewerRuby { copied_bytes } => (
                format!(
                    "Run Ruby 3.4 or later: the garbage collector of Ruby 3.3 writes to bytecode without changing it, which \
                     copied {} of pages.",
                    Size(*copied_bytes)
                ),
                Vec::new(),
                "an upgrade of Ruby.",
            ),
            FamilyStep::LoadBeforeFork { repeated_bytes, has_application } => (
                format!(
                    "Load the code before the fork, so that workers share it: {} of bytecode are in several processes. Classes, \
                     methods and strings of this code come with it.",
                    Size(*repeated_bytes)
                ),
                load_before_fork(family.server, *has_application),
                "a restart. Connections and threads must be opened after the fork.",
            ),
            FamilyStep::Refork { worker, shared_bytes, workers } => (
                format!(
                    "Fork the workers again from one that has run for a while. Reforking from process {worker} would share about \
                     {} per worker. This is an estimate: the {} that the other workers have for themselves, in code, caches and \
                     classes.",
                    Size(shared_bytes / workers.max(&1)),
                    Size(*shared_bytes)
                ),
                refork(family.server),
                "connections and threads must be opened again after each fork. Memory that this worker leaked is in all of them.",
            ),
            FamilyStep::ReturnFreeMemory { free_bytes, member } => (
                format!(
                    "Change the settings of malloc: it keeps {} of free memory on private pages.",
                    Size(*free_bytes)
                ),
                vec![(
                    format!("rbloat report {member} --fix"),
                    "prints the lines for the process with most of it",
                )],
                "a restart.",
            ),
        };
        write_wrapped(out, &format!(" {number}. "), &action, width)?;
        for (line, place) in lines {
            let place = if place.is_empty() { String::new() } else { format!("   ({place})") };
            writeln!(out, "    {GREEN}{line}{GREEN:#}{place}")?;
        }
        write_wrapped(out, "    ", &format!("Costs: {costs}"), width)?;
    }
    writeln!(out)
}

/// The lines of a configuration, and their place.
type Lines = Vec<(String, &'static str)>;

fn prepare_heap(server: Option<Server>, has_warmup: bool) -> Lines {
    let call = if has_warmup { "Process.warmup" } else { "3.times { GC.start }; GC.compact" };
    let (line, place) = match server {
        Some(Server::Puma) => (format!("before_fork {{ {call} }}"), "Puma, in config/puma.rb"),
        Some(Server::Pitchfork) => (
            format!("after_mold_fork {{ |_server, _mold| {call} }}"),
            "Pitchfork, in its configuration",
        ),
        Some(Server::Unicorn) => (
            // Unicorn runs this before each worker, also later ones. Compaction then would copy pages that all others share.
            format!("before_fork {{ |_server, _worker| $prepared ||= ({call}; true) }}"),
            "Unicorn, in config/unicorn.rb",
        ),
        Some(Server::Sidekiq | Server::Passenger) | None => {
            (call.into(), "in the parent, after it has loaded the program and before it forks")
        }
    };
    vec![(line, place)]
}

fn refork(server: Option<Server>) -> Lines {
    match server {
        Some(Server::Puma) => {
            vec![("fork_worker".into(), "Puma 5 or later, in config/puma.rb; experimental there")]
        }
        Some(Server::Pitchfork) => {
            vec![("refork_after [50, 100, 1000]".into(), "Pitchfork, in its configuration")]
        }
        _ => Lines::new(),
    }
}

fn load_before_fork(server: Option<Server>, has_application: bool) -> Lines {
    // A master that has the program loads the rest of its code by `require`.
    let preload = match server.filter(|_| has_application) {
        Some(Server::Puma) => ("preload_app!", "Puma, in config/puma.rb"),
        Some(Server::Unicorn) => ("preload_app true", "Unicorn, in config/unicorn.rb"),
        Some(Server::Sidekiq) => ("SIDEKIQ_PRELOAD_APP=1", "sidekiqswarm, in the environment"),
        Some(Server::Passenger) => {
            ("passenger_spawn_method smart;", "Passenger, in nginx's configuration")
        }
        Some(Server::Pitchfork) | None => {
            return vec![("require".into(), "the files above, in the parent, before it forks")];
        }
    };
    vec![
        (preload.0.into(), preload.1),
        ("config.eager_load = true".into(), "Rails, in config/environments/production.rb"),
    ]
}
