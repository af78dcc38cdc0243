use crate::arch::{self, Cpu};

/// The smallest page of any kernel. All pages begin at its multiples, so memory is read in units of it.
pub const MIN_PAGE_SIZE: u64 = 4096;

/// The sizes of pages that kernels for x86-64 and aarch64 can have.
const PAGE_SIZES: [u64; 3] = [MIN_PAGE_SIZE, 16 << 10, 64 << 10];

/// The facts about the machine that a target runs on which its memory depends on. It need not be the machine that rbloat
/// runs on: a core may come from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Its CPU.
    pub cpu: Cpu,
    /// Bytes of a page of its kernel, a power of two.
    pub page_size: u64,
}

impl Machine {
    /// Returns the machine that rbloat runs on.
    #[must_use]
    pub fn own() -> Self {
        Self { cpu: Cpu::OWN, page_size: arch::page_size() }
    }

    /// Returns a machine with pages of this size; `None` if no kernel has such pages.
    #[must_use]
    pub fn new(cpu: Cpu, page_size: u64) -> Option<Self> {
        PAGE_SIZES.contains(&page_size).then_some(Self { cpu, page_size })
    }

    /// Bytes of a transparent huge page that the page tables map as one: the pages to which one page of entries points.
    #[must_use]
    pub fn huge_page_size(self) -> u64 {
        self.page_size.saturating_mul(self.page_size / 8)
    }
}

/// A machine with rbloat's own CPU and the smallest pages.
impl Default for Machine {
    fn default() -> Self {
        Self { cpu: Cpu::OWN, page_size: MIN_PAGE_SIZE }
    }
}
