//! Files with families: they are read back as written, and damaged ones are rejected or drawn, whatever their numbers.

use diagnosis::family_growth;
use formats::{Family, Snapshot, SnapshotError};
use proptest::prelude::*;
use serde_json::Value;

fn family() -> Value {
    serde_json::from_str(include_str!("family.json")).unwrap()
}

fn parsed(value: Value) -> Option<Family> {
    serde_json::from_value(value).ok()
}

/// The numbers of a document.
fn numbers<'a>(value: &'a mut Value, found: &mut Vec<&'a mut Value>) {
    match value {
        Value::Number(_) => found.push(value),
        Value::Array(values) => values.iter_mut().for_each(|it| numbers(it, found)),
        Value::Object(fields) => fields.values_mut().for_each(|it| numbers(it, found)),
        _ => {}
    }
}

#[test]
fn what_is_written_comes_back() {
    let family = parsed(family()).unwrap();
    let bytes = family.to_bytes();
    assert!(Snapshot::begins(&bytes));
    assert_eq!(Family::from_bytes(&bytes).unwrap(), family);
    assert!(matches!(Snapshot::from_bytes(&bytes), Err(SnapshotError::OtherKind(_))));
    for end in 0..bytes.len() {
        assert!(Family::from_bytes(&bytes[..end]).is_err());
    }
}

#[test]
fn numbers_that_do_not_fit_together_are_rejected() {
    let is_rejected = |change: &dyn Fn(&mut Family)| {
        let mut family = parsed(family()).unwrap();
        change(&mut family);
        matches!(
            Family::from_bytes(&family.to_bytes()),
            Err(SnapshotError::InvalidSection { name: "family", .. })
        )
    };
    assert!(!is_rejected(&|_| {}));
    assert!(is_rejected(&|it| it.memory_bytes += 1));
    assert!(is_rejected(&|it| it.causes[0].private_bytes.push(0)));
    assert!(is_rejected(&|it| drop(it.members.pop())));
    assert!(is_rejected(&|it| it.members[1].copied_bytes = it.members[1].private_bytes + 1));
    assert!(is_rejected(&|it| it.members[1].writes[0].bytes += it.memory_bytes));
    // More than sums can have.
    assert!(is_rejected(&|it| it.rss_bytes = u64::MAX));
}

proptest! {
    #[test]
    fn whatever_is_accepted_can_be_shown_and_compared(
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), prop_oneof![0_u64..10, 0_u64..1 << 53, any::<u64>()]),
            0..4
        )
    ) {
        let mut value = family();
        let mut found = Vec::new();
        numbers(&mut value, &mut found);
        let places = found.len();
        for (place, number) in changes {
            *found[place.index(places)] = number.into();
        }
        let Some(mut damaged) = parsed(value) else { return Ok(()) };
        damaged.memory_bytes = damaged
            .causes
            .iter()
            .flat_map(|row| [row.shared_by_all_bytes, row.shared_by_some_bytes].into_iter().chain(row.private_bytes.iter().copied()))
            .fold(0, u64::saturating_add);
        let Ok(read) = Family::from_bytes(&damaged.to_bytes()) else { return Ok(()) };
        prop_assert!(!render::family(&read, 100).is_empty());
        let valid = parsed(family()).unwrap();
        let accounts = [valid.clone(), read, valid].map(|it| ("a".to_owned(), it));
        prop_assert!(!render::family_diff(&family_growth(&accounts), 100).is_empty());
    }
}
