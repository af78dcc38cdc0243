use crate::Address;

/// Foreign bytes that could not be read: unmapped, protected, swapped out, or gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at {at} cannot be read")]
pub struct Unreadable {
    /// Where the read began.
    pub at: Address,
    /// How many bytes were asked for.
    pub bytes: usize,
}

/// The bytes of another process, all of one instant.
///
/// The one way in which walkers reach foreign memory, whether it is a stopped process, a core
/// file or a test's synthetic heap.
pub trait Memory: Sync {
    /// Reads from `at` on into `into`, up to the first byte that cannot be read.
    ///
    /// Returns the number of bytes read, which is `into.len()` unless something was unreadable.
    fn read(&self, at: Address, into: &mut [u8]) -> usize;

    /// Reads all of `into`, or fails.
    fn read_exact(&self, at: Address, into: &mut [u8]) -> Result<(), Unreadable> {
        let bytes = into.len();
        if self.read(at, into) == bytes { Ok(()) } else { Err(Unreadable { at, bytes }) }
    }

    /// The little-endian 64-bit word at `at`.
    fn read_u64(&self, at: Address) -> Result<u64, Unreadable> {
        let mut bytes = [0; 8];
        self.read_exact(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The little-endian 32-bit word at `at`.
    fn read_u32(&self, at: Address) -> Result<u32, Unreadable> {
        let mut bytes = [0; 4];
        self.read_exact(at, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// The little-endian 16-bit word at `at`.
    fn read_u16(&self, at: Address) -> Result<u16, Unreadable> {
        let mut bytes = [0; 2];
        self.read_exact(at, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// The pointer at `at`.
    fn read_address(&self, at: Address) -> Result<Address, Unreadable> {
        self.read_u64(at).map(Address)
    }

    /// The bytes from `at` up to a NUL or `most` bytes, whichever comes first.
    fn read_c_string(&self, at: Address, most: usize) -> Result<Vec<u8>, Unreadable> {
        let mut bytes = vec![0; most];
        let got = self.read(at, &mut bytes);
        bytes.truncate(got);
        match bytes.iter().position(|&byte| byte == 0) {
            Some(end) => bytes.truncate(end),
            None if got < most => return Err(Unreadable { at, bytes: got + 1 }),
            None => {}
        }
        Ok(bytes)
    }
}

/// A reader for walks that mostly move forward: it reads a window of bytes at a time, so that a
/// walk over a million small structures does not cost a system call for each.
///
/// The window is small after a jump and doubles as long as the walk moves on from its end, so that
/// a walk which leaps over what it need not see does not read that either.
pub struct Window<'a> {
    memory: &'a dyn Memory,
    start: Address,
    valid: usize,
    /// Bytes that the next read asks for, unless more are needed.
    ahead: usize,
    bytes: Box<[u8]>,
}

/// Bytes of a window after a jump.
const AHEAD: usize = 2 * crate::PAGE_SIZE as usize;

impl<'a> Window<'a> {
    /// A window of up to `size` bytes over `memory`. Nothing is read yet.
    #[must_use]
    pub fn new(memory: &'a dyn Memory, size: usize) -> Self {
        let bytes = vec![0; size.max(64)].into();
        Self { memory, start: Address(0), valid: 0, ahead: AHEAD, bytes }
    }

    /// The `bytes` bytes at `at`; moves the window there where it does not cover them.
    ///
    /// Fails where they cannot be read, or are more than the window's size.
    pub fn bytes(&mut self, at: Address, bytes: usize) -> Result<&[u8], Unreadable> {
        if !self.covers(at, bytes) {
            let end = self.start.offset(self.valid as u64);
            let moves_on = self.start <= at && at <= end.offset(crate::PAGE_SIZE);
            self.ahead = if moves_on { self.ahead.saturating_mul(2) } else { AHEAD };
            self.ahead = self.ahead.min(self.bytes.len());
            // A window begins on its own page, so that a step back by some words stays inside.
            let start = at.align_down(crate::PAGE_SIZE);
            let within = (at - start) as usize;
            if within + bytes <= self.bytes.len() {
                self.fill(start, self.ahead.max(within + bytes));
            }
            if !self.covers(at, bytes) {
                // The page's beginning may be unreadable, or the window too small to align.
                self.fill(at, self.bytes.len());
            }
            if !self.covers(at, bytes) {
                return Err(Unreadable { at, bytes });
            }
        }
        let from = (at - self.start) as usize;
        Ok(&self.bytes[from..from + bytes])
    }

    fn covers(&self, at: Address, bytes: usize) -> bool {
        at >= self.start && (at - self.start).saturating_add(bytes as u64) <= self.valid as u64
    }

    fn fill(&mut self, start: Address, bytes: usize) {
        self.start = start;
        self.valid = self.memory.read(start, &mut self.bytes[..bytes]);
    }

    /// The little-endian 64-bit word at `at`.
    pub fn word(&mut self, at: Address) -> Result<u64, Unreadable> {
        let bytes = self.bytes(at, 8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("bytes() returns what was asked for")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(Address, Vec<u8>);

    impl Memory for Bytes {
        fn read(&self, at: Address, into: &mut [u8]) -> usize {
            let Some(from) = at.0.checked_sub(self.0.0) else { return 0 };
            let Some(rest) = self.1.get(from as usize..) else { return 0 };
            let bytes = rest.len().min(into.len());
            into[..bytes].copy_from_slice(&rest[..bytes]);
            bytes
        }
    }

    fn counting() -> Bytes {
        Bytes(Address(0x1010), (0..=255).cycle().take(9000).collect())
    }

    #[test]
    fn a_window_reads_what_the_memory_holds_in_any_order() {
        let memory = counting();
        let mut window = Window::new(&memory, 64);
        for at in [0x1010, 0x2000, 0x1011, 0x1018, 0x3000, 0x1013] {
            assert_eq!(window.word(Address(at)), memory.read_u64(Address(at)), "{at:#x}");
        }
    }

    /// Counts the bytes that are asked for.
    struct Counting(Bytes, std::sync::atomic::AtomicUsize);

    impl Memory for Counting {
        fn read(&self, at: Address, into: &mut [u8]) -> usize {
            self.1.fetch_add(into.len(), std::sync::atomic::Ordering::Relaxed);
            self.0.read(at, into)
        }
    }

    #[test]
    fn a_walk_that_leaps_reads_little_and_one_that_moves_on_reads_ahead() {
        let zeros = || Bytes(Address(0), vec![0; 4 << 20]);
        let memory = Counting(zeros(), 0.into());
        let mut window = Window::new(&memory, 256 << 10);
        for at in (0..4 << 20).step_by(64 << 10) {
            window.word(Address(at)).unwrap();
        }
        assert!(memory.1.into_inner() < 80 * AHEAD);

        let memory = Counting(zeros(), 0.into());
        let mut window = Window::new(&memory, 256 << 10);
        for at in (0..4 << 20).step_by(48) {
            window.word(Address(at)).unwrap();
            assert!(window.valid <= 256 << 10);
        }
        assert_eq!(window.ahead, 256 << 10);
    }

    #[test]
    fn reads_past_the_end_fail_with_their_address() {
        let memory = counting();
        let end = Address(0x1010 + 9000);
        let mut window = Window::new(&memory, 4096);
        assert!(window.word(end.before(8)).is_ok());
        let error = window.word(end.before(7)).unwrap_err();
        assert_eq!(error, Unreadable { at: end.before(7), bytes: 8 });
        assert_eq!(window.bytes(Address(0x1010), 5000).unwrap_err().bytes, 5000);
    }

    #[test]
    fn a_string_ends_at_its_nul_or_at_the_limit() {
        let memory = Bytes(Address(0), b"ruby\0junk".to_vec());
        assert_eq!(memory.read_c_string(Address(0), 64).unwrap(), b"ruby");
        assert_eq!(memory.read_c_string(Address(0), 3).unwrap(), b"rub");
        assert!(memory.read_c_string(Address(5), 64).is_err());
    }
}
