//! Programs that the kernel runs at page faults and at ticks of a clock, by bpf(2).
//!
//! A stack that is read after a fault may have changed meanwhile. A program that the kernel runs at the fault itself copies it
//! before the thread goes on. The kernel proves first that the program ends, and writes nothing but its own ring. It reads
//! memory of the process that is resident, and maps nothing in.
//!
//! [`Assembler`] writes such a program: it follows pointers from the thread's descriptor, and copies memory into a record.
//! [`StackCopies`] loads it for page faults, and [`Clocks`](crate::Clocks) for ticks.

mod ring;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::Address;
use crate::arch::{REGISTERS_BYTES, own_thread_pointer};
use crate::bpf::ring::Ring;

/// Commands of bpf(2).
const LOAD_PROGRAM: i64 = 5;
const RUN_PROGRAM: i64 = 10;
const OPEN_TRACEPOINT: i64 = 17;
/// The words of `union bpf_attr` that Linux 5.11 has.
const ATTRIBUTES: usize = 15;
/// `BPF_PROG_TYPE_PERF_EVENT` and `BPF_PROG_TYPE_RAW_TRACEPOINT`, which also runs on request.
const AT_EVENTS: u32 = 7;
const AT_TRACEPOINTS: u32 = 17;
/// Functions of the kernel (`enum bpf_func_id`).
const TIME: i32 = 5;
const RANDOM: i32 = 7;
const CURRENT_TASK: i32 = 35;
const READ_USER: i32 = 112;
const READ_KERNEL: i32 = 113;
const CURRENT_IDS: i32 = 120;
const RESERVE: i32 = 131;
const SUBMIT: i32 = 132;
const CURRENT_DESCRIPTION: i32 = 158;
const USER_REGISTERS: i32 = 175;
/// `BPF_RB_NO_WAKEUP`: the record of the fault wakes us, and ticks are looked at from time to time.
const NO_WAKEUP: i32 = 1;
/// The functions that read memory are for programs with a license of this kind. Ours is also the MIT license.
const LICENSE: &CStr = c"Dual MIT/GPL";
/// Bytes of the ring, a power of two.
const RING_BYTES: usize = 4 << 20;
/// The bytes of the kernel's description of a thread (`task_struct`) among which the thread pointer is searched for, and the
/// bytes that are read at once.
const TASK_BYTES: i32 = 16 << 10;
const PIECE: i32 = 512;
/// The time between a record of a program and the sample of the same fault, at most.
const MAX_DISTANCE: Duration = Duration::from_millis(10);
/// The time for which records are kept, by that of the latest.
const CLAIMED_WITHIN: Duration = Duration::from_secs(1);
/// The offset of the word in which a program has a value for a moment.
const SCRATCH: i16 = -8;

/// A register of a program. Calls leave their result in R0, and change R1 to R5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernel's names")]
#[repr(u8)]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R6 = 6,
    R7,
    R8,
    R9,
    R10,
}

use Register::{R0, R1, R2, R3, R4, R6, R7, R8, R10};

/// The register that has a thread's descriptor at first, and then the pointer that was followed last.
pub const POINTER: Register = R7;
/// The register that has the end of the program's own memory, of which the last 8 bytes are in use.
pub const LOCALS: Register = R10;
/// The register that has the address of the record.
pub const RECORD: Register = R8;
/// The bytes of a record before its contents: the time and the address of the fault, and the length of the record.
pub const RECORD_HEADER: i16 = 24;
/// The place of the length of a record.
const LENGTH: i16 = 16;

/// A program for page faults or ticks of a clock. It uses R6 itself; R7 to R9 keep their value.
#[derive(Debug, Clone, Default)]
pub struct Assembler {
    instructions: Vec<u64>,
    /// The jumps to the end.
    exits: Vec<usize>,
    /// The places of the ring's descriptor.
    rings: Vec<usize>,
    is_at_faults: bool,
}

/// The process whose ticks a program sees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticking {
    /// Its id in its own pid namespace.
    pub(crate) pid: i32,
    /// The device and the inode of that namespace, as the kernel numbers them.
    pub(crate) namespace: (u64, u64),
    /// The part of the kernel's ticks that is wanted.
    pub(crate) part: f64,
}

/// A jump whose target is not known yet.
#[derive(Debug)]
#[must_use]
pub struct Jump(usize);

impl Assembler {
    /// Follows the pointer at [`POINTER`] plus `offset`. Without one, nothing is copied.
    pub fn follow(&mut self, offset: i32) {
        self.copy(R3, POINTER);
        self.add_number(R3, offset);
        self.read_word(READ_USER);
    }

