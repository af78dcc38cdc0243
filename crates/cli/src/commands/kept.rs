//! `rbloat who --kept`.

use std::time::{Duration, Instant};

use diagnosis::KeptSampling;
use examine::KeptWatch;
use formats::to_json;
use image::Target;
use render::Stacks;
use supervise::{Event, Signals};

use crate::commands::who::{Files, WhoArguments};
use crate::failure::{Failure, Outcome};
use crate::progress::{Progress, with_time_left};
use crate::terminal;

/// The time for which a process is watched, if the user gives none.
const WATCHED: Duration = Duration::from_secs(120);

/// Watches the process, and prints the lines that allocate what stays.
pub(crate) fn run(
    target: &Target,
    arguments: &WhoArguments,
    files: Files,
    signals: &Signals,
) -> Result<Outcome, Failure> {
    let WhoArguments { rate, older_than, .. } = *arguments;
    let how = arguments.capture.options();
    let duration = arguments.duration.unwrap_or(WATCHED);
    if duration <= older_than {
        return Err(Failure::TooShortForKept { duration, older_than });
    }
    let watch = KeptWatch::begin(target, how, KeptSampling { rate, older_than })?;
    let refused = watch.refused();
    refused.map(render::no_lines).into_iter().for_each(terminal::complain);
    let progress = Progress::new();
    let (begin, mut shown) = (Instant::now(), None);
    let kept = watch.run(duration, || {
        let seconds = begin.elapsed().as_secs();
        if shown.replace(seconds) != Some(seconds) {
            let what = format!("watching the new objects of process {}; ^C ends it", target.pid());
            progress.show(&with_time_left(&what, duration.saturating_sub(begin.elapsed())));
        }
        Ok(matches!(signals.next(Duration::ZERO)?, Event::Signal { .. }))
    });
    progress.erase();
    let kept = kept?;
    let is_taken = files.take_standard_output();
    files.enter_sandbox(arguments);
    let document = to_json(&kept, &render::kept_summary(&kept));
    files.write(&Stacks::of_kept(&kept), &document)?;
    let text = match arguments.json {
        true => document,
        false => render::kept(&kept, terminal::width()),
    };
    terminal::print_beside(is_taken, &text)?;
    Ok(if refused.is_some() { Outcome::Incomplete } else { Outcome::Done })
}
