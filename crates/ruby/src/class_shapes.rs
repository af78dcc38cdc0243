//! Shapes, by which Ruby says from 3.2 on which of a class's instance variables is which.
//!
//! `struct rb_shape` in shape.h of 3.3 and 3.4. A shape adds one variable to its parent's; the
//! upper half of a class's flags is the number of its shape.

use target::{Address, Image, Memory, PAGE_SIZE};

use crate::interpreter::Interpreter;
use crate::symbols;
use crate::tables::word;

/// `sizeof(rb_shape_t)`.
const SHAPE_BYTES: u64 = 40;
/// `INVALID_SHAPE_ID`, the parent of the root.
const NO_SHAPE: u32 = u32::MAX;
/// More shapes than lead from a class's to the root.
const MOST_ANCESTORS: usize = 4096;

/// The shapes of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClassShapes {
    list: Address,
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    /// The ID of the variable that it adds.
    name: u64,
    /// How many variables objects of it have.
    variables: u32,
    parent: u32,
}

impl ClassShapes {
    /// The shapes of a process: a variable of the interpreter names the tree of them, or is it.
    /// Its first word is the list of all shapes, in a mapping of their own, and its second the
    /// first of them, the root.
    pub(crate) fn find(image: &Image<'_>, interpreter: &Interpreter) -> Option<Self> {
        let is_list = |at: u64| {
            at != 0
                && Address(at).is_aligned(PAGE_SIZE)
                && Self { list: Address(at) }.shape(image, 0).is_some_and(|root| {
                    root.name == 0 && root.variables == 0 && root.parent == NO_SHAPE
                })
        };
        let mappings = &image.outline.mappings;
        symbols::variables(image, interpreter).find_map(|(_, tree)| {
            let at = Address(tree);
            if tree == 0 || !at.is_aligned(8) || !mappings.find(at)?.is_private_anonymous() {
                return None;
            }
            let mut words = [0; 16];
            image.read_exact(at, &mut words).ok()?;
            let (list, root) = (word(&words, 0), word(&words, 8));
            (list == root && is_list(list)).then_some(Self { list: Address(list) })
        })
    }

    fn shape(self, image: &Image<'_>, number: u32) -> Option<Shape> {
        let mut bytes = [0; SHAPE_BYTES as usize];
        image.read_exact(self.list.offset(u64::from(number) * SHAPE_BYTES), &mut bytes).ok()?;
        let (counts, parent) = (word(&bytes, 16), word(&bytes, 24));
        Some(Shape {
            name: word(&bytes, 8),
            variables: counts as u32,
            parent: (parent >> 32) as u32,
        })
    }

    /// The IDs of the variables of a class with these flags, and the place of each among their
    /// values.
    pub(crate) fn variables(self, image: &Image<'_>, flags: u64) -> Vec<(u64, u32)> {
        let mut found = Vec::new();
        let mut shape = self.shape(image, (flags >> 32) as u32);
        for _ in 0..MOST_ANCESTORS {
            let Some(own) = shape else { break };
            if own.parent == NO_SHAPE {
                break;
            }
            let parent = self.shape(image, own.parent);
            // Others than these say that an object is frozen, or how large it is.
            if parent.is_some_and(|it| it.variables.checked_add(1) == Some(own.variables)) {
                found.push((own.name, own.variables - 1));
            }
            shape = parent;
        }
        found
    }
}
