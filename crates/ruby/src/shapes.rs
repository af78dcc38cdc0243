//! Shapes, by which Ruby says from 3.2 on which of a class's instance variables is which.
//!
//! `struct rb_shape` in shape.h of 3.2 to 3.4; `rb_vm_t` in vm_core.h of 3.2, `rb_shape_tree_t` in
//! shape.h since. A shape adds one variable to its parent's; an object's flags have the number of
//! its shape in their upper half.

use capture::{Address, Image, Memory, PAGE_SIZE};

use crate::interpreter::Interpreter;
use crate::symbols;

/// More bytes than an `rb_vm_t` has.
const MOST_VM_BYTES: usize = 48 << 10;
/// `sizeof(rb_shape_t)` in 3.2, and since.
const SHAPE_BYTES_IN_VM: u64 = 32;
const SHAPE_BYTES_IN_TREE: u64 = 40;
/// As much of a shape as is read.
const READ_BYTES: usize = 32;
/// `SHAPE_IVAR`: a shape that adds a variable.
const ADDS_VARIABLE: u8 = 1;
/// `INVALID_SHAPE_ID`, the parent of the root.
const NO_SHAPE: u32 = u32::MAX;
/// More shapes than lead from a class's to the root.
const MOST_ANCESTORS: usize = 4096;

/// The shapes of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shapes {
    list: Address,
    /// The bytes of each.
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    /// The name of the variable that it adds, as a number.
    name: u64,
    /// How many variables objects of it have.
    variables: u32,
    kind: u8,
    parent: u32,
}

impl Shapes {
    /// The shapes of a process; `None` where they cannot be told for certain.
    pub(crate) fn find(image: &Image<'_>, interpreter: &Interpreter) -> Option<Self> {
        let mut vm = vec![0; MOST_VM_BYTES];
        let read = image.read(interpreter.vm(image)?, &mut vm);
        let words: Vec<u64> = vm[..read]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        let mut pairs = words.windows(2).map(|pair| [pair[0], pair[1]]);
        pairs.find_map(|pair| Self::list(image, pair, SHAPE_BYTES_IN_VM))
    }

    /// The shapes of a process from 3.3 on, where a variable of the interpreter names their tree.
    pub(crate) fn find_tree(image: &Image<'_>, interpreter: &Interpreter) -> Option<Self> {
        let mappings = &image.state.mappings;
        symbols::variables(image, interpreter).find_map(|(_, tree)| {
            let at = Address(tree);
            if tree == 0 || !at.is_aligned(8) || !mappings.find(at)?.is_private_anonymous() {
                return None;
            }
            let list = image.read_u64(at).ok()?;
            let root = image.read_u64(at.offset(8)).ok()?;
            let is_mapping = Address(list).is_aligned(PAGE_SIZE);
            is_mapping.then(|| Self::list(image, [list, root], SHAPE_BYTES_IN_TREE)).flatten()
        })
    }

    /// The list of shapes that is named by the first of two words; the other one is its first
    /// shape, the root.
    fn list(image: &Image<'_>, [list, root]: [u64; 2], bytes: u64) -> Option<Self> {
        let found = Self { list: Address(list), bytes };
        let is_root =
            |it: Shape| it.name == 0 && it.variables == 0 && it.kind == 0 && it.parent == NO_SHAPE;
        let fits = list == root && list != 0 && found.shape(image, 0).is_some_and(is_root);
        fits.then_some(found)
    }

    fn shape(self, image: &Image<'_>, number: u32) -> Option<Shape> {
        let mut bytes = [0; READ_BYTES];
        image.read_exact(self.list.offset(u64::from(number) * self.bytes), &mut bytes).ok()?;
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let name = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
        Some(Shape { name, variables: short(16), kind: bytes[24], parent: short(28) })
    }

    /// How many variables objects with these flags have. A shape of any kind has this number.
    pub(crate) fn count(self, image: &Image<'_>, flags: u64) -> Option<u64> {
        Some(u64::from(self.shape(image, (flags >> 32) as u32)?.variables))
    }

    /// The shapes that add the variables of an object with these flags, the last one first.
    fn variables(self, image: &Image<'_>, flags: u64) -> impl Iterator<Item = Shape> {
        let shape = self.shape(image, (flags >> 32) as u32);
        std::iter::successors(shape, move |shape| self.shape(image, shape.parent))
            .take(MOST_ANCESTORS)
            .filter(|shape| shape.kind == ADDS_VARIABLE)
    }

    /// The name of the first variable of an object with these flags.
    pub(crate) fn first(self, image: &Image<'_>, flags: u64) -> Option<u64> {
        self.variables(image, flags).find(|shape| shape.variables == 1).map(|shape| shape.name)
    }

    /// At which place objects with these flags have the variable of this name.
    pub(crate) fn place(self, image: &Image<'_>, flags: u64, name: u64) -> Option<u64> {
        let shape = self.variables(image, flags).find(|shape| shape.name == name)?;
        Some(u64::from(shape.variables.checked_sub(1)?))
    }

    /// The names of the variables of an object with these flags, and the place of each.
    pub(crate) fn places(self, image: &Image<'_>, flags: u64) -> impl Iterator<Item = (u64, u64)> {
        let shapes = self.variables(image, flags);
        shapes.filter_map(|it| Some((it.name, u64::from(it.variables.checked_sub(1)?))))
    }
}