    /// Begins a record of at most so many bytes, with its header.
    pub fn begin_record(&mut self, bytes: i32) {
        self.reserve(bytes);
        self.call(TIME);
        self.store(RECORD, 0, R0);
        if self.is_at_faults {
            // `struct bpf_perf_event_data`: registers, the period, and the address.
            self.load(R1, R6, REGISTERS_BYTES + 8);
            self.store(RECORD, 8, R1);
        }
    }

    /// Copies `bytes` of the process's memory at `from` to `to`, a part of the record. Memory that cannot be read becomes zeros.
    pub fn copy_memory(&mut self, to: Register, bytes: Register, from: Register) {
        self.copy(R1, to);
        self.copy(R2, bytes);
        self.copy(R3, from);
        self.call(READ_USER);
    }

    /// Copies `bytes` of the process's memory at `from` to the program's own memory, 512 bytes before [`LOCALS`].
    pub fn copy_to_locals(&mut self, to: i16, bytes: i32, from: Register) {
        self.copy(R1, LOCALS);
        self.add_number(R1, to.into());
        self.set(R2, bytes);
        self.copy(R3, from);
        self.call(READ_USER);
    }

    /// Ends the record, of which `length` bytes are in use, and the program.
    pub fn end_record(&mut self, length: Register) {
        self.store(RECORD, LENGTH, length);
        self.submit();
        self.exits.push(self.instructions.len());
        self.instructions.push(instruction(0x05, R0, 0, 0, 0));
    }

    /// Jumps if the unsigned number is larger.
    pub fn jump_if_more(&mut self, register: Register, max: i32) -> Jump {
        self.instructions.push(instruction(0x25, register, 0, 0, max));
        Jump(self.instructions.len() - 1)
    }

    /// The target of a jump is here.
    pub fn land(&mut self, Jump(from): Jump) {
        let distance = self.instructions.len() - from - 1;
        self.instructions[from] |= (distance as u64 & 0xffff) << 16;
    }

    /// Sets a register to a number.
    pub fn set(&mut self, to: Register, number: i32) {
        self.instructions.push(instruction(0xb7, to, 0, 0, number));
    }

    /// Sets a register to a word.
    pub fn set_word(&mut self, to: Register, word: u64) {
        let halves = [word as u32, (word >> 32) as u32].map(u32::cast_signed);
        self.instructions.push(instruction(0x18, to, 0, 0, halves[0]));
        self.instructions.push(instruction(0, R0, 0, 0, halves[1]));
    }

    /// Copies a register.
    pub fn copy(&mut self, to: Register, from: Register) {
        self.instructions.push(instruction(0xbf, to, from as u8, 0, 0));
    }

    /// Adds a register.
    pub fn add(&mut self, to: Register, from: Register) {
        self.instructions.push(instruction(0x0f, to, from as u8, 0, 0));
    }

    /// Adds a number.
    pub fn add_number(&mut self, to: Register, number: i32) {
        self.instructions.push(instruction(0x07, to, 0, 0, number));
    }

    /// Subtracts a register.
    pub fn subtract(&mut self, to: Register, from: Register) {
        self.instructions.push(instruction(0x1f, to, from as u8, 0, 0));
    }

    /// Multiplies by a power of two.
    pub fn shift_left(&mut self, to: Register, bits: i32) {
        self.instructions.push(instruction(0x67, to, 0, 0, bits));
    }

    /// Limits an unsigned number.
    pub fn limit(&mut self, to: Register, max: i32) {
        self.instructions.push(instruction(0xb5, to, 0, 1, max));
        self.set(to, max);
    }

    /// Loads a word of the record or of the program's own memory.
    pub fn load(&mut self, to: Register, base: Register, offset: i16) {
        self.instructions.push(instruction(0x79, to, base as u8, offset, 0));
    }

    /// Loads a word of the registers that the thread had (`struct pt_regs`).
    pub fn load_context(&mut self, to: Register, offset: i16) {
        self.load(to, R6, offset);
    }

    /// Stores a word in the record or in the program's own memory.
    pub fn store(&mut self, base: Register, offset: i16, from: Register) {
        self.instructions.push(instruction(0x7b, base, from as u8, offset, 0));
    }

