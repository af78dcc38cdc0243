use super::*;

#[test]
fn objects_that_take_turns_are_picked_alike() {
    for kinds in [2, 3, 4, 8] {
        let mut kept = Retained::new();
        (0..100_000).for_each(|slot| kept.add(slot, 1, 64));
        assert!((MAX_PICKS / 2..MAX_PICKS).contains(&kept.picks.len()), "{}", kept.picks.len());
        for kind in 0..kinds {
            let picked = kept.picks.iter().filter(|slot| *slot % kinds == kind).count();
            let part = picked as f64 / kept.picks.len() as f64 * f64::from(kinds);
            assert!((0.3..2.0).contains(&part), "{part} of kind {kind} of {kinds}");
        }
    }
}

#[test]
fn objects_are_picked_in_proportion_to_their_bytes() {
    let mut kept = Retained::new();
    for slot in 0..10_000 {
        kept.add(slot, 1, if slot % 10 == 0 { 90 * 64 } else { 10 * 64 });
    }
    let large = kept.picks.iter().filter(|slot| *slot % 10 == 0).count();
    let part = large as f64 / kept.picks.len() as f64;
    assert!((0.35..0.65).contains(&part), "{part} of the picks have half of the bytes");
}
