/// The releases of Ruby whose heaps differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RubyRelease {
    /// 2.7.4: pages are malloc'ed, and their descriptors do not contain the size of slots.
    V2_7,
    /// 3.1.2: pages are mapped; one size of slots.
    V3_1,
    /// 3.2.0: larger pages, five sizes of slots, names among a class's variables.
    V3_2,
    /// 3.3.8: the name of a class is in its slot.
    V3_3,
    /// 3.4.5: emptied pages are kept, and the array of pages contains its length.
    V3_4,
    /// 4.0.0: superclasses at another offset.
    V4_0,
    /// 4.1-dev of August 2026: twelve sizes of slots, bitmaps by number, other descriptors.
    V4_1,
}

/// The place of a class's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamePlace {
    /// In a table that the second word of the extension refers to. The fourth word of the slot refers to the extension.
    Table,
    /// The first of the variables that the fifth word of the slot refers to.
    Variable,
    /// At this offset in the slot.
    Slot(u64),
}

/// Offsets in bytes, by the DWARF of each release.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) version: &'static str,
    pub(super) page_bytes: u64,
    /// The number of bytes at a page's end that do not belong to it.
    pub(super) page_tail: u64,
    pub(super) slot_sizes: &'static [u64],
    /// In a page's descriptor.
    pub(super) slot_size: Option<u64>,
    pub(super) total_slots: u64,
    pub(super) body: Option<u64>,
    pub(super) start: u64,
    pub(super) freelist: u64,
    pub(super) node: u64,
    /// `wb_unprotected_bits`, `mark_bits`, `uncollectible_bits`, `marking_bits`.
    pub(super) bitmaps: [u64; 4],
    pub(super) bits_by_number: bool,
    /// From the list's head to the pointer to the array of pages.
    pub(super) array: u64,
    pub(super) array_has_header: bool,
    /// In a class's slot.
    pub(super) superclass: u64,
    pub(super) name: NamePlace,
    /// The slot size that classes need.
    pub(super) class_bytes: u64,
    pub(super) singleton_flag: u64,
    pub(super) shared_flag: u64,
    /// True if the length of short strings is in the flags.
    pub(super) length_in_flags: bool,
    /// True if an age of two bits is in the flags of objects.
    pub(super) age_in_flags: bool,
    /// True if the fourth word of an object that wraps a C struct refers to the struct's type, with flags in its low
    /// bits.
    pub(super) tagged_types: bool,
}

const OLDER: Layout = Layout {
    version: "2.7.4",
    page_bytes: 16 << 10,
    page_tail: 40,
    slot_sizes: &[40],
    slot_size: None,
    total_slots: 0,
    body: None,
    start: 24,
    freelist: 32,
    node: 40,
    bitmaps: [56, 112, 168, 224],
    bits_by_number: false,
    array: 0xb8,
    array_has_header: false,
    superclass: 16,
    name: NamePlace::Table,
    class_bytes: 40,
    singleton_flag: 1 << 12,
    shared_flag: 1 << 14,
    length_in_flags: true,
    age_in_flags: true,
    tagged_types: false,
};

const NEWER: Layout = Layout {
    version: "3.3.8",
    page_bytes: 64 << 10,
    page_tail: 0,
    slot_sizes: &[40, 80, 160, 320, 640],
    slot_size: Some(0),
    total_slots: 2,
    start: 32,
    freelist: 40,
    node: 48,
    bitmaps: [64, 272, 480, 688],
    array: 0x280,
    name: NamePlace::Slot(152),
    class_bytes: 160,
    length_in_flags: false,
    age_in_flags: false,
    ..OLDER
};

impl Layout {
    /// The number of a type of internal objects (`enum imemo_type`).
    pub(super) fn imemo_number(&self, name: &str) -> u8 {
        let later = self.version >= "4";
        match name {
            "env" => 0,
            "cref" => 1,
            "svar" => 2,
            "throw_data" => 3,
            "ifunc" => 4,
            "memo" => 5,
            "ment" => 6,
            "iseq" => 7,
            "tmpbuf" => 8,
            "ast" if !later => 9,
            "callinfo" if !later => 11,
            "callcache" if !later => 12,
            "constcache" if !later => 13,
            "callinfo" => 10,
            "callcache" => 11,
            "constcache" => 12,
            "fields" if later => 13,
            _ => panic!("{} has no {name}", self.version),
        }
    }
}