    /// Ends if another process runs than this one, or if this tick is not wanted.
    fn end_unless(&mut self, Ticking { pid, namespace: (device, inode), part }: Ticking) {
        // `struct bpf_pidns_info`: the ids of the thread and of its process.
        let ids = 2 * SCRATCH;
        self.set_word(R1, device);
        self.set_word(R2, inode);
        self.copy(R3, LOCALS);
        self.add_number(R3, ids.into());
        self.set(R4, 8);
        self.call(CURRENT_IDS);
        self.end_if(0x55, R0, 0);
        self.instructions.push(instruction(0x61, R1, LOCALS as u8, ids + 4, 0));
        self.end_if(0x55, R1, pid);
        if part < 1.0 {
            self.call(RANDOM);
            self.instructions.push(instruction(0x57, R0, 0, 0, i32::MAX));
            self.end_if(0x25, R0, (part * f64::from(i32::MAX)) as i32);
        }
    }

    /// The registers that the current thread had when it entered the kernel are those that [`load_context`](Self::load_context) loads.
    fn find_registers(&mut self) {
        self.call(CURRENT_DESCRIPTION);
        self.copy(R1, R0);
        self.call(USER_REGISTERS);
        self.copy(R6, R0);
    }

    /// Follows the pointer to the descriptor of the current thread.
    fn find_descriptor(&mut self) -> io::Result<()> {
        self.call(CURRENT_TASK);
        self.copy(R3, R0);
        self.add_number(R3, thread_pointer_at()?);
        self.read_word(READ_KERNEL);
        Ok(())
    }

    fn reserve(&mut self, bytes: i32) {
        self.rings.push(self.instructions.len());
        self.instructions.extend([instruction(0x18, R1, 1, 0, 0), 0]);
        self.set(R2, bytes);
        self.set(R3, 0);
        self.call(RESERVE);
        self.end_if(0x15, R0, 0);
        self.copy(RECORD, R0);
    }

    fn submit(&mut self) {
        self.copy(R1, RECORD);
        self.set(R2, NO_WAKEUP);
        self.call(SUBMIT);
    }

    fn call(&mut self, function: i32) {
        self.instructions.push(instruction(0x85, R0, 0, 0, function));
    }

    /// Reads the word at R3 into [`POINTER`], and ends if there is none.
    fn read_word(&mut self, function: i32) {
        self.copy(R1, LOCALS);
        self.add_number(R1, SCRATCH.into());
        self.set(R2, 8);
        self.call(function);
        self.end_if(0x55, R0, 0);
        self.load(POINTER, LOCALS, SCRATCH);
        self.end_if(0x15, POINTER, 0);
    }

    /// Jumps to the end by a comparison with a number.
    fn end_if(&mut self, comparison: u8, register: Register, number: i32) {
        self.exits.push(self.instructions.len());
        self.instructions.push(instruction(comparison, register, 0, 0, number));
    }

    /// The instructions, for this ring, with this result.
    fn link(mut self, ring: &Ring, result: i32) -> Vec<u64> {
        for exit in std::mem::take(&mut self.exits) {
            self.land(Jump(exit));
        }
        for ring_at in self.rings {
            self.instructions[ring_at] |= u64::from(ring.map.as_raw_fd().cast_unsigned()) << 32;
        }
        self.instructions.extend([instruction(0xb7, R0, 0, 0, result), EXIT]);
        self.instructions
    }
}

/// The instruction that ends a program.
const EXIT: u64 = 0x95;

/// An instruction, as `struct bpf_insn` of linux/bpf.h.
fn instruction(code: u8, to: Register, from: u8, offset: i16, number: i32) -> u64 {
    let registers = u64::from(to as u8 | from << 4);
    let offset = u64::from(offset.cast_unsigned());
    u64::from(code) | registers << 8 | offset << 16 | u64::from(number.cast_unsigned()) << 32
}

/// A record of a program.
struct FaultCopy {
    /// The time of the fault, by CLOCK_MONOTONIC.
    time: Duration,
    address: Address,
    /// The contents, behind [`RECORD_HEADER`].
    bytes: Vec<u8>,
}

/// A program that was loaded, and its ring.
pub(crate) struct Program {
    program: OwnedFd,
    ring: Ring,
}

impl Program {
    /// Loads the program that `write` adds, for page faults or for clocks. It begins with the descriptor of the thread in [`POINTER`].
    pub(crate) fn at_events(
        is_at_faults: bool,
        write: impl FnOnce(&mut Assembler),
    ) -> io::Result<Self> {
        let mut code = Assembler { is_at_faults, ..Assembler::default() };
        code.copy(R6, R1);
        Self::load(code, AT_EVENTS, write)
    }

