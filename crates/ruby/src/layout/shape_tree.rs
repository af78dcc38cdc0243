//! Shapes: from 3.2 on they map the instance variables of an object to their positions.
//!
//! `struct rb_shape` is in shape.h of 3.2 to 3.4. The list of shapes is in `rb_vm_t` (vm_core.h) in
//! 3.2, and in `rb_shape_tree_t` (shape.h) since. A shape adds one variable to its parent. The upper
//! half of an object's flags is the number of its shape; from 4.0 on only the lower 19 bits of that half. From 4.1 on other bits of it
//! tell where the object has its variables.

use image::{Image, Memory};
use linux::Address;

use crate::interpreter::Interpreter;
use crate::word::{word, words};

/// More bytes than an `rb_vm_t` has.
const MAX_VM_BYTES: usize = 48 << 10;
/// The part of a shape that is read.
const READ_BYTES: usize = 33;
/// `SHAPE_IVAR`: a shape that adds a variable.
const SHAPE_IVAR: u8 = 1;
/// `SHAPE_OBJ_ID`: a shape that adds the object's number.
const SHAPE_OBJ_ID: u8 = 2;
/// `SHAPE_OBJ_TOO_COMPLEX`: a shape whose objects have their variables in a table (3.2; 3.3 and 3.4).
const SHAPE_OBJ_TOO_COMPLEX_IN_VM: u8 = 6;
const SHAPE_OBJ_TOO_COMPLEX: u8 = 4;
/// `INVALID_SHAPE_ID`, the parent of the root (up to 4.0; later on, all bits of a place in the list).
const INVALID_SHAPE_ID: u32 = u32::MAX;
/// The most shapes of a process (`SHAPE_BUFFER_SIZE`).
pub(crate) const MAX_SHAPES: u32 = 1 << 19;
/// The type of the shape for objects of too many shapes (up to 3.4).
pub(crate) const KIND_OF_COMPLEX: &str = "OBJ_TOO_COMPLEX";
/// The types of shapes (`enum shape_type` of 3.2, 3.3, and 4.0), as `ObjectSpace.dump_all` names them.
const KINDS_IN_VM: [&str; 7] =
    ["ROOT", "IVAR", "FROZEN", "CAPACITY_CHANGE", "INITIAL_CAPACITY", "T_OBJECT", KIND_OF_COMPLEX];
const KINDS_IN_TREE: [&str; 5] = ["ROOT", "IVAR", "FROZEN", "T_OBJECT", KIND_OF_COMPLEX];
const KINDS: [&str; 3] = ["ROOT", "IVAR", "OBJ_ID"];
/// More shapes than there are between any shape and the root.
const MAX_DEPTH: usize = 4096;

/// The shapes of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShapeTree {
    list: Address,
    pub(crate) home: ShapeHome,
}

/// The structure that has the list of shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShapeHome {
    /// `rb_vm_t` (3.2).
    Vm,
    /// `rb_shape_tree_t`, in malloc'ed memory (3.3, 3.4).
    Tree,
    /// The same, as a variable of the interpreter (4.0).
    Variable,
    /// The same, with shorter shapes and without a pointer to the first (from 4.1 on).
    Short,
}

/// Where an object has its variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variables {
    /// Side by side, so many of them.
    Row(u64),
    /// In a table, since its class has objects of too many shapes.
    Table,
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    /// The ID of the variable that it adds.
    name: u64,
    /// The number of variables of its objects.
    variables: u32,
    /// The number of variables that its objects have room for.
    capacity: u32,
    kind: u8,
    parent: u32,
}

/// A shape of the list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShapeInList {
    pub(crate) is_root: bool,
    pub(crate) kind: Option<&'static str>,
    /// The number of the shape to which it adds something.
    pub(crate) parent: Option<u32>,
    /// The ID of the variable that it adds.
    pub(crate) variable: Option<u64>,
}

impl ShapeHome {
    /// `sizeof(rb_shape_t)`.
    fn shape_bytes(self) -> u64 {
        match self {
            Self::Vm | Self::Short => 32,
            Self::Tree | Self::Variable => 40,
        }
    }
}

/// `SHAPE_ID_OFFSET_MASK`: the part of a shape's number that is its place in the list (from 4.0 on).
const OFFSET_MASK: u32 = (1 << 19) - 1;
/// `SHAPE_ID_FL_TOO_COMPLEX`: the object's variables are in a hash table (4.0, whose comment in shape.h names a lower bit;
/// `SHAPE_ID_FL_COMPLEX` from 4.1 on).
const TOO_COMPLEX: u32 = 1 << 27;
const COMPLEX: u32 = 1 << 26;

