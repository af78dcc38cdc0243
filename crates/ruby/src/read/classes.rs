//! Resolves the classes of objects as `Object#class` does, and finds their names.

use std::collections::HashMap;

use linux::both;

use crate::error::{Check, Failure};
use crate::finding::Finding;
use crate::interpreter::Landmark;
use crate::layout::class_layout::{Ancestor, ClassLayout};
use crate::layout::class_names::{ClassNames, ObjectReader};
use crate::layout::context::Context;
use crate::layout::imemo::ImemoTypes;
use crate::model::class::{Class, ClassKind, ClassReference};
use crate::model::depth::Depth;
use crate::model::slot::{Slot, SlotState, SlotType};
use crate::read::slots::Slots;

/// In any heap this many objects may have no class.
const MAX_ASTRAY: u64 = 16;
const NO_CLASS: u32 = Slot::NO_CLASS;

/// The classes of a heap.
pub(crate) struct Classes {
    pub(crate) classes: Vec<Class>,
    pub(crate) names: Option<ClassNames>,
    pub(crate) imemo_types: ImemoTypes,
    pub(crate) findings: Vec<Finding>,
    /// Objects other than classes, and their singleton classes, by slot.
    pub(crate) singletons: Vec<(u32, u32)>,
}

struct Resolver<'a> {
    context: &'a Context<'a>,
    imemo_types: ImemoTypes,
    /// In slot order.
    ancestors: &'a [Ancestor],
    /// The index of each class by its reference.
    known: HashMap<ClassReference, u32>,
    /// The slots of the real classes that the chains of these singleton classes and modules lead to.
    reals: HashMap<u32, u32>,
    classes: Vec<Class>,
}

/// Replaces the numbers of the [`ClassReference`]s of all slots by indices into the classes that it returns. Objects with
/// singleton classes get links to these, unless only memory is read.
pub(crate) fn resolve(
    context: &Context<'_>,
    read: &mut Slots,
    depth: Depth,
) -> Result<Classes, Failure> {
    let (heap, basics) = (context.heap, context.basics);
    let is_no_class = |landmark: &&Landmark| {
        let slot = context.classifier.slot_at(landmark.class.0);
        slot.and_then(|slot| read.slots.get(slot as usize)).is_none_or(|slot| {
            let is_class = matches!(slot.kind(), SlotType::CLASS | SlotType::MODULE);
            !is_class && slot.state() != SlotState::Unread
        })
    };
    if let Some(landmark) = basics.landmarks.iter().find(is_no_class) {
        return Err(context.failure(Check::Landmarks, landmark.class));
    }
    let reader = ObjectReader::new(context.basics.image, context.classifier.index(), &read.slots);
    let names = ClassNames::derive(reader, &basics.landmarks, basics.shape_tree);
    let named = std::mem::take(&mut read.class_references).list;
    let (imemo_types, unverified) =
        ImemoTypes::verify(context, &read.slots, &named, &std::mem::take(&mut read.imemos));
    let findings = shortcomings(basics.class_layout, names).chain(unverified).collect();
    let ancestors = std::mem::take(&mut read.ancestors);
    let mut resolver = Resolver {
        context,
        imemo_types,
        ancestors: &ancestors,
        known: HashMap::new(),
        reals: HashMap::new(),
        classes: Vec::new(),
    };
    let resolved: Vec<u32> = named.iter().map(|&class| resolver.resolve(class)).collect();
    let singletons: Vec<Option<u32>> =
        named.iter().map(|&class| resolver.singleton_class(class)).collect();
    let mut classes = resolver.classes;
    if let Some(names) = names {
        let half = classes.len() / 2;
        let (first, second) = classes.split_at_mut(half);
        _ = both(|| add_names(first, names, reader), || add_names(second, names, reader));
    }
    let mut links = Vec::new();
    for (index, slot) in (0..).zip(&mut read.slots) {
        let number = slot.class() as usize;
        let Some(&class) = resolved.get(number) else { continue };
        // The class of the last singleton class is itself.
        let singleton = singletons[number].filter(|&singleton| singleton != index);
        links.extend(singleton.map(|singleton| (index, singleton)));
        if class == NO_CLASS {
            if slot.state() == SlotState::Marked && read.counts.unread == 0 {
                let at = heap.slot_address(index).unwrap_or_default();
                return Err(context.failure(Check::Classes, at));
            }
            read.counts.astray += 1;
        }
        *slot = slot.with_class(class);
    }
    // Garbage may outlive its class while a heap is swept, but a wrong layout leads most astray.
    if read.counts.astray > MAX_ASTRAY.max(read.counts.live / 4) {
        return Err(context.failure(Check::Classes, heap.start()));
    }
    let mut singletons = Vec::new();
    if depth == Depth::Graph {
        let is_class = |slot: u32| {
            let kind = read.slots[slot as usize].kind();
            matches!(kind, SlotType::CLASS | SlotType::MODULE | SlotType::ICLASS)
        };
        singletons.extend(links.iter().filter(|(object, _)| !is_class(*object)));
        read.links.insert(links);
    }
    Ok(Classes { classes, names, imemo_types, findings, singletons })
}