    /// Loads the same for the kernel's own ticks.
    pub(crate) fn at_ticks(
        ticking: Ticking,
        write: impl FnOnce(&mut Assembler),
    ) -> io::Result<Self> {
        let mut code = Assembler::default();
        code.end_unless(ticking);
        code.find_registers();
        Self::load(code, AT_TRACEPOINTS, write)
    }

    fn load(
        mut code: Assembler,
        kind: u32,
        write: impl FnOnce(&mut Assembler),
    ) -> io::Result<Self> {
        let ring = Ring::new(RING_BYTES)?;
        code.find_descriptor()?;
        write(&mut code);
        // With the result 1, the kernel writes its own sample of a fault, too.
        let result = i32::from(code.is_at_faults);
        let program = load(&code.link(&ring, result), kind)?;
        Ok(Self { program, ring })
    }

    /// Runs the program at each of the kernel's events of this name, on all processors, until the descriptor is closed.
    pub(crate) fn attach(&self, tracepoint: &CStr) -> io::Result<OwnedFd> {
        let program = u64::from(self.program.as_raw_fd().cast_unsigned());
        descriptor(bpf(OPEN_TRACEPOINT, &[tracepoint.as_ptr() as u64, program])?)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Takes the records out of the ring: the time of each by CLOCK_MONOTONIC, the address of the fault, and the contents.
    pub(crate) fn take(&mut self, mut each: impl FnMut(Duration, Address, &[u8])) {
        self.ring.take(|record| {
            let word = |at: usize| {
                record.get(at..at + 8).map(|it| u64::from_le_bytes(it.try_into().expect("8 bytes")))
            };
            let length = word(LENGTH as usize).unwrap_or(0).min(record.len() as u64) as usize;
            if let (Some(time), Some(address), Some(bytes)) =
                (word(0), word(8), record.get(RECORD_HEADER as usize..length))
            {
                each(Duration::from_nanos(time), Address(address), bytes);
            }
        });
    }
}

/// The copies of stacks that a program makes at page faults.
pub struct StackCopies {
    program: Program,
    unclaimed: Vec<FaultCopy>,
}

impl StackCopies {
    /// Loads the program that `write` adds. It begins with the descriptor of the thread in [`POINTER`].
    ///
    /// # Errors
    /// If the kernel refuses: it needs CAP_BPF and CAP_PERFMON, and Linux 5.11.
    pub fn load(write: impl FnOnce(&mut Assembler)) -> io::Result<Self> {
        Ok(Self { program: Program::at_events(true, write)?, unclaimed: Vec::new() })
    }

    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.program.descriptor()
    }

    /// Takes the records out of the ring. Those that no one claims are dropped after a while.
    pub(crate) fn read(&mut self) {
        let copies = &mut self.unclaimed;
        if let Some(newest) = copies.last().map(|copy| copy.time) {
            copies.retain(|copy| newest.saturating_sub(copy.time) < CLAIMED_WITHIN);
        }
        self.program.take(|time, address, bytes| {
            copies.push(FaultCopy { time, address, bytes: bytes.to_vec() });
        });
    }

    /// Returns the contents of the record of this fault, once.
    pub(crate) fn claim(&mut self, time: Duration, address: Address) -> Option<Vec<u8>> {
        let copies = self.unclaimed.iter().enumerate().filter(|it| it.1.address == address);
        let distance = |copy: &FaultCopy| copy.time.abs_diff(time);
        let (at, nearest) = copies.min_by_key(|it| distance(it.1))?;
        (distance(nearest) < MAX_DISTANCE).then(|| self.unclaimed.remove(at).bytes)
    }
}

/// Loads a program of this type.
fn load(instructions: &[u64], kind: u32) -> io::Result<OwnedFd> {
    let head = u64::from(kind) | (instructions.len() as u64) << 32;
    let pointers = [instructions.as_ptr() as u64, LICENSE.as_ptr() as u64];
    descriptor(bpf(LOAD_PROGRAM, &[head, pointers[0], pointers[1]])?)
}

