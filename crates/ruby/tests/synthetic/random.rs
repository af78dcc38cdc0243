//! Random heaps, read back, and heaps with random damage.

use proptest::prelude::*;
use ruby::Slot;
use testkit::{RubyHeap, RubyRelease, SyntheticMemory, Word};

use super::named_roots::holding;
use super::{INTERNAL, as_truth, lively};

/// A step in the making of a random heap.
#[derive(Debug, Clone)]
enum Step {
    Object { class: usize, pointer: bool, words: usize },
    Class { named: bool, of: usize },
    Text(String),
    TextElsewhere,
    Internal(u8),
    Extend(usize),
    Mark(usize, bool),
    Unprotect(usize),
    Free(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<usize>(), any::<bool>(), 0..40_usize)
            .prop_map(|(class, pointer, words)| Step::Object { class, pointer, words }),
        1 => (any::<bool>(), any::<usize>()).prop_map(|(named, of)| Step::Class { named, of }),
        2 => "[a-z]{0,20}".prop_map(Step::Text),
        2 => Just(Step::TextElsewhere),
        1 => (0..11_u8).prop_map(Step::Internal),
        1 => any::<usize>().prop_map(Step::Extend),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(it, old)| Step::Mark(it, old)),
        1 => any::<usize>().prop_map(Step::Unprotect),
        2 => any::<usize>().prop_map(Step::Free),
    ]
}

fn build(release: RubyRelease, steps: &[Step]) -> RubyHeap {
    let mut heap = RubyHeap::new(release);
    let mut classes = vec![heap.object_class()];
    let mut objects: Vec<u64> = Vec::new();
    // Every Ruby has methods.
    heap.imemo("iseq");
    heap.imemo("ment");
    for (number, step) in steps.iter().enumerate() {
        let some = |of: &Vec<u64>, index: usize| of.get(index % of.len().max(1)).copied();
        match step {
            Step::Object { class, pointer, words } => {
                let most = if release.version() < "3.2" { 3 } else { 60 };
                let mut own = vec![Word::Value(number as u64); (*words).min(most)];
                let memory = heap.malloc(64);
                if let Some(first) = own.first_mut().filter(|_| *pointer) {
                    *first = Word::Pointer(memory);
                }
                let class = classes[class % classes.len()];
                objects.push(heap.object(class, &own));
            }
            Step::Class { named, of } => {
                let superclass = classes[of % classes.len()];
                let name = format!("Class{number}");
                let class = if *named {
                    heap.class(&name, superclass)
                } else {
                    heap.anonymous_class(superclass)
                };
                classes.push(class);
            }
            Step::Text(text) => objects.push(heap.string(text)),
            Step::TextElsewhere => {
                let memory = heap.malloc(200);
                objects.push(heap.string_at(memory, 150));
            }
            Step::Internal(kind) => {
                objects.push(heap.imemo(INTERNAL[usize::from(*kind) % INTERNAL.len()]));
            }
            Step::Extend(it) => {
                if let Some(it) = some(&objects, *it).filter(|it| heap.is_of_own_class(*it)) {
                    heap.extend(it);
                }
            }
            Step::Mark(it, old) => {
                if let Some(it) = some(&objects, *it) {
                    heap.mark(it, *old);
                }
            }
            Step::Unprotect(it) => {
                if let Some(it) = some(&objects, *it) {
                    heap.unprotect(it);
                }
            }
            Step::Free(it) => {
                if !objects.is_empty() {
                    let it = objects.swap_remove(it % objects.len());
                    heap.free(it);
                }
            }
        }
    }
    heap
}

fn release() -> impl Strategy<Value = RubyRelease> {
    (0..RubyRelease::ALL.len()).prop_map(|index| RubyRelease::ALL[index])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(testkit::cases(20)))]

    #[test]
    fn random_heaps_read_as_they_were_written(
        release in release(),
        steps in prop::collection::vec(step(), 200..800),
    ) {
        let heap = build(release, &steps);
        let (image, truth) = heap.image();
        let space = ruby::read(&image);
        let space = space.unwrap_or_else(|error| panic!("{release:?}: {error}"));
        prop_assert_eq!(as_truth(&space), truth);
    }

    #[test]
    fn corruption_ends_as_an_error_or_a_reading_and_never_panics(
        release in release(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0..4096_u64, any::<u64>()), 1..60),
    ) {
        let mut memory = SyntheticMemory::default();
        let heap = if release.version() < "4" { holding(release).0 } else { lively(release) };
        heap.write(&mut memory);
        let state = memory.state();
        let pages: Vec<u64> = state.pages.iter().flat_map(|pages| pages.iter())
            .flat_map(|run| (run.range.start.0..run.range.end.0).step_by(4096))
            .collect();
        for (page, offset, word) in damage {
            let at = pages[page.index(pages.len())] + offset / 8 * 8;
            // Words from elsewhere in the heap are more misleading than random ones.
            let word = if word % 2 == 0 { word } else { memory.word(at ^ (word & 0xff8)) };
            memory.write_u64(at, word);
        }
        let image = memory.image();
        if let Ok(space) = ruby::read(&image) {
            let (named_roots, _) = ruby::named_roots(&image, &space);
            prop_assert!(named_roots.iter().all(|it| space.slots[it.value as usize].is_live()));
            let counts = space.counts();
            prop_assert_eq!(counts["TOTAL"], space.slots.len() as u64);
            prop_assert!(space.sized_slots().map(|(slot, _)| slot).eq(space.slots.iter().copied()));
            let mut classes = space.slots.iter().map(|slot| slot.class());
            let count = space.classes.len() as u32;
            prop_assert!(classes.all(|class| class < count || class == Slot::NO_CLASS));
        }
    }
}
