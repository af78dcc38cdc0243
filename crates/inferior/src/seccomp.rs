//! The judgement of a thread's seccomp filters about system calls.
//!
//! A filter may kill the process for a system call, so none is tried out. The filters are read and run here, as the
//! kernel would run them (Documentation/userspace-api/seccomp_filter.rst and networking/filter.rst). Reading them
//! needs CAP_SYS_ADMIN, and that rbloat is under no filter itself.

use std::fs;

use linux::SystemCall;
use linux::arch::AUDIT_ARCH;
use nix::errno::Errno;

/// PTRACE_SECCOMP_GET_FILTER of linux/ptrace.h.
const GET_FILTER: libc::c_uint = 0x420c;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const ACTION: u32 = 0xffff_0000;
/// BPF_MAXINSNS of linux/bpf_common.h.
const MAX_INSTRUCTIONS: usize = 4096;
/// The end of a bounded walk: more filters than a thread has.
const MAX_FILTERS: usize = 64;

/// `struct sock_filter` of linux/filter.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    k: u32,
}

/// Returns the word at an offset into `struct seccomp_data` of linux/seccomp.h; `None` if it is unknown, or the offset is
/// invalid.
fn word(call: &SystemCall, offset: u32) -> Option<u32> {
    let half = |value: u64, high: bool| (if high { value >> 32 } else { value }) as u32;
    match offset {
        0 => Some(call.number as u32),
        4 => Some(AUDIT_ARCH),
        8 | 12 => Some(half(call.instruction?.0, offset == 12)),
        16..64 if offset.is_multiple_of(4) => {
            let argument = call.arguments[(offset as usize - 16) / 8]?;
            Some(half(argument, offset % 8 == 4))
        }
        _ => None,
    }
}

/// Returns true if the thread `tid` of `pid`, which we have stopped, may make all of `calls`; false also if its filters
/// cannot be read. Each thread has filters of its own.
pub(crate) fn allows(pid: i32, tid: i32, calls: &[SystemCall]) -> bool {
    let Ok(status) = fs::read(format!("/proc/{pid}/task/{tid}/status")) else { return false };
    let mut lines = status.split(|&byte| byte == b'\n');
    match lines.find_map(|line| line.strip_prefix(b"Seccomp:")) {
        // A kernel without seccomp.
        None => true,
        Some(mode) if mode.trim_ascii() == b"0" => true,
        Some(_) => filters_allow(tid, calls),
    }
}

fn filters_allow(tid: i32, calls: &[SystemCall]) -> bool {
    for index in 0..MAX_FILTERS {
        match filter(tid, index) {
            Ok(program) => {
                let lets_through = |call| matches!(run(&program, call), Some(ALLOW | LOG));
                if !calls.iter().all(lets_through) {
                    return false;
                }
            }
            // There are no more.
            Err(Errno::ENOENT) => return index > 0,
            Err(_) => return false,
        }
    }
    false
}

/// Reads a filter of the thread; number 0 is the newest.
fn filter(tid: i32, index: usize) -> Result<Vec<Instruction>, Errno> {
    let mut program = vec![Instruction::default(); MAX_INSTRUCTIONS];
    // SAFETY: the kernel writes no more instructions than a filter may have, for which there is room.
    let length = unsafe { libc::ptrace(GET_FILTER, tid, index, program.as_mut_ptr()) };
    let length = Errno::result(length)?;
    program.truncate(usize::try_from(length).unwrap_or(0));
    Ok(program)
}