/// The system call, with the first words of its attributes (`union bpf_attr` of linux/bpf.h).
fn bpf(command: i64, words: &[u64]) -> io::Result<i64> {
    let mut attributes = [0; ATTRIBUTES];
    attributes[..words.len()].copy_from_slice(words);
    // SAFETY: the attributes, and what they point to, outlive the call; the kernel checks everything else.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(&attributes))
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A descriptor that the kernel has opened for us.
fn descriptor(number: i64) -> io::Result<OwnedFd> {
    let number = i32::try_from(number).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it, and nothing else owns it. It is closed on exec.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Finds the offset of the thread pointer in the kernel's description of a thread: that of our own value.
fn thread_pointer_at() -> io::Result<i32> {
    let mut ring = Ring::new(4 * TASK_BYTES as usize)?;
    let mut code = Assembler::default();
    code.call(CURRENT_TASK);
    code.copy(R6, R0);
    code.reserve(TASK_BYTES);
    for at in (0..TASK_BYTES).step_by(PIECE as usize) {
        code.copy(R1, RECORD);
        code.add_number(R1, at);
        code.set(R2, PIECE);
        code.copy(R3, R6);
        code.add_number(R3, at);
        code.call(READ_KERNEL);
    }
    code.submit();
    let program = load(&code.link(&ring, 1), AT_TRACEPOINTS)?;
    bpf(RUN_PROGRAM, &[u64::from(program.as_raw_fd().cast_unsigned())])?;
    let own = own_thread_pointer().to_le_bytes();
    let mut found = Vec::new();
    ring.take(|task| {
        found.extend(task.chunks_exact(8).zip(0..).filter(|it| it.0 == own).map(|it| it.1 * 8));
    });
    match found[..] {
        [at] => Ok(at),
        _ => Err(io::Error::other("the thread pointer was not found in the kernel's memory")),
    }
}

#[cfg(test)]
mod tests {
    use super::Register::R9;
    use super::*;
    use crate::page_faults::{FaultRecord, PageFaults};

    /// A program that copies the first two words of each thread's descriptor: the first one is its own address.
    fn copies() -> io::Result<StackCopies> {
        StackCopies::load(|code| {
            code.begin_record(64);
            code.copy(R1, RECORD);
            code.add_number(R1, RECORD_HEADER.into());
            code.set(R9, 100);
            code.limit(R9, 16);
            code.copy_memory(R1, R9, POINTER);
            code.add_number(R9, RECORD_HEADER.into());
            code.end_record(R9);
        })
    }

    #[test]
    fn memory_is_copied_at_the_fault() {
        let copies = match copies() {
            Ok(copies) => copies,
            Err(error) => {
                testkit::skip(&format!("the kernel loads no program: {error}"));
                return;
            }
        };
        let pid = std::process::id().cast_signed();
        let mut faults = PageFaults::open(pid, &[], 1).unwrap();
        faults.copy_at_faults(pid, &[], copies).unwrap();
        let touch = || {
            // malloc always maps more than 32 MiB anew (DEFAULT_MMAP_THRESHOLD_MAX), so no page was touched before.
            const BYTES: usize = 64 << 20;
            let mut memory = vec![0_u8; BYTES];
            // Far from each other, for kernels with huge pages.
            memory.iter_mut().step_by(BYTES / 200).for_each(|byte| *byte = 1);
            (own_thread_pointer(), nix::unistd::gettid().as_raw(), std::hint::black_box(memory))
        };
        // Also of a thread that begins later.
        let threads = [touch(), std::thread::spawn(touch).join().unwrap()];
        let ranges = threads.each_ref().map(|(.., memory)| {
            let start = memory.as_ptr() as u64;
            start..start + memory.len() as u64
        });
        let mut found = [0; 2];
        loop {
            let records = faults.wait(Duration::from_millis(100)).unwrap();
            if records.is_empty() {
                break;
            }
            for record in records {
                let FaultRecord::Fault(fault) = record else { continue };
                for (found, ((pointer, tid, _), range)) in
                    found.iter_mut().zip(threads.iter().zip(&ranges))
                {
                    // Threads of other tests may have had memory there before.
                    if fault.tid == *tid
                        && range.contains(&fault.address.0)
                        && let Some(copy) = faults.copy(&fault)
                    {
                        assert_eq!(copy.len(), 16);
                        assert_eq!(copy[..8], pointer.to_le_bytes());
                        *found += 1;
                    }
                }
            }
        }
        // The kernel drops samples if other tests make too many at the same time.
        assert!(found.iter().all(|&found| found > 20), "{found:?}");
    }

    #[test]
    fn a_program_that_could_write_elsewhere_is_refused() {
        let write = |code: &mut Assembler| {
            code.begin_record(64);
            code.store(RECORD, 64, R6);
            code.end_record(R6);
        };
        assert!(StackCopies::load(write).is_err());
    }
}
