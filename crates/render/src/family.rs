//! A family of processes as text.

use std::fmt::Write;

use formats::{CauseRow, CopiedOwner, Family, FamilyCause, FamilyMember, FamilyStep};
use ledger::{Size, percent};

use crate::report::severity;
use crate::text::{BOLD, GREEN, align_right, explained, mebibytes, table, trimmed, write_wrapped};
use crate::words;

/// Columns before the explanation of a cause.
const BEFORE_MEANING: usize = 62;
/// Columns before the command of a member.
const BEFORE_COMMAND: usize = 50;

/// Smaller rows of copied memory are summed up.
const SHOWN: u64 = 100 << 10;

/// Returns the account of a family as text, for a terminal of `width` columns.
#[must_use]
pub fn family(family: &Family, width: usize) -> String {
    let mut text = String::new();
    write(family, &mut text, width).expect("a string takes all text");
    text
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
    write_copied(family, out, width)?;
    write_steps(family, out, width)?;
    for finding in &family.findings {
        let severity = severity(finding.severity);
        write_wrapped(out, &format!(" {severity}: "), &finding.what, width)?;
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
    facts
}

fn write_causes(family: &Family, out: &mut String, width: usize) -> std::fmt::Result {
    let mut table = table(["CAUSE", "MiB", "%", "SHARED\nBY ALL", "BY\nSOME", "PRI-\nVATE"]);
    for row in family.causes.iter().filter(|row| row.total() > 0) {
        table.add_row([
            row.cause.name().to_owned(),
            mebibytes(row.total()),
            format!("{:.1}", percent(row.total(), family.memory_bytes)),
            mebibytes(row.shared_by_all_bytes),
            mebibytes(row.shared_by_some_bytes),
            mebibytes(row.private_total()),
            explained(words::meaning(row.cause), width.saturating_sub(BEFORE_MEANING)),
        ]);
    }
    let sum = |of: fn(&FamilyCause) -> u64| mebibytes(family.causes.iter().map(of).sum());
    let sums = [
        "memory".into(),
        mebibytes(family.memory_bytes),
        "100.0".into(),
        sum(|row| row.shared_by_all_bytes),
        sum(|row| row.shared_by_some_bytes),
        sum(FamilyCause::private_total),
    ];
    table.add_row(sums.map(|cell| format!("{BOLD}{cell}{BOLD:#}")));
    align_right(&mut table, 1..=5);
    writeln!(out, "{}\n", trimmed(&table))
}

fn write_members(members: &[FamilyMember], out: &mut String, width: usize) -> std::fmt::Result {
    let mut table = table(["PID", "PARENT", "RSS", "PSS", "PRI-\nVATE", "CO-\nPIED", "COMMAND"]);
    for member in members {
        table.add_row([
            member.pid.to_string(),
            member.parent.map_or_else(String::new, |pid| pid.to_string()),
            mebibytes(member.rss_bytes),
            mebibytes(member.pss_bytes),
            mebibytes(member.private_bytes),
            mebibytes(member.copied_bytes),
            member.command.chars().take(width.saturating_sub(BEFORE_COMMAND)).collect(),
        ]);
    }
    align_right(&mut table, 0..=5);
    writeln!(out, "{}\n", trimmed(&table))
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
    let mut table = table(["COPIED", "MiB", "%"]);
    let others = total.saturating_sub(words::total(rows.iter().map(|row| row.bytes)));
    let rows = rows.iter().map(|row| (row.cause.name(), row.bytes));
    for (name, bytes) in rows.chain([("others", others)]) {
        let share = format!("{:.1}", percent(bytes, total));
        table.add_row([name.to_owned(), mebibytes(bytes), share]);
    }
    align_right(&mut table, [1, 2]);
    writeln!(out, "{}\n", trimmed(&table))?;
    let owners = family.copied_owners.as_deref().unwrap_or_default();
    let owners: Vec<_> = owners.iter().filter(|owner| owner.bytes >= SHOWN).collect();
    if owners.is_empty() {
        return Ok(());
    }
    let mut table = crate::text::table(["OWNER OF COPIED MALLOC MEMORY", "MiB", "CAUSE"]);
    for CopiedOwner { name, cause, bytes } in owners {
        let name = crate::text::end_of(name, 40);
        table.add_row([name, mebibytes(*bytes), cause.name().to_owned()]);
    }
    align_right(&mut table, [1]);
    writeln!(out, "{}\n", trimmed(&table))
}

fn write_steps(family: &Family, out: &mut String, width: usize) -> std::fmt::Result {
    if family.steps.is_empty() {
        return Ok(());
    }
    writeln!(out, "{BOLD}WHAT TO DO{BOLD:#}")?;
    for (step, number) in family.steps.iter().zip(1..) {
        let FamilyStep::PrepareHeap { copied_bytes, has_warmup } = step;
        let action = format!(
            "Prepare Ruby's heap before the fork, so that fewer pages with slots are written to afterwards: \
             {} of them were copied. Collections age objects, and compaction leaves no free slots between them.",
            Size(*copied_bytes)
        );
        write_wrapped(out, &format!(" {number}. "), &action, width)?;
        let call = match has_warmup {
            true => "Process.warmup",
            false => "3.times { GC.start }; GC.compact",
        };
        writeln!(out, "    {GREEN}before_fork {{ {call} }}{GREEN:#}   (Puma, in config/puma.rb)")?;
        let costs = "Costs: a restart, and a longer start, by some collections of garbage.";
        write_wrapped(out, "    ", costs, width)?;
    }
    writeln!(out)
}
