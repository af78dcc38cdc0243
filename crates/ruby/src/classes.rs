//! Resolves the classes of objects, as `Object#class` does, and names them.

use std::collections::HashMap;

use capture::{Address, Finding, Severity};

use crate::ancestry::{Ancestry, MOST_ANCESTORS};
use crate::context::Context;
use crate::error::{Check, Failure};
use crate::imemo;
use crate::interpreter::Landmark;
use crate::names::{Naming, Objects};
use crate::object_space::{Class, Slot, SlotState, SlotType};
use crate::shapes::Shapes;
use crate::slots::{self, Ancestor, Kinds, NO_CLASS, Slots};

/// Classes that are looked up again and again: a power of two.
const REMEMBERED: usize = 4096;
/// So few objects may be of no class in any heap.
const FEW_ASTRAY: u64 = 16;

struct Resolver<'a> {
    context: &'a Context<'a>,
    naming: Option<Naming>,
    /// In slot order.
    ancestors: &'a [Ancestor],
    /// Classes by what objects name: a slot, or what stands for objects without a class.
    known: HashMap<u32, u32>,
    classes: Vec<Class>,
    internal_names: imemo::Names,
}

/// Makes the classes of all slots indices into the classes that are returned.
pub(crate) fn resolve(
    context: &Context<'_>,
    read: &mut Slots,
) -> Result<(Vec<Class>, Vec<Finding>), Failure> {
    let heap = context.heap;
    let kinds = Kinds::new(&context.territory, &read.slots);
    let is_no_class = |landmark: &&Landmark| {
        let slot = context.territory.slot_at(landmark.class.0);
        slot.and_then(|slot| read.slots.get(slot as usize)).is_none_or(|slot| {
            let is_class = matches!(slot.kind, SlotType::CLASS | SlotType::MODULE);
            !is_class && slot.state != SlotState::Unread
        })
    };
    if let Some(landmark) = context.landmarks.iter().find(is_no_class) {
        return Err(context.failure(Check::Landmarks, landmark.class));
    }
    let objects = Objects { image: context.image, kinds };
    let shapes = Shapes::find(context.image, context.interpreter);
    let naming = Naming::derive(objects, &context.landmarks, shapes);
    let (internal_names, unverified) =
        imemo::Names::verify(context, &read.slots, &std::mem::take(&mut read.imemos));
    let findings = shortcomings(context.ancestry, naming).chain(unverified).collect();
    let ancestors = std::mem::take(&mut read.ancestors);
    let mut resolver = Resolver {
        context,
        naming,
        ancestors: &ancestors,
        known: HashMap::new(),
        classes: Vec::new(),
        internal_names,
    };
    let mut recent = vec![(NO_CLASS, NO_CLASS); REMEMBERED];
    for index in 0..read.slots.len() {
        let Slot { class, state, .. } = read.slots[index];
        if class == NO_CLASS {
            continue;
        }
        let place = class as usize % REMEMBERED;
        if recent[place].0 != class {
            recent[place] = (class, resolver.resolve(class, &read.slots));
        }
        let resolved = recent[place].1;
        if resolved == NO_CLASS {
            if state == SlotState::Marked && read.tally.unread == 0 {
                let at = heap.slot_address(index as u32).unwrap_or_default();
                return Err(context.failure(Check::Classes, at));
            }
            read.tally.astray += 1;
        }
        read.slots[index].class = resolved;
    }
    // Garbage may outlive its class while a heap is swept, but a wrong layout leads most astray.
    if read.tally.astray > FEW_ASTRAY.max(read.tally.live / 4) {
        let at = heap.pages.first().map_or(Address(0), |page| page.base);
        return Err(context.failure(Check::Classes, at));
    }
    Ok((resolver.classes, findings))
}

fn shortcomings(ancestry: Ancestry, naming: Option<Naming>) -> impl Iterator<Item = Finding> {
    let said = [
        (naming.is_none(), "the names of classes could not be derived"),
        (
            !ancestry.is_complete(),
            "objects with a singleton class could not be put down to their own class",
        ),
    ];
    let missing = said.into_iter().filter(|(missing, _)| *missing);
    missing.map(|(_, what)| Finding::general(Severity::Warning, what))
}

impl Resolver<'_> {
    /// The index of the class that is meant by `class`, a slot or what stands for a type; [`NO_CLASS`]
    /// where no class is there.
    fn resolve(&mut self, class: u32, slots: &[Slot]) -> u32 {
        if let Some(known) = self.known.get(&class) {
            return *known;
        }
        let resolved = if let Some((kind, imemo)) = slots::as_internal(class) {
            let name = Some(self.internal_name(kind, imemo));
            self.add(Class { address: None, name, data_type: None })
        } else {
            match self.real_class(class) {
                Some(real) if real == class => {
                    let address = self.context.heap.slot_address(class);
                    let kinds = Kinds::new(&self.context.territory, slots);
                    let objects = Objects { image: self.context.image, kinds };
                    let name = self.naming.zip(address).and_then(|(it, at)| it.name(objects, at));
                    self.add(Class { address, name, data_type: None })
                }
                Some(real) => self.resolve(real, slots),
                None => NO_CLASS,
            }
        };
        self.known.insert(class, resolved);
        resolved
    }

    fn add(&mut self, class: Class) -> u32 {
        self.classes.push(class);
        self.classes.len() as u32 - 1
    }

    fn internal_name(&self, kind: SlotType, imemo: u8) -> String {
        if kind == SlotType::IMEMO { self.internal_names.of(imemo) } else { format!("({kind})") }
    }

    /// The slot of the class that `Object#class` returns for objects of the class in slot `class`;
    /// `None` where there is no class in it.
    fn real_class(&self, class: u32) -> Option<u32> {
        let ancestor = |class: u32| {
            let found = self.ancestors.binary_search_by_key(&class, |it| it.slot).ok()?;
            Some(self.ancestors[found])
        };
        let mut reached = (class, ancestor(class)?);
        for _ in 0..MOST_ANCESTORS {
            if reached.1.is_real {
                return Some(reached.0);
            }
            let next = reached.1.next;
            let Some(found) = ancestor(next) else { break };
            reached = (next, found);
        }
        // A singleton class that is being made has no superclass yet.
        Some(class)
    }
}
