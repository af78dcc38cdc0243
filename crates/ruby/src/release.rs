//! The facts that depend on the release of CRuby, because they cannot be derived from a process's memory.
//!
//! Each only chooses between two ways to derive or to check something. A wrong choice fails that check: it is an error or a finding,
//! never a wrong number. An unknown version counts as the newest release.

use crate::Interpreter;
use crate::collector::CollectorLayout;
use crate::layout::object_layouts::StructFields;
use crate::layout::st_table::TableLayout;

impl Interpreter {
    /// A slot that a program gave back keeps its mark (`rb_gc_force_recycle` of gc.c, which does nothing from 3.1 on).
    pub(crate) fn may_mark_recycled_slots(&self) -> bool {
        !self.is_at_least(3, 1)
    }

    /// Entries of lists of subclasses refer to the entry before them, too (`rb_subclass_entry` of internal/class.h, from 3.1).
    #[must_use]
    pub fn has_previous_subclass(&self) -> bool {
        self.is_at_least(3, 1)
    }

    /// Caches of methods retain the methods, and so do their classes (3.0 to 3.2).
    #[must_use]
    pub fn retains_cached_methods(&self) -> bool {
        self.is_at_least(3, 0) && !self.is_at_least(3, 3)
    }

    /// The JIT compiler's address space reaches beyond its code (YJIT in Rust, from 3.2).
    pub(crate) fn reserves_code(&self) -> bool {
        self.is_at_least(3, 2)
    }

    /// Small arrays, hashes and structs have a heap of their own (transient_heap.c, removed in 3.3).
    pub(crate) fn has_transient_heap(&self) -> bool {
        !self.is_at_least(3, 3)
    }

    /// Internal objects have the numbers of 4.0 (`enum imemo_type` of internal/imemo.h, changed in 3.5.0dev).
    pub(crate) fn has_late_imemo_types(&self) -> bool {
        self.is_at_least(3, 5)
    }

    /// The place of a struct's instance variables (`fields_obj` of internal/struct.h).
    pub(crate) fn fields_of_structs(&self) -> StructFields {
        match () {
            () if self.is_at_least(4, 1) => StructFields::BeforeMembers,
            () if self.is_at_least(4, 0) => StructFields::BehindMembers,
            () => StructFields::Elsewhere,
        }
    }

    /// The layout of hash tables (`struct st_table` of include/ruby/st.h, changed in 4.1).
    #[must_use]
    pub fn table_layout(&self) -> TableLayout {
        if self.is_at_least(4, 1) { TableLayout::BinsBehindEntries } else { TableLayout::OwnBins }
    }

    /// Literals warn before they are changed (string.h, from 3.4).
    pub(crate) fn has_chilled_strings(&self) -> bool {
        self.is_at_least(3, 4)
    }

    /// The name that `ObjectSpace.dump_all` has for a shape whose objects have their variables in a table.
    #[must_use]
    pub fn name_of_complex_shapes(&self) -> &'static str {
        if self.is_at_least(4, 1) { "complex_shape" } else { "too_complex_shape" }
    }

    /// Shapes are in a list, instead of a tree with pointers (shape.c, from 4.0).
    pub(crate) fn has_shape_list(&self) -> bool {
        self.is_at_least(4, 0)
    }

    /// The main object and the lists of `require` are members of boxes (`rb_box_t` of internal/box.h, from 4.0).
    pub(crate) fn has_boxes(&self) -> bool {
        self.is_at_least(4, 0)
    }

    /// Messages for Ractors and their ports are in lists (`ractor_queue` of ractor_sync.c, from 4.0).
    #[must_use]
    pub fn has_lists_of_messages(&self) -> bool {
        self.is_at_least(4, 0)
    }

    /// The length of the longest path to load from is among those lists (`expanded_load_path_maxlen`, from 4.1).
    pub(crate) fn has_length_of_load_path(&self) -> bool {
        self.is_at_least(4, 1)
    }

    /// Heap pages come from a pool for all Ractors (`page_pool` of gc/default/default.c, from 4.1).
    pub(crate) fn has_page_pool(&self) -> bool {
        self.is_at_least(4, 1)
    }

    /// The program counter and the bytecode of frames that ZJIT compiled are elsewhere (`zjit_jit_frame` of zjit.h, from 4.1).
    pub(crate) fn may_have_frames_elsewhere(&self) -> bool {
        self.is_at_least(4, 1)
    }

    /// Such variables keep slots (`RUBY_GC_HEAP_INIT_BYTES` takes their place in 4.1).
    pub(crate) fn has_initial_numbers(&self) -> bool {
        self.is_at_least(2, 7) && !self.is_at_least(4, 1)
    }

    /// Slots of all sizes have one variable for their initial number (`RUBY_GC_HEAP_INIT_SLOTS`, up to 3.2).
    pub(crate) fn has_one_initial_number(&self) -> bool {
        !self.is_at_least(3, 3)
    }

    /// The places of the collector's state (`rb_objspace_t`); `None` for releases whose layout was not verified. From 4.0 on they follow from
    /// that of the first heap, in front of which they lie.
    pub(crate) fn collector_layout(&self, first_heap: Option<u64>) -> Option<CollectorLayout> {
        let common = CollectorLayout {
            limit: 0,
            flags: 16,
            flag_count: 13,
            disabled: 1 << 3,
            during_gc: 1 << 5 | 1 << 6,
            stress: Some(1 << 8),
            minor: Some(1 << 10),
            full_mark: None,
            counts: None,
        };
        Some(match () {
            () if self.is_at_least(4, 0) => {
                let before_heap = |bytes| first_heap.and_then(|heap| heap.checked_sub(bytes));
                let limit = before_heap(24)?;
                let of_40 = CollectorLayout {
                    limit,
                    flags: limit + 12,
                    full_mark: Some(limit + 8),
                    ..common
                };
                match self.is_at_least(4, 1) {
                    true => CollectorLayout {
                        flag_count: 15,
                        disabled: 1 << 4,
                        during_gc: 1 << 6 | 1 << 7 | 1 << 8,
                        stress: None,
                        minor: Some(1 << 11),
                        counts: Some((limit + 2392, limit + 2496)),
                        ..of_40
                    },
                    false => {
                        let counts = Some((limit + 976, limit + 1032));
                        CollectorLayout { counts, ..of_40 }
                    }
                }
            }
            () if self.is_at_least(3, 5) || !self.is_at_least(2, 7) => return None,
            () if self.is_at_least(3, 4) => {
                let counts = Some((952, 1008));
                CollectorLayout { flags: 20, full_mark: Some(16), counts, ..common }
            }
            () if self.is_at_least(3, 3) => {
                CollectorLayout { counts: Some((1336, 1392)), ..common }
            }
            () if self.is_at_least(3, 2) => CollectorLayout { stress: None, minor: None, ..common },
            () => CollectorLayout {
                stress: Some(1 << 7),
                minor: Some(1 << 9),
                counts: match () {
                    () if self.is_at_least(3, 1) => Some((384, 440)),
                    () if self.is_at_least(3, 0) => None,
                    () => Some((376, 424)),
                },
                ..common
            },
        })
    }

    /// Returns true for this release and later ones.
    fn is_at_least(&self, major: u32, minor: u32) -> bool {
        let mut numbers = self.version.split('.').map_while(|part| part.parse::<u32>().ok());
        match (numbers.next(), numbers.next()) {
            (Some(own_major), Some(own_minor)) => (own_major, own_minor) >= (major, minor),
            _ => true,
        }
    }
}
