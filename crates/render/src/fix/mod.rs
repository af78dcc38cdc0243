//! The advice on a process as changes that can be pasted.

mod blocks;

use std::fmt::Write;

use diagnosis::{BACKGROUND_THREAD, NATIVE_PRESSURE, TWO_ARENAS, steps};
use formats::{Action, Advice, Deployment, Platform, Report, Server};
use ledger::Size;

use crate::text::{BOLD, DIM, GREEN, quoted, write_paragraph, write_wrapped};
use crate::words;
pub(crate) use blocks::Block;
use blocks::{gem, jemalloc, set};

/// Returns the advice of a report as changes that can be pasted: for each step its saving, its costs, the lines to paste on
/// the platform of the process, and a way to check it. `platform` replaces the platform in the report.
#[must_use]
pub fn fix(report: &Report, platform: Option<Platform>, width: usize) -> String {
    let mut deployment = report.process.deployment.clone();
    if platform.is_some() {
        deployment.platform = platform;
    }
    let mut text = String::new();
    write(report, &deployment, &mut text, width).expect("a string takes all text");
    text
}

fn write(
    report: &Report,
    deployment: &Deployment,
    out: &mut String,
    width: usize,
) -> std::fmt::Result {
    let process = &report.process;
    let mut head = vec![place(deployment)];
    head.extend(software(deployment));
    let (pid, rss) = (process.pid, Size(process.rss_bytes));
    writeln!(out, "{BOLD}pid {pid}{BOLD:#}  {rss} resident  ·  {}", head.join("  ·  "))?;
    writeln!(out, "{DIM}{}{DIM:#}\n", process.command)?;
    write_wrapped(out, "", &words::verdict(report).summary, width)?;
    writeln!(out)?;
    if report.advice.is_empty() {
        let nothing = match report.verdict.cause {
            None => "There is nothing to fix.",
            Some(_) => "rbloat knows no setting or command that lowers this.",
        };
        writeln!(out, "{BOLD}{nothing}{BOLD:#}\n")?;
    }
    for (index, alternatives) in steps(&report.advice).into_iter().enumerate() {
        for (rank, step) in alternatives.into_iter().enumerate() {
            let instead = if rank > 0 { "INSTEAD OF " } else { "" };
            writeln!(out, "{BOLD}{instead}STEP {}{BOLD:#}", index + 1)?;
            write_step(report, step, deployment, out, width)?;
        }
    }
    if !report.is_complete() {
        let incomplete = "A part of the process could not be read, so steps may be missing. `rbloat report` lists the \
                          reasons.";
        write_paragraph(out, DIM, incomplete, "", width)?;
    }
    if report.advice.is_empty() {
        return Ok(());
    }
    let choice = "If the process is deployed in another way, name it, such as --fix=systemd.";
    write_paragraph(out, DIM, choice, "", width)
}

fn write_step(
    report: &Report,
    step: &Advice,
    deployment: &Deployment,
    out: &mut String,
    width: usize,
) -> std::fmt::Result {
    let words = words::advice(step, report);
    write_wrapped(out, "", &words.action, width)?;
    for block in blocks_of(&step.action, &words.command, &words::process(report), deployment) {
        writeln!(out)?;
        write_block(&block, out, width)?;
    }
    writeln!(out)?;
    if let Some(bytes) = step.saves_bytes {
        writeln!(out, "Saves: {}.", Size(bytes))?;
    }
    write_wrapped(out, "", &format!("Costs: {}", words.costs), width)?;
    write_wrapped(out, "", &format!("Check: {}", check(&step.action)), width)?;
    if let Some(block) = measurement(&step.action) {
        write_block(&block, out, width)?;
    }
    writeln!(out)
}

/// Writes lines to paste, with their place.
pub(crate) fn write_block(block: &Block, out: &mut String, width: usize) -> std::fmt::Result {
    if !block.place.is_empty() {
        write_wrapped(out, "", &block.place, width)?;
    }
    // These lines are not wrapped, so that they can be pasted.
    for line in &block.lines {
        writeln!(out, "    {GREEN}{line}{GREEN:#}")?;
    }
    Ok(())
}

