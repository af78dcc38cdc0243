use linux::Address;

/// The error for memory that cannot be read: it is unmapped, protected, swapped out, or gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot read {bytes} bytes at {at}")]
pub struct Unreadable {
    /// The start of the read.
    pub at: Address,
    /// The length of the read, in bytes.
    pub bytes: usize,
}

/// The memory of another process at one instant.
///
/// Walkers reach foreign memory in no other way, be it of a stopped process, a core file or a test's synthetic heap.
pub trait Memory: Sync {
    /// Reads memory at `at` into `into`, up to the first unreadable byte. Returns the number of bytes read.
    fn read(&self, at: Address, into: &mut [u8]) -> usize;

    /// Reads all of `into`.
    fn read_exact(&self, at: Address, into: &mut [u8]) -> Result<(), Unreadable> {
        let bytes = into.len();
        if self.read(at, into) == bytes { Ok(()) } else { Err(Unreadable { at, bytes }) }
    }

    /// Reads the little-endian 64-bit word at `at`.
    fn read_u64(&self, at: Address) -> Result<u64, Unreadable> {
        let mut bytes = [0; 8];
        self.read_exact(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads the little-endian 32-bit word at `at`.
    fn read_u32(&self, at: Address) -> Result<u32, Unreadable> {
        let mut bytes = [0; 4];
        self.read_exact(at, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads the little-endian 16-bit word at `at`.
    fn read_u16(&self, at: Address) -> Result<u16, Unreadable> {
        let mut bytes = [0; 2];
        self.read_exact(at, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// Reads the pointer at `at`.
    fn read_address(&self, at: Address) -> Result<Address, Unreadable> {
        self.read_u64(at).map(Address)
    }

    /// Reads the string at `at`, up to a NUL (not included) or `max` bytes, whichever comes first.
    fn read_c_string(&self, at: Address, max: usize) -> Result<Vec<u8>, Unreadable> {
        let mut bytes = vec![0; max];
        let got = self.read(at, &mut bytes);
        bytes.truncate(got);
        match bytes.iter().position(|&byte| byte == 0) {
            Some(end) => bytes.truncate(end),
            None if got < max => return Err(Unreadable { at, bytes: got + 1 }),
            None => {}
        }
        Ok(bytes)
    }
}

/// A buffered reader for walks that mostly move forward, so that a walk over a million small structures does not make
/// a system call for each.
///
/// The window is small after a jump, and doubles while the walk moves on from its end. So a walk that skips memory does
/// not read it either.
pub struct Window<'a> {
    memory: &'a dyn Memory,
    start: Address,
    valid: usize,
    /// Bytes that the next read requests, unless more are needed.
    ahead: usize,
    bytes: Box<[u8]>,
}

/// The size of a window after a jump, in bytes.
const AHEAD: usize = 2 * linux::MIN_PAGE_SIZE as usize;

impl<'a> Window<'a> {
    /// Creates a window of up to `size` bytes over `memory`. Nothing is read yet.
    #[must_use]
    pub fn new(memory: &'a dyn Memory, size: usize) -> Self {
        let bytes = vec![0; size.max(64)].into();
        Self { memory, start: Address(0), valid: 0, ahead: AHEAD, bytes }
    }

    /// Returns the `bytes` bytes at `at`, and moves the window there if necessary.
    ///
    /// # Errors
    /// If they cannot be read, or exceed the size of the window.
    pub fn bytes(&mut self, at: Address, bytes: usize) -> Result<&[u8], Unreadable> {
        if !self.covers(at, bytes) {
            let end = self.start.offset(self.valid as u64);
            let moves_on = self.start <= at && at <= end.offset(linux::MIN_PAGE_SIZE);
            self.ahead = if moves_on { self.ahead.saturating_mul(2) } else { AHEAD };
            self.ahead = self.ahead.min(self.bytes.len());
            // The window begins at a page boundary, so that small steps back stay inside.
            let start = at.align_down(linux::MIN_PAGE_SIZE);
            let within = (at - start) as usize;
            if within + bytes <= self.bytes.len() {
                self.fill(start, self.ahead.max(within + bytes));
            }
            if !self.covers(at, bytes) {
                // The start of the page may be unreadable, or the window too small to align.
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

    /// Returns the little-endian 64-bit word at `at`.
    ///
    /// # Errors
    /// If it cannot be read.
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