impl ShapeTree {
    /// `SHAPE_ID_LAYOUT_ROBJECT`: the variables are in the slot.
    pub(crate) const EMBEDDED: u64 = 0;
    /// `SHAPE_ID_LAYOUT_EXTENDED`: they are in an internal object.
    pub(crate) const EXTENDED: u64 = 2;

    /// The place of the variables of an object with these flags (`SHAPE_ID_LAYOUT_MASK`, from 4.1 on).
    pub(crate) fn layout(flags: u64) -> u64 {
        flags >> 61 & 3
    }

    /// The shapes of a process; `None` if they are not recognized. The address of the VM is exported
    /// up to 3.2; since, a variable of the interpreter points to the tree.
    pub(crate) fn derive(image: &Image<'_>, interpreter: &Interpreter) -> Option<Self> {
        match interpreter.vm(image) {
            Some(vm) => Self::in_vm(image, vm),
            None if interpreter.has_shape_list() => Self::in_variable(image, interpreter),
            None => Self::in_tree(image, interpreter),
        }
    }

    fn in_variable(image: &Image<'_>, interpreter: &Interpreter) -> Option<Self> {
        let mut words = [0; 3];
        interpreter.variable_words(image).find_map(|(_, word)| {
            words = [words[1], words[2], word];
            let [first, second, third] = words;
            let is_mapping = |word: u64| word != 0 && Address(word).is_aligned(image.page_size());
            if is_mapping(third) && second == third {
                return Self::list(image, [second, third], ShapeHome::Variable);
            }
            is_mapping(first).then(|| Self::short_list(image, words)).flatten()
        })
    }

    /// The list to which the first of these words points, if the others are the most variables of a slot, and the name of an
    /// object's number.
    pub(crate) fn short_list(image: &Image<'_>, [list, most, name]: [u64; 3]) -> Option<Self> {
        let found = Self { list: Address(list), home: ShapeHome::Short };
        let is_root = |it: Shape| {
            it.name == 0 && it.variables == 0 && it.kind == 0 && it.parent == OFFSET_MASK
        };
        let has_number = |it: Shape| {
            it.name == name && it.variables == 1 && it.kind == SHAPE_OBJ_ID && it.parent == 0
        };
        let fits = (1..=u64::from(u8::MAX)).contains(&most)
            && name != 0
            && found.shape(image, 0).is_some_and(is_root)
            && found.shape(image, 1).is_some_and(has_number);
        fits.then_some(found)
    }

    fn in_vm(image: &Image<'_>, vm: Address) -> Option<Self> {
        let mut bytes = vec![0; MAX_VM_BYTES];
        let read = image.read(vm, &mut bytes);
        let words: Vec<u64> = words(&bytes[..read]).collect();
        let mut pairs = words.windows(2).map(|pair| [pair[0], pair[1]]);
        pairs.find_map(|pair| Self::list(image, pair, ShapeHome::Vm))
    }

    fn in_tree(image: &Image<'_>, interpreter: &Interpreter) -> Option<Self> {
        let mappings = &image.state.mappings;
        interpreter.variable_words(image).find_map(|(_, tree)| {
            let at = Address(tree);
            if tree == 0 || !at.is_aligned(8) || !mappings.find(at)?.is_private_anonymous() {
                return None;
            }
            let list = image.read_u64(at).ok()?;
            let root = image.read_u64(at.offset(8)).ok()?;
            let is_mapping = Address(list).is_aligned(image.page_size());
            is_mapping.then(|| Self::list(image, [list, root], ShapeHome::Tree)).flatten()
        })
    }

    /// The list of shapes that the first of two words points to. The other one points to its first
    /// shape, the root.
    fn list(image: &Image<'_>, [list, root]: [u64; 2], home: ShapeHome) -> Option<Self> {
        let found = Self { list: Address(list), home };
        let is_root = |it: Shape| {
            it.name == 0 && it.variables == 0 && it.kind == 0 && it.parent == INVALID_SHAPE_ID
        };
        let fits = list == root && list != 0 && found.shape(image, 0).is_some_and(is_root);
        fits.then_some(found)
    }

    /// The number of the shape that the upper half of an object's flags has.
    pub(crate) fn number(self, upper: u32) -> u32 {
        match self.home {
            ShapeHome::Variable | ShapeHome::Short => upper & OFFSET_MASK,
            ShapeHome::Vm | ShapeHome::Tree => upper,
        }
    }

    /// The address of the first shape.
    pub(crate) fn start(self) -> Address {
        self.list
    }

    /// The bytes of a shape.
    pub(crate) fn shape_bytes(self) -> u64 {
        self.home.shape_bytes()
    }

