use crate::layout::iseq_location::{FirstLine, IseqLocation};
use crate::layout::line_tables::LineTables;

/// The paths that bytecode was compiled from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CodePaths {
    /// The paths, each once, as Ruby has them: of files, and `<internal:kernel>`, `(eval)`, `-e`.
    pub paths: Vec<String>,
    /// The iseqs, ascending by slot.
    pub(crate) iseqs: Vec<IseqSource>,
    /// The places of paths and labels, and of lines, for [`backtraces`](crate::backtraces) and
    /// [`closures`](crate::closures()).
    pub(crate) location: Option<IseqLocation>,
    pub(crate) first_line: Option<FirstLine>,
    pub(crate) lines: Option<LineTables>,
}

/// Where the code of an iseq begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct IseqSource {
    pub(crate) slot: u32,
    /// The index of its path.
    pub path: u32,
    /// Its first line; 0 if it is unknown.
    pub line: u32,
}

impl CodePaths {
    /// The index of the path of the iseq in this slot; `None` for other slots, and if its path could
    /// not be read.
    #[must_use]
    pub fn of(&self, slot: u32) -> Option<u32> {
        Some(self.iseqs[self.number(slot)?].path)
    }

    /// Where each known iseq begins, ascending by slot.
    #[must_use]
    pub fn iseqs(&self) -> &[IseqSource] {
        &self.iseqs
    }

    /// The index in [`iseqs`](Self::iseqs) of the iseq in this slot; `None` as for [`of`](Self::of).
    #[must_use]
    pub fn number(&self, slot: u32) -> Option<usize> {
        self.iseqs.binary_search_by_key(&slot, |it| it.slot).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_iseq_has_its_own_path() {
        let paths = vec!["/a.rb".to_owned(), "/b.rb".to_owned()];
        let iseqs = [(3, 1), (5, 0), (9, 1)].map(|(slot, path)| IseqSource { slot, path, line: 0 });
        let code = CodePaths { paths, iseqs: iseqs.into(), ..CodePaths::default() };
        let found = [2, 3, 4, 5, 9, 10].map(|slot| code.of(slot));
        assert_eq!(found, [None, Some(1), None, Some(0), Some(1), None]);
    }
}
