use std::collections::BTreeMap;

use ruby::ObjectSpace;

/// What the objects of one class hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassAccount {
    /// The class's name; for Ruby's internal objects their type's.
    pub name: String,
    /// How many objects there are, garbage and new ones included.
    pub objects: u64,
    /// The bytes of their slots.
    pub slot_bytes: u64,
    /// The bytes of the chunks that their slots name.
    pub malloc_bytes: u64,
}

/// The bytes of chunks by the class whose objects name them, while they are added up.
pub(crate) struct ClassBooks<'a> {
    space: &'a ObjectSpace,
    /// By index in [`ObjectSpace::classes`].
    malloc_bytes: Vec<u64>,
}

impl<'a> ClassBooks<'a> {
    pub(crate) fn new(space: &'a ObjectSpace) -> Self {
        Self { space, malloc_bytes: vec![0; space.classes.len()] }
    }

    /// Adds a chunk of `bytes` that the slot with this index names.
    pub(crate) fn add_chunk(&mut self, slot: u32, bytes: u64) {
        let class = self.space.slots.get(slot as usize).map(|slot| slot.class as usize);
        if let Some(sum) = class.and_then(|class| self.malloc_bytes.get_mut(class)) {
            *sum += bytes;
        }
    }

    /// The sums by name, the largest first.
    pub(crate) fn accounts(self) -> Vec<ClassAccount> {
        // Classes may share a name: anonymous ones, or those of a constant that was assigned anew.
        let mut by_name: BTreeMap<&str, ClassAccount> = BTreeMap::new();
        for count in self.space.class_counts() {
            let class = count.class as usize;
            let name = self.space.classes[class].name.as_deref().unwrap_or("(anonymous class)");
            let account = by_name.entry(name).or_insert_with(|| ClassAccount {
                name: name.to_owned(),
                objects: 0,
                slot_bytes: 0,
                malloc_bytes: 0,
            });
            account.objects += count.objects;
            account.slot_bytes += count.slot_bytes;
            account.malloc_bytes += self.malloc_bytes[class];
        }
        let mut accounts: Vec<_> = by_name.into_values().collect();
        accounts
            .sort_by_key(|account| std::cmp::Reverse(account.slot_bytes + account.malloc_bytes));
        accounts
    }
}