/// The lines that carry out a step. `command` is the step's command in words, and `process` is the process in commands.
fn blocks_of(action: &Action, command: &str, process: &str, deployment: &Deployment) -> Vec<Block> {
    match action {
        Action::AutoTrim => gem(deployment),
        Action::PreloadJemalloc { is_broken, .. } => jemalloc(deployment, *is_broken),
        Action::DecayInBackground => set(deployment, &BACKGROUND_THREAD),
        Action::LimitArenas { .. } => set(deployment, &TWO_ARENAS),
        Action::Trim => vec![Block::new("Run now, without a restart:", [command.into()])],
        Action::WatchPss => vec![Block::new("Run:", [command.into()])],
        Action::UseLessSharedMemory { .. } | Action::UnmapFiles { .. } => {
            vec![Block::new("The processes that map the largest file:", [command.into()])]
        }
        Action::FindNativeLeak => vec![
            Block::new("As root, while the memory grows:", [command.into()]),
            Block::new(
                "For the C function (Debian's package bpfcc-tools):",
                [format!("memleak-bpfcc -p {process}")],
            ),
        ],
        Action::RunFewerThreads { starter: Some(starter), .. }
            if !matches!(starter.gem.as_deref(), Some("puma" | "sidekiq")) =>
        {
            vec![Block::new(
                &format!("In the code that starts them ({}):", starter.place),
                [command.into()],
            )]
        }
        Action::RunFewerThreads { .. } => vec![Block::new(
            match deployment.server {
                Some(Server::Puma) => {
                    "In config/puma.rb, with a lower number (many Rails applications set it by RAILS_MAX_THREADS):"
                }
                Some(Server::Sidekiq) => "In config/sidekiq.yml, with a lower number:",
                _ => "Lower the number of threads in the configuration:",
            },
            [match deployment.server {
                Some(Server::Puma) => "threads 3, 3".into(),
                Some(Server::Sidekiq) => ":concurrency: 5".into(),
                _ => command.into(),
            }],
        )],
        Action::EnableGc { .. }
        | Action::AllowFullMark { .. }
        | Action::StopCoverage { .. }
        | Action::LimitTable { .. } => {
            vec![Block::new("In the program:", [command.into()])]
        }
        Action::CloseFilesInMemory { .. } => {
            vec![Block::new("The open files of this process:", [command.into()])]
        }
        Action::UnsetInitialSlots { .. }
        | Action::UnsetMallocLimits { .. }
        | Action::ReturnTop { .. }
        | Action::MapLargeBlocks { .. }
        | Action::DisableThreadCaches { .. }
        | Action::LimitJit { .. } => {
            vec![Block::new("Where the process's environment is set:", [command.into()])]
        }
        Action::FreePages => vec![Block::new(
            "In the program, when it is idle:",
            ["Process.warmup".into(), "GC.start".into()],
        )],
        Action::Compact => vec![Block::new(
            "In the program, when it is idle:",
            ["GC.compact".into(), "5.times { GC.start }".into()],
        )],
        Action::NativePressure { .. } => {
            let mut blocks = gem(deployment);
            blocks.extend(set(deployment, &NATIVE_PRESSURE));
            blocks
        }
        Action::FindMapper if command.starts_with("rbloat why") => {
            vec![Block::new("As root, for the code that keeps them:", [command.into()])]
        }
        Action::FindMapper | Action::FindNativeUse => {
            vec![Block::new("As root, while the memory grows:", [command.into()])]
        }
        Action::FreeNative { .. } if command.starts_with("rbloat why") => {
            vec![Block::new("As root, for what retains them:", [command.into()])]
        }
        Action::FreeNative { .. } => vec![Block::new("In the program, call:", [command.into()])],
        Action::ReleaseObjects { .. } if command.starts_with("rbloat ") => {
            vec![Block::new("As root, under load:", [command.into()])]
        }
        Action::DefineCodeOnce { .. } => vec![Block::new("As root, under load:", [command.into()])],
        Action::ReleaseObjects { .. }
        | Action::EndFibers { .. }
        | Action::EndThread { .. }
        | Action::RecurseLess { .. }
        | Action::UnlockMemory { .. }
        | Action::RunFewerFibers { .. }
        | Action::LookForNative
        | Action::Rehash { .. }
        | Action::CopySlices { .. }
        | Action::ShareStrings { .. }
        | Action::CopyBuffers { .. }
        | Action::ChangeCode { .. } => {
            vec![Block::new("In the program:", [command.into()])]
        }
        Action::LoadLessCode { gems } => {
            // Anything else is no name of a gem, but may be that of a folder.
            let is_plain = |it: char| it.is_ascii_alphanumeric() || "_-.".contains(it);
            let plain = gems.iter().filter(|it| !it.gem.is_empty() && it.gem.chars().all(is_plain));
            let lines = plain.map(|it| format!("gem \"{}\", require: false", it.gem));
            let lines: Vec<String> = lines.collect();
            let mut blocks = vec![Block::new(
                "In the Gemfile, if this program does not always use the gem; then require it where it is used:",
                lines,
            )];
            if deployment.server == Some(Server::Puma) {
                let place = "Or in config/puma.rb, if Puma runs in cluster mode:";
                blocks.push(Block::new(place, ["preload_app!".into()]));
            }
            blocks
        }
    }
}