/// Returns the action of a filter for a call, without its data; `None` if the program is invalid, or asks for something
/// that is unknown.
fn run(program: &[Instruction], call: &SystemCall) -> Option<u32> {
    let (mut accumulator, mut index) = (0_u32, 0_u32);
    let mut memory = [0_u32; 16];
    let mut at = 0;
    // Jumps lead forward only, so it ends.
    while let Some(&Instruction { code, if_true, if_false, k }) = program.get(at) {
        at += 1;
        let operand = if code & 0x08 == 0 { k } else { index };
        let jump = |yes: bool| usize::from(if yes { if_true } else { if_false });
        match code {
            0x20 => accumulator = word(call, k)?,
            0x80 => accumulator = 64,
            0x81 => index = 64,
            0x00 => accumulator = k,
            0x01 => index = k,
            0x60 => accumulator = *memory.get(k as usize)?,
            0x61 => index = *memory.get(k as usize)?,
            0x02 => *memory.get_mut(k as usize)? = accumulator,
            0x03 => *memory.get_mut(k as usize)? = index,
            0x04 | 0x0c => accumulator = accumulator.wrapping_add(operand),
            0x14 | 0x1c => accumulator = accumulator.wrapping_sub(operand),
            0x24 | 0x2c => accumulator = accumulator.wrapping_mul(operand),
            0x34 | 0x3c => accumulator = accumulator.checked_div(operand)?,
            0x44 | 0x4c => accumulator |= operand,
            0x54 | 0x5c => accumulator &= operand,
            0x64 | 0x6c => accumulator = accumulator.checked_shl(operand)?,
            0x74 | 0x7c => accumulator = accumulator.checked_shr(operand)?,
            0x84 => accumulator = accumulator.wrapping_neg(),
            0xa4 | 0xac => accumulator ^= operand,
            0x05 => at += k as usize,
            0x15 | 0x1d => at += jump(accumulator == operand),
            0x25 | 0x2d => at += jump(accumulator > operand),
            0x35 | 0x3d => at += jump(accumulator >= operand),
            0x45 | 0x4d => at += jump(accumulator & operand != 0),
            0x06 => return Some(k & ACTION),
            0x16 => return Some(accumulator & ACTION),
            0x07 => index = accumulator,
            0x87 => accumulator = index,
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL: u32 = 0x8000_0000;

    fn step(code: u16, if_true: u8, if_false: u8, k: u32) -> Instruction {
        Instruction { code, if_true, if_false, k }
    }

    fn clone(flags: u64) -> SystemCall {
        SystemCall {
            number: libc::SYS_clone,
            instruction: Some(linux::Address(0x7f00_0000_1234)),
            arguments: [flags, 1, 2, 3, 4, 5].map(Some),
        }
    }

    #[test]
    fn a_filter_as_container_runtimes_install_it() {
        // clone(2) is allowed unless it asks for namespaces, everything else is not.
        let program = [
            step(0x20, 0, 0, 4),
            step(0x15, 0, 5, AUDIT_ARCH),
            step(0x20, 0, 0, 0),
            step(0x15, 0, 3, libc::SYS_clone as u32),
            step(0x20, 0, 0, 16),
            step(0x45, 1, 0, 0x7e02_0000),
            step(0x06, 0, 0, ALLOW),
            step(0x06, 0, 0, KILL),
        ];
        assert_eq!(run(&program, &clone(0x400)), Some(ALLOW));
        assert_eq!(run(&program, &clone(0x1000_0000)), Some(KILL));
        let other = SystemCall { number: libc::SYS_wait4, ..clone(0) };
        assert_eq!(run(&program, &other), Some(KILL));
    }

    #[test]
    fn arithmetic_and_memory_are_those_of_the_kernel() {
        let program = [
            step(0x20, 0, 0, 12),
            step(0x02, 0, 0, 3),
            step(0x00, 0, 0, 7),
            step(0x07, 0, 0, 0),
            step(0x60, 0, 0, 3),
            step(0x0c, 0, 0, 0),
            step(0x64, 0, 0, 16),
            step(0x16, 0, 0, 0),
        ];
        assert_eq!(run(&program, &clone(0)), Some((0x7f00 + 7) << 16));
    }

    #[test]
    fn a_filter_that_asks_for_an_unknown_value_allows_nothing() {
        let by_number = [step(0x20, 0, 0, 0), step(0x06, 0, 0, ALLOW)];
        let by_address = [step(0x20, 0, 0, 16), step(0x06, 0, 0, ALLOW)];
        let by_third = [step(0x20, 0, 0, 32), step(0x06, 0, 0, ALLOW)];
        let by_instruction = [step(0x20, 0, 0, 8), step(0x06, 0, 0, ALLOW)];
        let call = SystemCall::any(libc::SYS_madvise).with(2, 4);
        assert_eq!(run(&by_number, &call), Some(ALLOW));
        assert_eq!(run(&by_third, &call), Some(ALLOW));
        assert_eq!(run(&by_address, &call), None);
        assert_eq!(run(&by_instruction, &call), None);
    }

    #[test]
    fn an_invalid_filter_allows_nothing() {
        assert_eq!(run(&[], &clone(0)), None);
        assert_eq!(run(&[step(0x20, 0, 0, 64)], &clone(0)), None);
        assert_eq!(run(&[step(0x34, 0, 0, 0)], &clone(0)), None);
        assert_eq!(run(&[step(0x05, 0, 0, 99), step(0x06, 0, 0, ALLOW)], &clone(0)), None);
        assert_eq!(run(&[step(0xff, 0, 0, 0)], &clone(0)), None);
    }
}
