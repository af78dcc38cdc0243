/// The lines that allocated objects, as far as the process traced that.
#[derive(Debug, Clone, Default)]
pub struct AllocationSites {
    /// Ascending by slot.
    sites: Vec<Site>,
    names: Vec<String>,
}

/// The line that allocated an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) slot: u32,
    /// The numbers of the names of its file and method.
    pub(crate) path: Option<u32>,
    pub(crate) method: Option<u32>,
    pub(crate) line: u32,
    pub(crate) generation: u32,
}

/// The line that allocated an object, with names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllocationSite<'a> {
    /// The file.
    pub path: Option<&'a str>,
    /// The line.
    pub line: u32,
    /// The method.
    pub method: Option<&'a str>,
    /// The number of collections before.
    pub generation: u32,
}

impl AllocationSites {
    pub(crate) fn new(mut sites: Vec<Site>, names: Vec<String>) -> Self {
        sites.sort_unstable_by_key(|site| site.slot);
        Self { sites, names }
    }

    /// The line that allocated the object in a slot, if it is known.
    #[must_use]
    pub fn of(&self, slot: u32) -> Option<AllocationSite<'_>> {
        let found = self.sites.binary_search_by_key(&slot, |site| site.slot).ok()?;
        let Site { path, method, line, generation, .. } = self.sites[found];
        let name = |number: Option<u32>| self.names.get(number? as usize).map(String::as_str);
        Some(AllocationSite { path: name(path), line, method: name(method), generation })
    }
}