/// A way to check that a step is in effect.
fn check(action: &Action) -> &'static str {
    match action {
        Action::Trim => {
            "the command prints the prediction and the outcome. With `--watch 60s` it also shows whether the trim lasts."
        }
        Action::AutoTrim => {
            "after the same load, `rbloat report PID` shows less malloc.unreturned, and \
             `Rbloat::AutoTrim.stats[:trims]` in the process is above 0. To measure the saving:"
        }
        Action::PreloadJemalloc { .. } => {
            "the first line of `rbloat report PID` has `malloc by jemalloc`. To measure the saving:"
        }
        Action::DecayInBackground => {
            "`malloc.tuning.background_thread` of `rbloat report PID --json` is true, and after ten idle seconds \
             `rbloat report PID` shows less malloc.unreturned. To measure the saving:"
        }
        Action::LimitArenas { .. } => {
            "`rbloat report PID --arenas` lists at most two arenas. To measure the saving:"
        }
        Action::ReturnTop { .. } | Action::MapLargeBlocks { .. } => {
            "after the same load, `rbloat report PID` shows less malloc.unreturned."
        }
        Action::EnableGc { .. } => "`rbloat report PID` no longer reports that the GC is disabled.",
        Action::AllowFullMark { .. } => {
            "`rbloat report PID` no longer reports that the GC collects young objects only."
        }
        Action::LimitTable { .. } | Action::DefineCodeOnce { .. } => {
            "`rbloat diff PID --every 60s` shows whether ruby.vm still grows."
        }
        Action::CloseFilesInMemory { .. } => {
            "`rbloat report PID` no longer lists the file, and its control group uses less."
        }
        Action::UnsetInitialSlots { .. } | Action::FreePages | Action::Compact => {
            "`rbloat report PID` shows less ruby.free_slots."
        }
        Action::ReleaseObjects { .. } | Action::FreeNative { .. } => {
            "`rbloat report PID` lists fewer objects of the class. `rbloat diff PID --every 60s` shows whether their \
             number still grows."
        }
        Action::LoadLessCode { .. } => {
            "`rbloat report PID --code` no longer lists the gem, or lists less bytecode for it."
        }
        Action::FindNativeLeak => {
            "`rbloat diff PID --every 60s` shows whether native.unreachable still grows."
        }
        Action::Rehash { .. }
        | Action::CopySlices { .. }
        | Action::ShareStrings { .. }
        | Action::CopyBuffers { .. }
        | Action::StopCoverage { .. }
        | Action::UnsetMallocLimits { .. } => "`rbloat report PID` shows less ruby.malloc.",
        Action::NativePressure { .. } => {
            "after the same load, `rbloat report PID` lists fewer garbage objects of the class."
        }
        Action::FindMapper => "`rbloat diff PID --every 60s` shows whether unknown still grows.",
        Action::FindNativeUse => {
            "`rbloat diff PID --every 60s` shows whether native.global still grows."
        }
        Action::LookForNative => "`rbloat report PID` names the owners of this memory.",
        Action::RecurseLess { .. } => {
            "after a restart, `rbloat report PID` shows less stack.threads or ruby.vm."
        }
        Action::UnlockMemory { .. } => "VmLck in /proc/PID/status is less.",
        Action::EndThread { .. } => "`rbloat report PID` shows less stack.threads.",
        Action::EndFibers { .. } | Action::RunFewerFibers { .. } => {
            "`rbloat diff PID --every 60s` shows whether stack.fibers still grows."
        }
        Action::DisableThreadCaches { .. } => "`rbloat report PID` shows less malloc.cached.",
        Action::LimitJit { .. } => "after the same load, `rbloat report PID` shows less ruby.jit.",
        Action::RunFewerThreads { .. } => {
            "the first line of `rbloat report PID` has the number of threads, and stack.threads is lower."
        }
        Action::ChangeCode { .. } => {
            "`rbloat who PID` shows less growth by this code, and `rbloat report PID` less memory after the same load."
        }
        Action::UseLessSharedMemory { .. } => "`rbloat report PID` shows less file.shmem.",
        Action::UnmapFiles { .. } => "`rbloat report PID` shows less file.shared.",
        Action::WatchPss => {
            "the command prints PSS and anonymous memory. Anonymous memory should be well below RSS."
        }
    }
}

