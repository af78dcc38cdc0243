//! Processes as trees: each below the one that it belongs to.

use std::collections::HashMap;

/// Deeper branches of a tree are drawn like this one.
const MAX_DEPTH: usize = 4;

/// The processes by their indices.
struct Forest {
    roots: Vec<usize>,
    children: HashMap<usize, Vec<usize>>,
}

/// Returns the order of processes, by their indices, in which each is followed by its children, with the lines of their
/// branches. Each process has its id, and the id of its parent. Processes with the same parent are in the order of `key`, which gets
/// a process and all of its descendants.
#[must_use]
pub fn trees<K: Ord>(
    processes: &[(i32, Option<i32>)],
    key: impl Fn(&[usize]) -> K,
) -> Vec<(usize, String)> {
    let forest = Forest::of(processes);
    let keys: Vec<K> =
        (0..processes.len()).map(|index| key(&forest.with_descendants(index))).collect();
    let mut lines = Vec::new();
    forest.add(&forest.roots, 0, &keys, &mut lines);
    lines
}

impl Forest {
    fn of(processes: &[(i32, Option<i32>)]) -> Self {
        let indices: HashMap<i32, usize> =
            processes.iter().enumerate().map(|(index, (pid, _))| (*pid, index)).collect();
        let parents: Vec<Option<usize>> = processes
            .iter()
            .map(|(_, parent)| parent.and_then(|pid| indices.get(&pid).copied()))
            .collect();
        let mut forest = Self { roots: Vec::new(), children: HashMap::new() };
        for (index, parent) in parents.iter().enumerate() {
            match parent {
                Some(parent) if !is_in_ring(index, &parents) => {
                    forest.children.entry(*parent).or_default().push(index);
                }
                _ => forest.roots.push(index),
            }
        }
        forest
    }

    fn children(&self, index: usize) -> &[usize] {
        self.children.get(&index).map_or(&[], Vec::as_slice)
    }

    fn with_descendants(&self, index: usize) -> Vec<usize> {
        let mut found = vec![index];
        let mut at = 0;
        while let Some(&next) = found.get(at) {
            found.extend(self.children(next));
            at += 1;
        }
        found
    }

    /// Adds processes of the same depth, each with its descendants.
    fn add<K: Ord>(
        &self,
        processes: &[usize],
        depth: usize,
        keys: &[K],
        lines: &mut Vec<(usize, String)>,
    ) {
        let mut ordered = processes.to_vec();
        ordered.sort_by_key(|&index| &keys[index]);
        for (at, &index) in ordered.iter().enumerate() {
            let branch = match depth {
                0 => String::new(),
                _ if at + 1 == ordered.len() => "  ".repeat(depth.min(MAX_DEPTH) - 1) + "└ ",
                _ => "  ".repeat(depth.min(MAX_DEPTH) - 1) + "├ ",
            };
            lines.push((index, branch));
            self.add(self.children(index), depth + 1, keys, lines);
        }
    }
}

/// Returns true if a process is its own ancestor: the kernel may give the id of a parent that ended to a descendant.
fn is_in_ring(index: usize, parents: &[Option<usize>]) -> bool {
    let ancestors = std::iter::successors(parents[index], |&ancestor| parents[ancestor]);
    ancestors.take(parents.len()).any(|ancestor| ancestor == index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_is_followed_by_its_children() {
        let processes =
            [(1, None), (5, Some(4)), (4, Some(1)), (2, Some(99)), (3, Some(1)), (6, Some(1))];
        let first = |family: &[usize]| family.iter().copied().min();
        let lines = trees(&processes, first);
        let shown = lines.iter().map(|(index, branch)| format!("{branch}{}", processes[*index].0));
        assert_eq!(shown.collect::<Vec<_>>(), ["1", "├ 4", "  └ 5", "├ 3", "└ 6", "2"]);
        let largest = |family: &[usize]| std::cmp::Reverse(family.len());
        let order = trees(&processes, largest).into_iter().map(|(index, _)| processes[index].0);
        assert_eq!(order.collect::<Vec<_>>(), [1, 4, 5, 3, 6, 2]);
    }

    /// Bare `rbloat` showed none of them.
    #[test]
    fn processes_that_form_a_ring_are_shown() {
        let processes = [(1, Some(2)), (2, Some(1)), (3, Some(3)), (4, Some(1))];
        let lines = trees(&processes, |family| family[0]);
        assert_eq!(lines, [(0, "".into()), (3, "└ ".into()), (1, "".into()), (2, "".into())]);
    }
}
