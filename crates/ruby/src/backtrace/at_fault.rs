//! The copy of a VM stack that the kernel makes at a page fault, or at a tick of a clock.

use image::{Image, Memory};
use linux::Address;
use linux::bpf::Register::{R1, R2, R9};
use linux::bpf::{Assembler, LOCALS, POINTER, RECORD, RECORD_HEADER};

use crate::backtrace::stacks::{HEAD_BYTES, MAX_STACK_WORDS, StackCopy, StackLayout};
use crate::word::word;

/// The bytes of frames and of values that a record has, at most: a small one, or a large one with more than 500 frames.
/// Further ones are read later.
const SMALL: [i32; 2] = [4 << 10, 4 << 10];
const LARGE: [i32; 2] = [32 << 10, 32 << 10];
/// The places in a record: the head of the context (stack, size, innermost frame), the bytes of frames, the address of the
/// first value, and the bytes of values. The frames follow, and then the values.
const HEAD: i16 = 0;
const FRAME_BYTES: i16 = HEAD + HEAD_BYTES as i16;
const VALUES: i16 = FRAME_BYTES + 8;
const VALUE_BYTES: i16 = VALUES + 8;
const FRAMES: i16 = VALUE_BYTES + 8;
/// The places of the same head, and of the first words of the innermost frame (pc and stack pointer), before a record begins.
const EARLY_HEAD: i16 = -40;
const EARLY_FRAME: i16 = -56;
/// The place of the innermost frame's stack pointer while `fill` of [`write_after`] runs.
pub(crate) const STACK_POINTER: i16 = EARLY_FRAME + 8;

/// Adds instructions that copy the stack of the context in [`POINTER`].
pub(crate) fn write(code: &mut Assembler) {
    write_after(code, 0, |_| {});
}

/// Like [`write`], but the record begins with so many bytes that `fill` writes. It keeps R7 to R9.
pub(crate) fn write_after(code: &mut Assembler, bytes: i16, fill: impl Fn(&mut Assembler)) {
    code.copy_to_locals(EARLY_HEAD, HEAD_BYTES as i32, POINTER);
    let (frames, innermost) = (POINTER, R9);
    code.load(innermost, LOCALS, EARLY_HEAD + 16);
    code.copy_to_locals(EARLY_FRAME, 16, innermost);
    // Frames: from the innermost one to the end of the stack.
    code.load(frames, LOCALS, EARLY_HEAD + 8);
    code.shift_left(frames, 3);
    code.load(R1, LOCALS, EARLY_HEAD);
    code.add(frames, R1);
    code.subtract(frames, innermost);
    // Values: from the start of the stack to the stack pointer.
    code.load(R2, LOCALS, EARLY_FRAME + 8);
    code.subtract(R2, R1);
    let jumps = [(frames, SMALL[0]), (R2, SMALL[1])];
    let jumps = jumps.map(|(bytes, max)| code.jump_if_more(bytes, max));
    write_record(code, (bytes, &fill), SMALL);
    jumps.into_iter().for_each(|jump| code.land(jump));
    write_record(code, (bytes, &fill), LARGE);
}

fn write_record(
    code: &mut Assembler,
    (before, fill): (i16, impl Fn(&mut Assembler)),
    [max_frames, max_values]: [i32; 2],
) {
    let at = |place: i16| RECORD_HEADER + before + place;
    let (frames, from) = (POINTER, R9);
    code.begin_record(i32::from(at(FRAMES)) + max_frames + max_values);
    fill(code);
    for word in (0..HEAD_BYTES as i16).step_by(8) {
        code.load(R1, LOCALS, EARLY_HEAD + word);
        code.store(RECORD, at(HEAD + word), R1);
    }
    code.limit(frames, max_frames);
    code.store(RECORD, at(FRAME_BYTES), frames);
    code.copy(R1, RECORD);
    code.add_number(R1, at(FRAMES).into());
    code.copy_memory(R1, frames, from);
    code.load(from, LOCALS, EARLY_FRAME + 8);
    code.copy(R2, from);
    code.load(R1, LOCALS, EARLY_HEAD);
    code.subtract(R2, R1);
    code.limit(R2, max_values);
    code.subtract(from, R2);
    code.store(RECORD, at(VALUES), from);
    code.store(RECORD, at(VALUE_BYTES), R2);
    code.copy(R1, RECORD);
    code.add_number(R1, at(FRAMES).into());
    code.add(R1, frames);
    code.copy_memory(R1, R2, from);
    let length = frames;
    code.load(R1, RECORD, at(VALUE_BYTES));
    code.add(length, R1);
    code.add_number(length, at(FRAMES).into());
    code.end_record(length);
}

impl StackLayout {
    /// The stack in the contents of a record. The outermost frames of a deep stack are read now.
    pub(crate) fn copied(self, image: &Image<'_>, record: &[u8]) -> Option<StackCopy> {
        if record.len() < FRAMES as usize {
            return None;
        }
        let at = |place: i16| word(record, place as usize);
        let [start, size, innermost] = [0, 8, 16].map(|offset| at(HEAD + offset));
        if start == 0 || (start | innermost) & 7 != 0 || !(1..MAX_STACK_WORDS).contains(&size) {
            return None;
        }
        let all = Address(start)..Address(start.checked_add(size * 8)?);
        let innermost = Address(innermost);
        let rest = record.get(FRAMES as usize..)?;
        let (frames, values) = rest.split_at_checked(at(FRAME_BYTES) as usize)?;
        let top = at(VALUES).checked_add(values.len() as u64)?;
        if !all.contains(&innermost) || !(start..=innermost.0).contains(&top) {
            return None;
        }
        let mut frames = frames.to_vec();
        let copied = frames.len();
        frames.resize(self.frame_limit(innermost, all.end).max(copied), 0);
        let read = image.read(innermost.offset(copied as u64), &mut frames[copied..]);
        frames.truncate(copied + read);
        Some(StackCopy::new(all, (Address(at(VALUES)), values.to_vec()), frames, self))
    }
}