/// The comparison that measures the saving of a setting.
fn measurement(action: &Action) -> Option<Block> {
    let settings = match action {
        Action::AutoTrim => "--with default,gem".to_owned(),
        Action::LimitArenas { .. } => "--with default,arena2".to_owned(),
        Action::DecayInBackground => "--with jemalloc,jemalloc-background".to_owned(),
        Action::PreloadJemalloc { .. } => "--with default,jemalloc-background".to_owned(),
        _ => return None,
    };
    Some(Block {
        place: String::new(),
        lines: vec![format!("rbloat compare {settings} -- COMMAND")],
    })
}

/// The platform in words.
fn place(deployment: &Deployment) -> String {
    match (deployment.platform, &deployment.unit) {
        (Some(Platform::Kubernetes), _) => "pod of Kubernetes".into(),
        (Some(Platform::Container), _) => "container".into(),
        (Some(Platform::Systemd), Some(unit)) => format!("systemd service {}", quoted(unit)),
        (Some(Platform::Systemd), None) => "systemd service".into(),
        (Some(Platform::SystemdUser), Some(unit)) => {
            format!("systemd user service {}", quoted(unit))
        }
        (Some(Platform::SystemdUser), None) => "systemd user service".into(),
        (Some(Platform::Heroku), _) => "dyno of Heroku".into(),
        (Some(Platform::Procfile), _) => "Procfile".into(),
        (Some(Platform::Shell), _) => "started by a shell or an unknown program".into(),
        (None, _) => "unknown platform".into(),
    }
}

fn software(deployment: &Deployment) -> Option<String> {
    let server = deployment.server.map(Server::name);
    let rails = deployment.rails.then_some("Rails");
    let bundler = deployment.bundler.then_some("Bundler");
    let names: Vec<_> = [server, rails, bundler].into_iter().flatten().collect();
    (!names.is_empty()).then(|| names.join(", "))
}
