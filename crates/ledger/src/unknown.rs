//! Anonymous memory that nothing claims, by the permissions of its mappings.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use linux::{Address, Mapping, Mappings, length, one_line};

/// Anonymous mappings with the same permissions, whose memory rbloat cannot fully account for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownMappings {
    /// Their permissions: `rw-`.
    pub permissions: String,
    /// Their number.
    pub mappings: u64,
    /// Their size.
    pub mapped_bytes: u64,
    /// The resident bytes without any other cause.
    pub resident_bytes: u64,
    /// The part of these bytes that is in transparent huge pages. One written byte makes a whole huge page resident.
    pub huge_bytes: u64,
    /// The mapping with most of these bytes.
    pub largest: Range<Address>,
    /// The name of the file that is mapped directly before or behind it.
    pub beside: Option<String>,
    /// The class whose objects refer to more than half of these bytes.
    pub owner: Option<String>,
    /// The part of these bytes to which they refer.
    pub owner_bytes: u64,
}

/// The bytes without any other cause by mapping, and those in huge pages, during booking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Unknown(BTreeMap<Address, (u64, u64)>);

impl Unknown {
    /// Adds `bytes` of a mapping, which are in huge pages or not.
    pub(crate) fn book(&mut self, mapping: &Mapping, bytes: u64, are_huge: bool) {
        if bytes > 0 {
            self.add_to(mapping.range.start, bytes, if are_huge { bytes } else { 0 });
        }
    }

    fn add_to(&mut self, mapping: Address, bytes: u64, huge_bytes: u64) {
        let (all, huge) = self.0.entry(mapping).or_default();
        *all += bytes;
        *huge += huge_bytes;
    }

    /// Adds the bytes of other parts of the same process.
    pub(crate) fn add(&mut self, more: &Self) {
        for (&start, &(bytes, huge_bytes)) in &more.0 {
            self.add_to(start, bytes, huge_bytes);
        }
    }

    /// Returns the mappings by permissions, those with most unknown bytes first. `owner_of` returns the owner of the pointers to a
    /// mapping.
    pub(crate) fn accounts(
        &self,
        mappings: &Mappings,
        owner_of: impl Fn(&Range<Address>) -> Option<String>,
    ) -> Vec<UnknownMappings> {
        let mut groups = BTreeMap::<String, (UnknownMappings, u64)>::new();
        let mut by_owner = BTreeMap::<(String, String), u64>::new();
        for (&start, &(bytes, huge_bytes)) in &self.0 {
            let Some(mapping) = mappings.find(start) else { continue };
            let permissions = permissions(mapping);
            if let Some(owner) = owner_of(&mapping.range) {
                *by_owner.entry((permissions.clone(), owner)).or_default() += bytes;
            }
            let (group, most) = groups.entry(permissions.clone()).or_insert_with(|| {
                let largest = mapping.range.clone();
                let group = UnknownMappings {
                    permissions,
                    mappings: 0,
                    mapped_bytes: 0,
                    resident_bytes: 0,
                    huge_bytes: 0,
                    largest,
                    beside: None,
                    owner: None,
                    owner_bytes: 0,
                };
                (group, 0)
            });
            group.mappings += 1;
            group.mapped_bytes += length(&mapping.range);
            group.resident_bytes += bytes;
            group.huge_bytes += huge_bytes;
            if bytes > *most {
                *most = bytes;
                group.largest = mapping.range.clone();
            }
        }
        let mut groups: Vec<_> = groups.into_values().map(|(group, _)| group).collect();
        for group in &mut groups {
            group.beside = beside(&group.largest, mappings);
            let of_group = by_owner.iter().filter(|((its, _), _)| *its == group.permissions);
            let most = of_group.max_by_key(|(_, bytes)| **bytes);
            if let Some(((_, owner), &bytes)) = most
                && bytes > group.resident_bytes / 2
            {
                (group.owner, group.owner_bytes) = (Some(one_line(owner)), bytes);
            }
        }
        groups.sort_by_key(|group| Reverse(group.resident_bytes));
        groups
    }
}

fn permissions(mapping: &Mapping) -> String {
    let flags = [(mapping.readable, 'r'), (mapping.writable, 'w'), (mapping.executable, 'x')];
    flags.map(|(is_set, flag)| if is_set { flag } else { '-' }).into_iter().collect()
}

fn beside(range: &Range<Address>, mappings: &Mappings) -> Option<String> {
    let before = mappings.iter().find(|mapping| mapping.range.end == range.start);
    let behind = mappings.iter().find(|mapping| mapping.range.start == range.end);
    let name = before.and_then(Mapping::file_name).or_else(|| behind.and_then(Mapping::file_name));
    name.map(|name| one_line(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::Backing;

    #[test]
    fn mappings_with_the_same_permissions_are_summed_up() {
        let mapping = |start: u64, end: u64| Mapping::anonymous(Address(start)..Address(end));
        let code = Mapping { executable: true, ..mapping(0x9000, 0xa000) };
        let backing = Backing::File("/opt/lib\u{1b}v8.so".into());
        let file = Mapping { backing, ..mapping(0x5000, 0x6000) };
        let all = [mapping(0x1000, 0x3000), file, mapping(0x6000, 0x8000), code];
        let mut unknown = Unknown::default();
        unknown.book(&all[0], 0x1000, false);
        unknown.book(&all[3], 0x200, false);
        unknown.book(&all[1], 0, false);
        let mut more = Unknown::default();
        more.book(&all[2], 0x1800, true);
        unknown.add(&more);
        let owner_of =
            |mapping: &Range<Address>| (mapping.start.0 != 0x1000).then(|| "Isolate".into());
        let groups = unknown.accounts(&Mappings::new(all.to_vec()), owner_of);
        let data = UnknownMappings {
            permissions: "rw-".into(),
            mappings: 2,
            mapped_bytes: 0x4000,
            resident_bytes: 0x2800,
            huge_bytes: 0x1800,
            largest: Address(0x6000)..Address(0x8000),
            beside: Some("lib v8.so".into()),
            owner: Some("Isolate".into()),
            owner_bytes: 0x1800,
        };
        assert_eq!(groups[0], data);
        let code = &groups[1];
        assert_eq!(
            (code.permissions.as_str(), code.resident_bytes, groups.len()),
            ("rwx", 0x200, 2)
        );
        assert_eq!(code.beside, None);
    }
}
