//! The shapes of a process, as `ObjectSpace.dump_all` prints them (from 3.2 on).

use std::collections::HashMap;

use image::Image;

use crate::layout::class_names::ObjectReader;
use crate::layout::shape_tree::{KIND_OF_COMPLEX, MAX_SHAPES, ShapeTree};
use crate::model::shapes::{Shape, Shapes};
use crate::object_space::ObjectSpace;
use crate::roots::program::Program;

/// Reads the shapes; none before 3.2. `image` is the one that the objects were read from.
#[must_use]
pub fn shapes(image: &Image<'_>, space: &ObjectSpace) -> Shapes {
    let Some(tree) = space.shape_tree else { return Shapes::default() };
    let reader = ObjectReader::new(image, &space.slot_index, &space.slots);
    let program = Program::read(space, reader);
    let name = |id| program.as_ref()?.names.symbols.name_of_id(reader, id);
    read(image, tree, name)
}

/// Each shape comes behind its parent in the list, whose rest are zeros: roots with a parent.
fn read(image: &Image<'_>, tree: ShapeTree, name: impl Fn(u64) -> Option<String>) -> Shapes {
    let mut shapes: Vec<Shape> = Vec::new();
    let (mut names, mut numbers) = (Vec::new(), HashMap::new());
    for number in 0..MAX_SHAPES {
        let Some(found) = tree.listed(image, number) else { break };
        let parent = found.parent.filter(|it| *it < number);
        if parent != found.parent || found.is_root && parent.is_some() {
            break;
        }
        let above = parent.and_then(|it| shapes.get_mut(it as usize));
        let depth = above.map_or(1, |it| {
            // The shape for objects of too many shapes is in no table of edges.
            it.edges += u32::from(found.kind != Some(KIND_OF_COMPLEX));
            it.depth + 1
        });
        let name = found.variable.and_then(|id| {
            *numbers.entry(id).or_insert_with(|| {
                names.push(name(id)?);
                Some(names.len() as u32 - 1)
            })
        });
        shapes.push(Shape { parent, depth, kind: found.kind, name, edges: 0 });
    }
    Shapes { start: tree.start(), bytes: tree.shape_bytes(), shapes, names }
}

#[cfg(test)]
mod tests {
    use image::{Memory, ProcessState, Source};
    use linux::{Address, Mapping, Mappings};

    use super::*;

    /// The shapes of 4.1: the root, the number of an object, a variable of the root, and one of that.
    struct List;

    impl Memory for List {
        fn read(&self, at: Address, into: &mut [u8]) -> usize {
            let rows = [[0, 0x7ffff, 0], [77, 0, 0x2_0001], [88, 0, 0x1_0301], [88, 2, 0x1_0302]];
            let bytes = |[name, parent, last]: [u32; 3]| {
                [0, 0, name, 0, 0, parent, last, 0].map(u32::to_le_bytes).concat()
            };
            let list: Vec<u8> = rows.into_iter().flat_map(bytes).chain([0; 256]).collect();
            let start = (at - LIST) as usize;
            into.copy_from_slice(&list[start..start + into.len()]);
            into.len()
        }
    }

    impl Source for List {}

    const LIST: Address = Address(0x10_0000);

    #[test]
    fn shapes_are_listed_up_to_the_zeros() {
        let mappings = Mappings::new(vec![Mapping::anonymous(LIST..LIST.offset(1 << 20))]);
        let image = Image::new(ProcessState { mappings, ..ProcessState::default() }, List);
        let tree = ShapeTree::short_list(&image, [LIST.0, 7, 77]).unwrap();
        let shapes = read(&image, tree, |id| Some(format!("@v{id}")));
        let lines: Vec<_> = shapes.iter().collect();
        let row =
            |at: usize| (lines[at].address.0, lines[at].parent, lines[at].depth, lines[at].edges);
        assert_eq!(lines.len(), 4);
        assert_eq!([row(0), row(3)], [(LIST.0, None, 1, 2), (LIST.0 + 96, Some(2), 3, 0)]);
        let kinds: Vec<_> = lines.iter().map(|it| (it.kind, it.name)).collect();
        let variable = (Some("IVAR"), Some("@v88"));
        assert_eq!(kinds, [(Some("ROOT"), None), (Some("OBJ_ID"), None), variable, variable]);
    }
}