    /// The shape with this number; behind the last one there are zeros.
    pub(crate) fn listed(self, image: &Image<'_>, number: u32) -> Option<ShapeInList> {
        let shape = self.shape(image, number)?;
        let none = if self.home == ShapeHome::Short { OFFSET_MASK } else { INVALID_SHAPE_ID };
        let kinds = match self.home {
            ShapeHome::Vm => &KINDS_IN_VM[..],
            ShapeHome::Tree => &KINDS_IN_TREE,
            ShapeHome::Variable | ShapeHome::Short => &KINDS,
        };
        Some(ShapeInList {
            is_root: shape.kind == 0,
            kind: kinds.get(usize::from(shape.kind)).copied(),
            parent: Some(shape.parent).filter(|it| *it != none),
            variable: (shape.kind == SHAPE_IVAR).then_some(shape.name),
        })
    }

    fn shape(self, image: &Image<'_>, number: u32) -> Option<Shape> {
        let mut bytes = [0; READ_BYTES];
        // The parent of the root.
        if number == INVALID_SHAPE_ID {
            return None;
        }
        let number = match self.home {
            ShapeHome::Short if number & OFFSET_MASK == OFFSET_MASK => return None,
            ShapeHome::Variable | ShapeHome::Short => number & OFFSET_MASK,
            ShapeHome::Vm | ShapeHome::Tree => number,
        };
        let at = self.list.offset(u64::from(number) * self.home.shape_bytes());
        image.read_exact(at, &mut bytes).ok()?;
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let name = word(&bytes, 8);
        Some(match self.home {
            ShapeHome::Vm | ShapeHome::Tree => Shape {
                name,
                variables: number(16),
                capacity: number(20),
                kind: bytes[24],
                parent: number(28),
            },
            // An index of ancestors comes before the numbers.
            ShapeHome::Variable => Shape {
                name,
                variables: number(28) & 0xffff,
                capacity: number(28) >> 16,
                kind: bytes[32],
                parent: number(24),
            },
            ShapeHome::Short => Shape {
                name,
                variables: bytes[24].into(),
                capacity: bytes[25].into(),
                kind: bytes[26],
                parent: number(20),
            },
        })
    }

    /// Returns true if the variables of classes are in memory of malloc's, else they are in internal objects.
    pub(crate) fn has_memory_of_classes(self) -> bool {
        matches!(self.home, ShapeHome::Vm | ShapeHome::Tree)
    }

    /// The variables of objects with these flags. Shapes of any kind have them.
    pub(crate) fn variables_of(self, image: &Image<'_>, flags: u64) -> Option<Variables> {
        let number = (flags >> 32) as u32;
        let has_table = |it: Shape| match self.home {
            ShapeHome::Vm => it.kind == SHAPE_OBJ_TOO_COMPLEX_IN_VM,
            ShapeHome::Tree => it.kind == SHAPE_OBJ_TOO_COMPLEX,
            ShapeHome::Variable => number & TOO_COMPLEX != 0,
            ShapeHome::Short => number & COMPLEX != 0,
        };
        let shape = self.shape(image, number)?;
        Some(match has_table(shape) {
            true => Variables::Table,
            false => Variables::Row(shape.variables.into()),
        })
    }

    /// The number of variables that objects with these flags have room for outside their slots.
    pub(crate) fn capacity(self, image: &Image<'_>, flags: u64) -> Option<u64> {
        Some(self.shape(image, (flags >> 32) as u32)?.capacity.into())
    }

    /// The shape of an object with these flags, and those before it, up to the root.
    fn shapes(self, image: &Image<'_>, flags: u64) -> impl Iterator<Item = Shape> {
        let shape = self.shape(image, (flags >> 32) as u32);
        std::iter::successors(shape, move |shape| self.shape(image, shape.parent)).take(MAX_DEPTH)
    }

    /// The shapes that add the variables of an object with these flags, the last one first.
    fn variables(self, image: &Image<'_>, flags: u64) -> impl Iterator<Item = Shape> {
        self.shapes(image, flags).filter(|shape| shape.kind == SHAPE_IVAR)
    }

    /// The ID of the first variable of an object with these flags.
    pub(crate) fn first(self, image: &Image<'_>, flags: u64) -> Option<u64> {
        self.variables(image, flags).find(|shape| shape.variables == 1).map(|shape| shape.name)
    }

    /// The position at which objects with these flags have the variable with this ID.
    pub(crate) fn position(self, image: &Image<'_>, flags: u64, name: u64) -> Option<u64> {
        let shape = self.variables(image, flags).find(|shape| shape.name == name)?;
        Some(u64::from(shape.variables.checked_sub(1)?))
    }

