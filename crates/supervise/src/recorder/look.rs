use formats::{Line, Recording, RecordingStart};
use linux::proc::{Member, Rollup};

use super::known_processes::KnownProcesses;
use super::sample::sample;
use super::unix_ms;

/// Looks once at the family of a process. The result is a recording with one sample, of what the kernel knows.
///
/// # Errors
/// If there is no such process, or its memory may not be read.
pub fn look(pid: i32) -> Result<Recording, linux::Error> {
    let family = linux::proc::family(pid);
    let oldest = family.first().ok_or(linux::Error::NoSuchProcess { pid })?.pid;
    linux::proc::rollup(oldest)?;
    let group = linux::proc::group_memory(oldest).ok().flatten();
    let mut lines = KnownProcesses::default().update(0, &family);
    // A process that ends meanwhile belongs to no account.
    let rollup = |member: Member| linux::proc::rollup(member.pid).ok().map(|it| (member, Some(it)));
    let members: Vec<(Member, Option<Rollup>)> = family.into_iter().filter_map(rollup).collect();
    lines.push(Line::Sample(sample(0, &members, group, 0.0)));
    let start = RecordingStart {
        rbloat: env!("CARGO_PKG_VERSION").into(),
        unix_ms: unix_ms(),
        pid: oldest,
        command: None,
        every_ms: 0,
        causes_every_ms: None,
        label: None,
    };
    Ok(Recording { start, lines, frames: Vec::new() })
}
