//! Shapes, by which Ruby 3.2 says which of a class's instance variables is which.
//!
//! `struct rb_shape` in shape.h and `rb_vm_t` in vm_core.h of 3.2. A shape adds one variable to its
//! parent's; an object's flags have the number of its shape in their upper half.

use target::{Address, Image, Memory};

use crate::interpreter::Interpreter;

/// More bytes than an `rb_vm_t` has.
const MOST_VM_BYTES: usize = 48 << 10;
/// `sizeof(rb_shape_t)`.
const SHAPE_BYTES: u64 = 32;
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
        // The list is followed by its first shape, the root.
        let pairs = words.windows(2).filter(|pair| pair[0] == pair[1] && pair[0] != 0);
        let mut lists = pairs.map(|pair| Self { list: Address(pair[0]) });
        lists.find(|it| {
            it.shape(image, 0).is_some_and(|root| {
                root.name == 0 && root.variables == 0 && root.kind == 0 && root.parent == NO_SHAPE
            })
        })
    }

    fn shape(self, image: &Image<'_>, number: u32) -> Option<Shape> {
        let mut bytes = [0; SHAPE_BYTES as usize];
        image.read_exact(self.list.offset(u64::from(number) * SHAPE_BYTES), &mut bytes).ok()?;
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let name = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
        Some(Shape { name, variables: short(16), kind: bytes[24], parent: short(28) })
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
}
