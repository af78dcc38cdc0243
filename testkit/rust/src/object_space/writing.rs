use image::Image;

use super::holders::{SHAPE_LIST, SHAPE_LIST_BYTES, VARIABLE_GETTER};
use super::release::NamePlace;
use super::{
    HeapPage, MEMORY_START, NOT_EMBEDDED, OBJECT_SPACE, OBJECT_SPACE_BYTES, Object, RubyHeap,
    RubyTruth, T_DATA, T_FLOAT, T_ICLASS, T_IMEMO, T_STRING, Word, shapes,
};
use crate::SyntheticMemory;
use crate::elf_module::ElfModule;

const LIBRUBY: u64 = 0x7f10_0000_0000;
const VARIABLE_BYTES: u64 = 0x4000;
/// The VM, and the list of shapes, both before the object space.
const VM: u64 = MEMORY_START + 0x200;
const SHAPES: u64 = MEMORY_START + 0x900;
/// The distance of the list heads of the sizes of slots, in the object space.
const HEAD_DISTANCE: u64 = 0x40;

const TYPES: [&str; 32] = [
    "T_NONE",
    "T_OBJECT",
    "T_CLASS",
    "T_MODULE",
    "T_FLOAT",
    "T_STRING",
    "T_REGEXP",
    "T_ARRAY",
    "T_HASH",
    "T_STRUCT",
    "T_BIGNUM",
    "T_FILE",
    "T_DATA",
    "T_MATCH",
    "T_COMPLEX",
    "T_RATIONAL",
    "16",
    "T_NIL",
    "T_TRUE",
    "T_FALSE",
    "T_SYMBOL",
    "T_FIXNUM",
    "T_UNDEF",
    "23",
    "24",
    "25",
    "T_IMEMO",
    "T_NODE",
    "T_ICLASS",
    "T_ZOMBIE",
    "T_MOVED",
    "31",
];

fn object_space(number: usize) -> u64 {
    OBJECT_SPACE + OBJECT_SPACE_BYTES * number as u64
}

impl RubyHeap {
    /// Returns the image of a process with only this heap, and the facts that a reader must find in it.
    #[must_use]
    pub fn image(&self) -> (Image<'static>, RubyTruth) {
        let mut memory = SyntheticMemory::default();
        let truth = self.write(&mut memory);
        (memory.image(), truth)
    }

    /// Writes the heap and its interpreter, with their mappings.
    pub fn write(&self, memory: &mut SyntheticMemory) -> RubyTruth {
        let mut heap = self.clone();
        let emptied: Vec<HeapPage> = (0..heap.emptied).map(|_| heap.emptied_page()).collect();
        let mut all = heap.pages.clone();
        all.extend(emptied);
        all.sort_by_key(|page| page.base);
        let arrays: Vec<u64> =
            (0..heap.spaces).map(|_| heap.malloc(16 + 8 * all.len() as u64 + 64)).collect();
        let freed: Vec<HeapPage> = (0..heap.freed).map(|_| heap.freed_page()).collect();
        for page in all.iter().chain(&freed) {
            memory.map(page.base, heap.layout.page_bytes);
        }
        let end = heap.next_memory.next_multiple_of(memory.machine.page_size);
        memory.map(MEMORY_START, end - MEMORY_START);
        let mut page_arrays = Vec::new();
        for (space, &array) in arrays.iter().enumerate() {
            let own = all.iter().skip(space).step_by(heap.spaces).cloned().collect::<Vec<_>>();
            heap.write_pages(memory, &own, space);
            heap.write_object_space(memory, &own, space, array);
            let header = if heap.layout.array_has_header { 16 } else { 0 };
            page_arrays.push((array, header + 8 * own.len() as u64));
        }
        for (index, page) in (0..).zip(&freed) {
            heap.write_freed_page(memory, page, &all);
            memory.write_u64(arrays[0] + 8 * (all.len() as u64 + index), page.descriptor);
        }
        for object in heap.objects.values() {
            heap.write_object(memory, object);
        }
        for (at, bytes) in &heap.memory {
            memory.write(*at, bytes);
        }
        heap.write_interpreter(memory);
        RubyTruth { page_arrays, ..heap.truth(&all) }
    }

    fn emptied_page(&mut self) -> HeapPage {
        let base = self.next_page;
        self.next_page += self.layout.page_bytes;
        let descriptor = self.malloc(3072);
        HeapPage { base, descriptor, slot_bytes: 0, first_slot: 0, slot_count: 0, used: 0 }
    }

    fn freed_page(&mut self) -> HeapPage {
        let emptied = self.emptied_page();
        let bytes = self.layout.slot_sizes[0];
        HeapPage { slot_bytes: bytes, first_slot: self.first_slot(emptied.base, bytes), ..emptied }
    }