/// Adds the names of classes that programs see. They are spread over the whole memory.
fn add_names(classes: &mut [Class], names: ClassNames, reader: ObjectReader<'_>) {
    for class in classes {
        if let ClassKind::Visible(address) = class.kind {
            class.name = names.name(reader, address);
        }
    }
}

fn shortcomings(
    class_layout: ClassLayout,
    names: Option<ClassNames>,
) -> impl Iterator<Item = Finding> {
    let all = [
        (names.is_none(), Finding::ClassNamesUnknown),
        (!class_layout.is_complete(), Finding::ClassLayoutUnknown),
    ];
    all.into_iter().filter_map(|(is_missing, finding)| is_missing.then_some(finding))
}

impl Resolver<'_> {
    /// The index of the class that this refers to; [`NO_CLASS`] if it refers to no class.
    fn resolve(&mut self, class: ClassReference) -> u32 {
        if let Some(known) = self.known.get(&class) {
            return *known;
        }
        let resolved = match class {
            ClassReference::Classless(SlotType::IMEMO, number) => {
                let it = self.imemo_types.of(number);
                self.add(ClassKind::Imemo(it), Some(format!("({it})")))
            }
            ClassReference::Classless(kind, _) => {
                self.add(ClassKind::Hidden(kind), Some(format!("({kind})")))
            }
            ClassReference::Slot(slot) => match self.real_class(slot) {
                Some(real) if real == slot => {
                    let address = self.context.heap.slot_address(slot);
                    address.map_or(NO_CLASS, |at| self.add(ClassKind::Visible(at), None))
                }
                Some(real) => self.resolve(ClassReference::Slot(real)),
                None => NO_CLASS,
            },
        };
        self.known.insert(class, resolved);
        resolved
    }

    /// The slot of the singleton class that this refers to; `None` for other classes.
    fn singleton_class(&self, class: ClassReference) -> Option<u32> {
        let ClassReference::Slot(slot) = class else { return None };
        self.ancestor(slot).is_some_and(|it| !it.is_real).then_some(slot)
    }

    fn ancestor(&self, class: u32) -> Option<Ancestor> {
        let found = self.ancestors.binary_search_by_key(&class, |it| it.slot).ok()?;
        Some(self.ancestors[found])
    }

    fn add(&mut self, kind: ClassKind, name: Option<String>) -> u32 {
        self.classes.push(Class { kind, name, data_type: None });
        self.classes.len() as u32 - 1
    }

    /// The slot of the class that `Object#class` returns for objects of the class in slot `class`;
    /// `None` if there is no class in that slot. An object may be extended by thousands of modules: none of them is looked
    /// at twice.
    fn real_class(&mut self, class: u32) -> Option<u32> {
        self.ancestor(class)?;
        let (mut at, mut passed) = (class, Vec::new());
        while passed.len() <= self.ancestors.len() {
            let Some(found) = self.ancestor(at) else { break };
            let real = found.is_real.then_some(at).or_else(|| self.reals.get(&at).copied());
            if let Some(real) = real {
                self.reals.extend(passed.into_iter().map(|passed| (passed, real)));
                return Some(real);
            }
            passed.push(at);
            at = found.next;
        }
        self.reals.extend(passed.into_iter().map(|passed| (passed, passed)));
        // A singleton class that is being made has no superclass yet.
        Some(class)
    }
}
