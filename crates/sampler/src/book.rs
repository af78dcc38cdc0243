//! The numbers of everything that occurs in samples, and the division of growth among them.

use std::collections::HashMap;

use linux::Address;
use linux::arch::page_size;
use ruby::Frame;

use crate::kind::Kind;
use crate::process::{Process, StackReading};
use crate::profile::{Growth, MachineCode, Profile, UnknownStack};

/// A sample whose growth is not known yet.
pub(crate) struct Sample {
    pub(crate) stack: Option<u32>,
    pub(crate) thread: u32,
    /// `None` if page faults were counted, and not sampled.
    pub(crate) access: Option<Access>,
    /// The page faults that it stands for.
    pub(crate) faults: u64,
    /// The pages that these have added; 0 if they copied shared pages.
    pub(crate) pages: u64,
    pub(crate) is_prompt: bool,
}

/// The access of a page fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) address: Address,
    pub(crate) instruction: Address,
}

/// A profile that is being made.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) profile: Profile,
    frames: HashMap<Frame, u32>,
    stacks: HashMap<Vec<u32>, u32>,
    threads: HashMap<String, u32>,
    machine_code: HashMap<MachineCode, u32>,
    growth: HashMap<(Option<u32>, u32, Kind, u32), usize>,
}

impl Book {
    /// Counts a sample, of which this was read.
    pub(crate) fn count(&mut self, reading: Option<&StackReading>, stack: Option<u32>) {
        let profile = &mut self.profile;
        profile.samples += 1;
        profile.torn += u64::from(reading.is_some_and(|reading| reading.is_torn));
        profile.copied += u64::from(reading.is_some_and(|reading| reading.is_of_fault));
        if stack.is_none() {
            let frames = reading.map_or(Err(UnknownStack::NotDerived), StackReading::frames);
            profile.unknown_stacks.add(frames.err().unwrap_or(UnknownStack::Unreadable));
        }
    }

    /// The number of the stack that was read; `None` if it is unknown.
    pub(crate) fn stack(&mut self, process: &Process, reading: &StackReading) -> Option<u32> {
        let (program, frames) = process.program.as_ref().zip(reading.frames().ok())?;
        let mut own = Vec::with_capacity(frames.len());
        for &frame in frames {
            let frame = program.stacks.frame(frame)?;
            own.push(number(&mut self.frames, &mut self.profile.frames, frame));
        }
        (!own.is_empty()).then(|| number(&mut self.stacks, &mut self.profile.stacks, &own))
    }

    /// The number of the threads with this name.
    pub(crate) fn thread(&mut self, name: &String) -> u32 {
        number(&mut self.threads, &mut self.profile.threads, name)
    }

    /// The index of the row of the growth of samples like this one.
    fn row(&mut self, sample: &Sample, (kind, code): (Kind, MachineCode)) -> usize {
        let Sample { stack, thread, .. } = *sample;
        let code = number(&mut self.machine_code, &mut self.profile.machine_code, &code);
        let rows = &mut self.profile.growth;
        *self.growth.entry((stack, thread, kind, code)).or_insert_with(|| {
            let (bytes, prompt_bytes, faulted_bytes, copied_bytes) = (0, 0, 0, 0);
            let machine_code = code;
            rows.push(Growth {
                stack,
                thread,
                kind,
                machine_code,
                bytes,
                prompt_bytes,
                faulted_bytes,
                copied_bytes,
            });
            rows.len() - 1
        })
    }

    /// Divides growth among samples by their pages. `place` returns the kind of memory and the machine code of an access. Returns
    /// the row of each sample, and the bytes that it got.
    pub(crate) fn divide(
        &mut self,
        bytes: u64,
        samples: &[Sample],
        place: impl Fn(Access) -> (Kind, MachineCode),
    ) -> Vec<(usize, u64)> {
        let mut left = bytes;
        let mut pages_left: u64 = samples.iter().map(|sample| sample.pages).sum();
        let mut parts = Vec::with_capacity(samples.len());
        for sample in samples {
            let part =
                (u128::from(left) * u128::from(sample.pages)).checked_div(u128::from(pages_left));
            let part = part.unwrap_or(0) as u64;
            left -= part;
            pages_left -= sample.pages;
            let place = sample.access.map_or((Kind::Unknown, MachineCode::Unknown), &place);
            let row = self.row(sample, place);
            parts.push((row, part));
            let row = &mut self.profile.growth[row];
            row.bytes += part;
            row.prompt_bytes += if sample.is_prompt { part } else { 0 };
            let copied = if sample.pages == 0 { sample.faults } else { 0 };
            row.copied_bytes += copied.saturating_mul(page_size());
            row.faulted_bytes += (copied + sample.pages).saturating_mul(page_size());
        }
        parts
    }

    /// Divides growth without samples among rows by their bytes. Returns the bytes that were divided.
    pub(crate) fn extend(&mut self, rows: &HashMap<usize, u64>, bytes: u64) -> u64 {
        let known: u64 = rows.values().sum();
        let mut divided = 0;
        for (&row, &own) in rows {
            let part = (u128::from(own) * u128::from(bytes)).checked_div(u128::from(known));
            let part = part.unwrap_or(0) as u64;
            self.profile.growth[row].bytes += part;
            divided += part;
        }
        divided
    }
}

/// The number of `value` in `all`, where it is added if it is new.
fn number<T: Clone + Eq + std::hash::Hash>(
    known: &mut HashMap<T, u32>,
    all: &mut Vec<T>,
    value: &T,
) -> u32 {
    if let Some(&number) = known.get(value) {
        return number;
    }
    let number = all.len() as u32;
    all.push(value.clone());
    known.insert(value.clone(), number);
    number
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(stack: Option<u32>, pages: u64, is_prompt: bool) -> Sample {
        let access = Some(Access { address: Address(0), instruction: Address(0) });
        Sample { stack, thread: 0, access, faults: 16, pages, is_prompt }
    }

    #[test]
    fn growth_is_divided_by_pages_and_no_byte_is_lost() {
        let place = |_| (Kind::Arena, MachineCode::Kernel);
        let mut book = Book::default();
        let samples =
            [sample(Some(0), 16, true), sample(Some(1), 32, false), sample(Some(0), 16, true)];
        book.divide(1001, &samples, place);
        let rows: Vec<_> = book.profile.growth.iter().map(|it| (it.stack, it.bytes)).collect();
        assert_eq!(rows, [(Some(0), 501), (Some(1), 500)]);
        // Without growth the pages are faulted in all the same.
        book.divide(0, &[sample(None, 8, true)], place);
        let faulted: Vec<u64> = book.profile.growth.iter().map(|it| it.faulted_bytes).collect();
        assert_eq!(faulted, [32 * page_size(), 32 * page_size(), 8 * page_size()]);
        // A copy of a shared page is no growth.
        book.divide(4096, &[sample(Some(2), 0, true), sample(Some(0), 16, true)], place);
        let rows: Vec<_> =
            book.profile.growth.iter().map(|it| (it.stack, it.bytes, it.copied_bytes)).collect();
        let copied = 16 * page_size();
        let expected =
            [(Some(0), 501 + 4096, 0), (Some(1), 500, 0), (None, 0, 0), (Some(2), 0, copied)];
        assert_eq!(rows, expected);
        let prompt: Vec<u64> = book.profile.growth.iter().map(|it| it.prompt_bytes).collect();
        assert_eq!(prompt, [501 + 4096, 0, 0, 0]);
    }
}