impl RubyRelease {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::V2_7, Self::V3_1, Self::V3_2, Self::V3_3, Self::V3_4, Self::V4_0, Self::V4_1];

    /// The value of `RUBY_VERSION`.
    #[must_use]
    pub fn version(self) -> &'static str {
        self.layout().version
    }

    pub(super) fn layout(self) -> Layout {
        match self {
            Self::V2_7 => OLDER,
            Self::V3_1 => Layout {
                version: "3.1.2",
                page_tail: 0,
                slot_size: Some(0),
                total_slots: 2,
                start: 32,
                freelist: 40,
                node: 48,
                bitmaps: [64, 120, 176, 232],
                array: 0xc0,
                ..OLDER
            },
            Self::V3_2 => Layout {
                version: "3.2.0",
                array: 0x250,
                name: NamePlace::Variable,
                age_in_flags: true,
                ..NEWER
            },
            Self::V3_3 => NEWER,
            Self::V3_4 => Layout {
                version: "3.4.5",
                body: Some(32),
                start: 40,
                freelist: 48,
                node: 56,
                bitmaps: [72, 280, 488, 696],
                array: 0x1a8,
                array_has_header: true,
                singleton_flag: 1 << 13,
                shared_flag: 1 << 12,
                ..NEWER
            },
            Self::V4_0 => Layout {
                version: "4.0.0",
                array: 0x1b8,
                superclass: 32,
                tagged_types: true,
                ..Self::V3_4.layout()
            },
            Self::V4_1 => Layout {
                version: "4.1.0",
                slot_sizes: &[32, 40, 64, 80, 96, 128, 160, 256, 512, 640, 768, 1024],
                slot_size: Some(24),
                total_slots: 26,
                body: Some(64),
                start: 8,
                freelist: 0,
                node: 80,
                bitmaps: [96, 352, 608, 864],
                bits_by_number: true,
                array: 0x418,
                superclass: 32,
                tagged_types: true,
                name: NamePlace::Slot(48),
                ..Self::V3_4.layout()
            },
        }
    }
}

/// A change to the layout of a release, as a later release might make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shift {
    /// More bytes in a page's descriptor, before the member at this offset.
    Descriptor {
        /// The offset of the member.
        at: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// Each bitmap is this number of bytes larger.
    Bitmaps(u64),
    /// The pointer to the array of pages is this number of bytes further from the list's head.
    Array(u64),
    /// The superclass and the name of a class are this number of bytes further from the beginning of its slot.
    Class(u64),
    /// The flag of singleton classes is the next bit.
    SingletonFlag,
}

impl Shift {
    /// Returns all shifts that are possible for a release.
    #[must_use]
    pub fn all(release: RubyRelease) -> Vec<Self> {
        let layout = release.layout();
        let mut members = vec![layout.total_slots, layout.start, layout.freelist, layout.node];
        members.extend(layout.bitmaps);
        members.extend(layout.slot_size);
        members.extend(layout.body);
        let sizes = [8, 16, 64];
        let mut all = vec![Self::SingletonFlag];
        for bytes in sizes {
            all.extend(members.iter().map(|&at| Self::Descriptor { at, bytes }));
            all.extend([Self::Bitmaps(bytes), Self::Array(bytes)]);
            // Up to 3.2, pointers follow these words of a class.
            if matches!(layout.name, NamePlace::Slot(_)) {
                all.push(Self::Class(bytes));
            }
        }
        all
    }
}

impl Layout {
    /// Returns this layout after a change.
    pub(super) fn shifted(self, shift: Shift) -> Self {
        let mut it = self;
        match shift {
            Shift::Descriptor { at, bytes } => {
                let move_on = |member: &mut u64| *member += if *member >= at { bytes } else { 0 };
                let members = [&mut it.total_slots, &mut it.start, &mut it.freelist, &mut it.node];
                members.into_iter().for_each(move_on);
                it.bitmaps.iter_mut().for_each(move_on);
                it.slot_size.iter_mut().for_each(move_on);
                it.body.iter_mut().for_each(move_on);
            }
            Shift::Bitmaps(bytes) => {
                (0..).zip(&mut it.bitmaps).for_each(|(index, at)| *at += index * bytes);
            }
            Shift::Array(bytes) => it.array += bytes,
            Shift::Class(bytes) => {
                it.superclass += bytes;
                if let NamePlace::Slot(at) = &mut it.name {
                    *at += bytes;
                    let needed = *at + 8;
                    let sizes = it.slot_sizes.iter().copied();
                    it.class_bytes = sizes.filter(|&size| size >= needed).min().expect("one is");
                }
            }
            Shift::SingletonFlag => it.singleton_flag <<= 1,
        }
        it
    }
}