    /// Writes a freed page with its descriptor, which still refers to its former neighbours. They no longer refer to
    /// it.
    fn write_freed_page(&self, memory: &mut SyntheticMemory, page: &HeapPage, others: &[HeapPage]) {
        memory.write_u64(page.base, page.descriptor);
        memory.write_u64(page.descriptor + self.layout.start, page.first_slot);
        let neighbours = [&others[0], &others[1]].map(|page| page.descriptor + self.layout.node);
        for (index, neighbour) in (0..).zip(neighbours) {
            memory.write_u64(page.descriptor + self.layout.node + 8 * index, neighbour);
        }
    }

    /// Sets the mark bits of a page that belong to no slot.
    fn mark_around_slots(&self, memory: &mut SyntheticMemory, page: &HeapPage) {
        let bit = |slot: u64| {
            if self.layout.bits_by_number {
                slot
            } else {
                (page.first_slot - page.base + slot * page.slot_bytes) / 40
            }
        };
        let after = bit(page.slot_count);
        for bit in (0..bit(0)).chain(after..after.next_multiple_of(64)) {
            let at = page.descriptor + self.layout.bitmaps[1] + bit / 64 * 8;
            memory.write_u64(at, memory.word(at) | 1 << (bit % 64));
        }
    }

    fn write_interpreter(&self, memory: &mut SyntheticMemory) {
        let mut library = ElfModule::new("/usr/lib/libruby.so.0", LIBRUBY, VARIABLE_BYTES);
        let version = self.layout.version.as_bytes();
        library.constant("ruby_version", &[version, b"\0"].concat());
        library.variables(None, &[0x5eed; 9]);
        for (symbol, value) in &self.variables {
            library.variables(Some(symbol), &[*value]);
        }
        library.variables(None, &[OBJECT_SPACE, 0, MEMORY_START + 0x800]);
        if self.layout.name == NamePlace::Variable {
            library.variables(Some("ruby_current_vm_ptr"), &[VM]);
            shapes::write(memory, VM, SHAPES);
        }
        library.variables(None, &self.interpreter_words);
        library.symbol("rb_gvar_var_getter", VARIABLE_GETTER);
        if !self.shape_list.is_empty() {
            memory.map(SHAPE_LIST, SHAPE_LIST_BYTES);
            memory.write(SHAPE_LIST, &self.shape_list);
        }
        library.write(memory);
    }

    /// Returns the address of the list head of an object space's pages with slots of `bytes`.
    fn head(&self, bytes: u64, space: usize) -> u64 {
        let index = self.layout.slot_sizes.iter().position(|&own| own == bytes).expect("it is one");
        object_space(space) + 0x800 + HEAD_DISTANCE * index as u64
    }

    fn write_pages(&self, memory: &mut SyntheticMemory, pages: &[HeapPage], space: usize) {
        let layout = &self.layout;
        for page in pages {
            memory.write_u64(page.base, page.descriptor);
            if let Some(body) = layout.body {
                memory.write_u64(page.descriptor + body, page.base);
            }
            if page.slot_count == 0 {
                continue;
            }
            let short = |memory: &mut SyntheticMemory, at: u64, value: u64| {
                memory.write(page.descriptor + at, &(value as u16).to_le_bytes());
            };
            if let Some(at) = layout.slot_size {
                short(memory, at, page.slot_bytes);
            }
            short(memory, layout.total_slots, page.slot_count);
            short(memory, layout.total_slots + 2, page.slot_count - page.used);
            memory.write_u64(page.descriptor + layout.start, page.first_slot);
            self.write_free_slots(memory, page);
            if self.is_swept {
                self.mark_around_slots(memory, page);
            }
        }
        for &bytes in layout.slot_sizes {
            let alike = pages.iter().filter(|page| page.slot_bytes == bytes);
            let mut ring = vec![self.head(bytes, space)];
            ring.extend(alike.map(|page| page.descriptor + layout.node));
            for (index, &node) in ring.iter().enumerate() {
                memory.write_u64(node, ring[(index + 1) % ring.len()]);
                memory.write_u64(node + 8, ring[(index + ring.len() - 1) % ring.len()]);
            }
        }
    }

    fn write_free_slots(&self, memory: &mut SyntheticMemory, page: &HeapPage) {
        let slots = (0..page.slot_count).map(|number| page.first_slot + number * page.slot_bytes);
        let free: Vec<u64> = slots.filter(|slot| !self.objects.contains_key(slot)).collect();
        for (index, &slot) in free.iter().enumerate() {
            memory.write_u64(slot, 0);
            memory.write_u64(slot + 8, free.get(index + 1).copied().unwrap_or(0));
            // A word of the previous object is still there.
            memory.write_u64(slot + 16, MEMORY_START + 0x100);
        }
        memory
            .write_u64(page.descriptor + self.layout.freelist, free.first().copied().unwrap_or(0));
    }

