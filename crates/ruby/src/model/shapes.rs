use linux::Address;

/// The shapes of a process, in the order of their numbers.
#[derive(Debug, Clone, Default)]
pub struct Shapes {
    pub(crate) start: Address,
    /// The bytes of a shape.
    pub(crate) bytes: u64,
    pub(crate) shapes: Vec<Shape>,
    /// The names of variables.
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) parent: Option<u32>,
    pub(crate) depth: u32,
    pub(crate) kind: Option<&'static str>,
    pub(crate) name: Option<u32>,
    pub(crate) edges: u32,
}

/// A shape: the names and positions of an object's variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedShape<'a> {
    /// Its address.
    pub address: Address,
    /// The bytes of the shape itself.
    pub bytes: u64,
    /// The number of the shape to which it adds something; `None` for a root.
    pub parent: Option<u32>,
    /// The number of shapes from the root to it.
    pub depth: u32,
    /// Its type, as `ObjectSpace.dump_all` names it.
    pub kind: Option<&'static str>,
    /// The name of the variable that it adds.
    pub name: Option<&'a str>,
    /// The number of shapes that add something to it.
    pub edges: u32,
}

impl Shapes {
    /// The shapes in the order of their numbers, which begin with 0.
    pub fn iter(&self) -> impl Iterator<Item = ListedShape<'_>> {
        (0..).zip(&self.shapes).map(|(number, shape)| {
            let Shape { parent, depth, kind, name, edges } = *shape;
            let address = self.start.offset(number * self.bytes);
            let name = name.and_then(|it| self.names.get(it as usize)).map(String::as_str);
            ListedShape { address, bytes: self.bytes, parent, depth, kind, name, edges }
        })
    }
}