    /// The IDs of the variables of an object with these flags, and the position of each. `goes_on` is called for each shape:
    /// shapes that form a circle must not make a walk long for each object.
    pub(crate) fn positions(
        self,
        image: &Image<'_>,
        flags: u64,
        goes_on: impl Fn() -> bool,
    ) -> impl Iterator<Item = (u64, u64)> {
        let shapes = self.shapes(image, flags).take_while(move |_| goes_on());
        let variables = shapes.filter(|shape| shape.kind == SHAPE_IVAR);
        variables.filter_map(|it| Some((it.name, u64::from(it.variables.checked_sub(1)?))))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use image::{ProcessState, Source};
    use linux::{Mapping, Mappings};

    use super::*;

    const LIST: Address = Address(0x10_0000);

    /// Shapes of 40 bytes, each of which is its own parent and adds a variable.
    struct Circles;

    impl Memory for Circles {
        fn read(&self, at: Address, into: &mut [u8]) -> usize {
            for (byte, at) in into.iter_mut().zip(at.0..) {
                let (number, offset) = ((at - LIST.0) / 40, (at - LIST.0) % 40);
                let mut shape = [0; 40];
                shape[16] = 1;
                shape[24] = SHAPE_IVAR;
                shape[28..32].copy_from_slice(&(number as u32).to_le_bytes());
                *byte = shape[offset as usize];
            }
            into.len()
        }
    }

    impl Source for Circles {}

    /// The shapes of 4.1: the root, the number of an object, and a variable of the root.
    struct Short;

    impl Memory for Short {
        fn read(&self, at: Address, into: &mut [u8]) -> usize {
            let rows = [[0, 0, 0, 0x7ffff, 0], [77, 0, 0, 0, 0x2_0001], [88, 0, 0, 0, 0x1_0301]];
            let bytes = |[name, high, ancestors, parent, last]: [u32; 5]| {
                [0, 0, name, high, ancestors, parent, last, 0].map(u32::to_le_bytes).concat()
            };
            let list: Vec<u8> = rows.into_iter().flat_map(bytes).chain([0; 32]).collect();
            let start = (at - LIST) as usize;
            into.copy_from_slice(&list[start..start + into.len()]);
            into.len()
        }
    }

    impl Source for Short {}

    #[test]
    fn short_shapes_are_found_by_the_first_two() {
        let mappings = Mappings::new(vec![Mapping::anonymous(LIST..LIST.offset(1 << 20))]);
        let state = ProcessState { mappings, ..ProcessState::default() };
        let image = Image::new(state, Short);
        let found = |most, name| ShapeTree::short_list(&image, [LIST.0, most, name]);
        assert_eq!([found(0, 77), found(1 << 8, 77), found(7, 78)], [None; 3]);
        let tree = found(7, 77).unwrap();
        let positions: Vec<_> = tree.positions(&image, 2 << 32, || true).collect();
        assert_eq!(positions, [(88, 0)]);
        assert_eq!(tree.variables_of(&image, 2 << 32), Some(Variables::Row(1)));
        // Its variables are in a hash table; and the parent of the root.
        assert_eq!(tree.variables_of(&image, (1 << 26 | 2) << 32), Some(Variables::Table));
        assert_eq!(tree.variables_of(&image, 0x7ffff << 32), None);
    }

    /// The bits of slots of 320 bytes were taken for that of a table, and the layout of all objects was given up.
    #[test]
    fn objects_in_large_slots_have_their_variables_side_by_side() {
        let mappings = Mappings::new(vec![Mapping::anonymous(LIST..LIST.offset(1 << 20))]);
        let state = ProcessState { mappings, ..ProcessState::default() };
        let image = Image::new(state, Circles);
        let tree = ShapeTree { list: LIST, home: ShapeHome::Variable };
        // As 4.0 has them: the fifth size of slots from bit 22 on, and the shape.
        let of_size = |size: u64| tree.variables_of(&image, (size << 22 | 3) << 32);
        assert_eq!([of_size(0), of_size(4), of_size(5)], [Some(Variables::Row(3)); 3]);
        assert_eq!(tree.variables_of(&image, (1 << 27 | 3) << 32), Some(Variables::Table));
    }

    #[test]
    fn shapes_in_a_circle_end_with_the_budget_of_all_walks() {
        let mappings = Mappings::new(vec![Mapping::anonymous(LIST..LIST.offset(1 << 20))]);
        let state = ProcessState { mappings, ..ProcessState::default() };
        let image = Image::new(state, Circles);
        let tree = ShapeTree { list: LIST, home: ShapeHome::Tree };
        assert_eq!(tree.positions(&image, 7 << 32, || true).count(), MAX_DEPTH);
        let budget = Cell::new(10_000_u32);
        let spend = || {
            let left = budget.get().checked_sub(1);
            budget.set(left.unwrap_or(0));
            left.is_some()
        };
        let counts: Vec<usize> =
            (0..5).map(|shape| tree.positions(&image, shape << 32, spend).count()).collect();
        assert_eq!(counts, [MAX_DEPTH, MAX_DEPTH, 10_000 - 2 * MAX_DEPTH, 0, 0]);
    }
}