    fn write_object_space(
        &self,
        memory: &mut SyntheticMemory,
        pages: &[HeapPage],
        space: usize,
        array: u64,
    ) {
        let layout = &self.layout;
        let at = self.head(layout.class_bytes, space) + layout.array;
        let count = pages.len() as u64;
        memory.write_u64(at, array);
        let elements = if layout.array_has_header {
            memory.write_u64(array, count);
            memory.write_u64(array + 8, count + 8);
            memory.write_u64(at + 8, count);
            array + 16
        } else {
            memory.write_u64(at + 8, count);
            memory.write_u64(at + 16, 3);
            memory.write_u64(at + 24, count + 8);
            array
        };
        for (index, page) in (0..).zip(pages) {
            memory.write_u64(elements + 8 * index, page.descriptor);
        }
        // The array was longer before: an element remains behind its end.
        if let Some(last) = pages.last() {
            memory.write_u64(elements + 8 * count, last.descriptor);
        }
        // Pointers to some pages, but to no array of all pages.
        let own = object_space(space);
        memory.write_u64(own + 0x40, pages[0].descriptor);
        memory.write_u64(own + 0x48, elements + 8 * (count / 2));
        memory.write_u64(own + 0x50, count - count / 2 + 1);
    }

    fn write_object(&self, memory: &mut SyntheticMemory, object: &Object) {
        memory.write_u64(object.address, object.flags);
        memory.write_u64(object.address + 8, object.class);
        for (index, word) in (0..).zip(&object.words) {
            let (Word::Pointer(word) | Word::Value(word)) = word;
            memory.write_u64(object.address + 16 + 8 * index, *word);
        }
        let page = self.page_of(object.address);
        let bit = if self.layout.bits_by_number {
            (object.address - page.first_slot) / page.slot_bytes
        } else {
            (object.address - page.base) / 40
        };
        let [unprotected, marked, old, _] = self.layout.bitmaps;
        for (at, is_set) in
            [(unprotected, object.is_unprotected), (marked, object.is_marked), (old, object.is_old)]
        {
            let at = page.descriptor + at + bit / 64 * 8;
            memory.write_u64(at, memory.word(at) | u64::from(is_set) << (bit % 64));
        }
    }

    fn page_of(&self, object: u64) -> &HeapPage {
        let base = object / self.layout.page_bytes * self.layout.page_bytes;
        self.pages.iter().find(|page| page.base == base).expect("objects are in pages")
    }

    fn truth(&self, pages: &[HeapPage]) -> RubyTruth {
        let mut truth = RubyTruth::default();
        let total: u64 = pages.iter().map(|page| page.slot_count).sum();
        truth.counts.insert("TOTAL".into(), total);
        truth.counts.insert("FREE".into(), total - self.objects.len() as u64);
        truth.pages = pages.iter().map(|page| page.base).collect();
        for object in self.objects.values() {
            let kind = TYPES[usize::from(object.kind)];
            *truth.counts.entry(kind.into()).or_default() += 1;
            *truth.classes.entry(self.class_name(object)).or_default() += 1;
            let is_pointer = |word: &Word| match word {
                Word::Pointer(pointer) => Some((object.address, *pointer)),
                Word::Value(_) => None,
            };
            truth.references.extend(object.words.iter().filter_map(is_pointer));
            truth.links.extend(self.links(object));
            if object.kind == T_DATA {
                let data_type = self.typed.get(&object.address);
                let name = data_type.map(|it| self.data_types[it].clone());
                truth.data.push((object.address, name));
            }
            if object.is_marked {
                truth.marked.push(object.address);
            }
        }
        truth
    }

    /// Returns the other objects that an object's words refer to, of which two equal ones in a row count once, and its
    /// singleton class.
    fn links(&self, object: &Object) -> Vec<(u64, u64)> {
        let has_no_class = [T_IMEMO, T_ICLASS].contains(&object.kind);
        let is_text = object.kind == T_STRING && object.flags & NOT_EMBEDDED == 0;
        let words = object.words.iter().filter(|_| !is_text && object.kind != T_FLOAT);
        let words = words.map(|word| match word {
            Word::Pointer(word) | Word::Value(word) => *word,
        });
        let others = has_no_class
            .then_some(object.class)
            .into_iter()
            .chain(words)
            .filter(|word| *word != object.address && self.objects.contains_key(word));
        let mut links: Vec<(u64, u64)> = others.map(|to| (object.address, to)).collect();
        links.dedup();
        let has_singleton = !has_no_class
            && object.class != object.address
            && self.singletons.contains_key(&object.class);
        links.extend(has_singleton.then_some((object.address, object.class)));
        links
    }

    fn class_name(&self, object: &Object) -> String {
        let kind = TYPES[usize::from(object.kind)];
        match object.kind {
            T_IMEMO => return format!("(imemo_{})", self.imemos[&object.address]),
            0x1c..=0x1e => return format!("({kind})"),
            _ if object.class == 0 => return format!("({kind})"),
            _ => {}
        }
        let mut class = object.class;
        while let Some(superclass) = self.singletons.get(&class) {
            class = *superclass;
        }
        self.names.get(&class).cloned().unwrap_or_else(|| "anonymous".into())
    }
}
