//! The lines that made objects, from the stacks of samples.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use formats::{Kept, KeptLine, KeptRow, KeptStack};
use ledger::Gem;
use sampler::{Frame, KeptProfile};

use crate::who::frame as who_frame;

/// The lines of a row, at most.
const MAX_LINES: usize = 20;

/// The frame that made an object, and the name of what it called.
type Made<'a> = (&'a Frame, Option<&'a str>);

/// Gives the result the frames of its stacks.
pub(super) fn number_frames(kept: &mut Kept, profile: &KeptProfile) {
    let mut numbers: HashMap<u32, u32> = HashMap::new();
    for frame in kept.stacks.iter_mut().flat_map(|stack| &mut stack.frames) {
        *frame = *numbers.entry(*frame).or_insert_with_key(|&number| {
            kept.frames.extend(profile.frames.get(number as usize).map(who_frame));
            kept.frames.len().saturating_sub(1) as u32
        });
    }
}

/// The stacks that made objects of a row, the one with most samples first. They share the growth of the number of objects in
/// proportion to samples.
pub(super) fn stacks(of: &KeptRow, made: &[u32], profile: &KeptProfile) -> Vec<KeptStack> {
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    made.iter().for_each(|&stack| *counts.entry(stack).or_default() += 1);
    let mut counts: Vec<(u32, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|&(stack, samples)| (Reverse(samples), stack));
    let (mut samples_left, mut objects_left) = (made.len() as u64, of.growth());
    let row = |(stack, samples): (u32, u64)| {
        let part = u128::from(objects_left) * u128::from(samples) / u128::from(samples_left);
        let objects = u64::try_from(part).unwrap_or(objects_left);
        samples_left -= samples;
        objects_left -= objects;
        let frames = profile.stacks.get(stack as usize).into_iter().flatten().rev();
        KeptStack {
            class: of.class.clone(),
            root: of.root.clone(),
            frames: frames.copied().collect(),
            samples,
            objects,
        }
    };
    counts.into_iter().map(row).collect()
}

/// The lines that made objects, those of a method together, the most samples first. If the code of most samples is not known, there are
/// none: that of the others says nothing about these.
pub(super) fn lines(profile: &KeptProfile, stacks: &[u32]) -> Vec<KeptLine> {
    let made: Vec<Made<'_>> = stacks.iter().filter_map(|&stack| line(profile, stack)).collect();
    if 2 * made.len() < stacks.len() { Vec::new() } else { by_method(made.into_iter()) }
}

fn by_method<'a>(made: impl Iterator<Item = Made<'a>>) -> Vec<KeptLine> {
    type Method<'a> = (&'a str, Option<&'a str>);
    type Places<'a> = Vec<(Option<u32>, Option<&'a str>)>;
    let mut methods: BTreeMap<Method<'_>, Places<'_>> = BTreeMap::new();
    for (frame, calls) in made {
        let method = methods.entry((frame.label.as_str(), frame.path.as_deref())).or_default();
        method.push((frame.line, calls));
    }
    let line = |((method, path), places): (Method<'_>, Places<'_>)| {
        let first = places.iter().filter_map(|it| it.0).min();
        // What other lines called has nothing to do with this one.
        let at_first = || places.iter().filter(|it| it.0 == first);
        let mut callees: BTreeMap<&str, usize> = BTreeMap::new();
        for callee in at_first().filter_map(|it| it.1) {
            *callees.entry(callee).or_default() += 1;
        }
        let most = callees.into_iter().max_by_key(|it| it.1);
        KeptLine {
            samples: places.len() as u64,
            method: method.to_owned(),
            calls: most.filter(|it| it.1 * 2 > at_first().count()).map(|it| it.0.to_owned()),
            path: path.map(str::to_owned),
            line: first.map(u64::from),
        }
    };
    let mut lines: Vec<KeptLine> = methods.into_iter().map(line).collect();
    lines.sort_by_key(|it| Reverse(it.samples));
    lines.truncate(MAX_LINES);
    lines
}

/// The frame that made an object, and what it called: the innermost frame of the application from the one on that held it, else the
/// innermost one.
fn line(profile: &KeptProfile, stack: u32) -> Option<Made<'_>> {
    let frames = profile.stacks.get(stack as usize)?.iter();
    let frames: Vec<&Frame> =
        frames.filter_map(|&frame| profile.frames.get(frame as usize)).collect();
    let is_application =
        |it: &&Frame| it.path.is_some() && Gem::of(it.path.as_deref()).is_application();
    let index = frames
        .iter()
        .position(is_application)
        .or_else(|| frames.iter().position(|frame| frame.path.is_some()))
        .or((!frames.is_empty()).then_some(0))?;
    let calls = index.checked_sub(1).map(|callee| frames[callee].label.as_str());
    Some((frames[index], calls))
}
