//! Dominators of a directed graph: the nodes without which others could not be reached.
//!
//! The algorithm is Semi-NCA (Georgiadis, "Linear-Time Algorithms for Dominators and Related Problems", 2005, section
//! 2.3), iterative, since a linked list is a path of millions of nodes. It needs 28 bytes for a node and 8 for an edge.
//! petgraph's algorithm agrees in the tests; it needs hash maps with several times the memory.

/// A directed graph whose nodes are numbers from 0 on. Node 0 is the root.
#[derive(Debug, Clone, Default)]
pub(crate) struct Digraph {
    /// For each node the end of its edges in `to`. They begin at the end of the previous node's edges.
    ends: Vec<u32>,
    to: Vec<u32>,
}

/// The number of an unreachable node.
const UNREACHED: u32 = u32::MAX;

/// The dominator tree of the nodes that the root reaches.
#[derive(Debug, Default)]
pub(crate) struct Dominators {
    /// The reachable nodes in the order of a depth-first search, the root first. A dominator comes before all nodes that
    /// it dominates.
    pub(crate) order: Vec<u32>,
    /// For each node its immediate dominator; [`UNREACHED`] for unreachable nodes. The root's is the root.
    parents: Vec<u32>,
}

impl Digraph {
    /// A graph without edges yet, with room for this many nodes.
    pub(crate) fn with_nodes(nodes: usize) -> Self {
        Self { ends: Vec::with_capacity(nodes), to: Vec::new() }
    }

    /// Adds an edge from the node that is being written.
    pub(crate) fn push(&mut self, to: u32) {
        self.to.push(to);
    }

    /// Ends the edges of a node. The next edges belong to the next node.
    pub(crate) fn end_node(&mut self) {
        self.ends.push(self.to.len() as u32);
    }

    /// The number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The nodes that a node has edges to.
    pub(crate) fn of(&self, node: u32) -> &[u32] {
        let start = node.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        &self.to[start as usize..self.ends[node as usize] as usize]
    }
}

impl Dominators {
    /// Finds the dominators of all nodes that node 0 reaches.
    pub(crate) fn find(graph: &Digraph) -> Self {
        if graph.len() == 0 {
            return Self::default();
        }
        let (order, mut numbers, tree) = depth_first(graph);
        let predecessors = predecessors(graph, &order, &numbers);
        let mut labels: Vec<u32> = (0..order.len() as u32).collect();
        let mut semidominators = labels.clone();
        let mut ancestors = tree.clone();
        let mut path = Vec::new();
        for number in (1..order.len() as u32).rev() {
            let mut least = tree[number as usize];
            for &from in predecessors.of(number) {
                let label = label(
                    from,
                    number + 1,
                    &mut ancestors,
                    &mut labels,
                    &semidominators,
                    &mut path,
                );
                least = least.min(semidominators[label as usize]);
            }
            semidominators[number as usize] = least;
        }
        drop((predecessors, labels, ancestors));
        let mut dominators = tree;
        for number in 1..order.len() {
            let mut candidate = dominators[number];
            while candidate > semidominators[number] {
                candidate = dominators[candidate as usize];
            }
            dominators[number] = candidate;
        }
        // From numbers to nodes.
        for (&node, dominator) in order.iter().zip(dominators) {
            numbers[node as usize] = order[dominator as usize];
        }
        Self { order, parents: numbers }
    }

    /// The immediate dominator of a node; `None` for the root, and for nodes that it does not reach.
    pub(crate) fn of(&self, node: u32) -> Option<u32> {
        let parent = *self.parents.get(node as usize)?;
        (node != 0 && parent != UNREACHED).then_some(parent)
    }

    /// Returns true if the root reaches a node.
    pub(crate) fn reaches(&self, node: u32) -> bool {
        self.parents.get(node as usize).is_some_and(|&parent| parent != UNREACHED)
    }
}

/// The reachable nodes in the order of a depth-first search, the number of each node in that order, and the number of
/// the node from which each was found.
fn depth_first(graph: &Digraph) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
    let mut order = vec![0];
    let mut numbers = vec![UNREACHED; graph.len()];
    let mut tree = vec![0];
    numbers[0] = 0;
    // A node, and the number of its edges that were followed.
    let mut stack = vec![(0_u32, 0_u32)];
    while let Some((node, followed)) = stack.last_mut() {
        let Some(&to) = graph.of(*node).get(*followed as usize) else {
            stack.pop();
            continue;
        };
        *followed += 1;
        if let Some(number @ &mut UNREACHED) = numbers.get_mut(to as usize) {
            *number = order.len() as u32;
            tree.push(numbers[*node as usize]);
            order.push(to);
            stack.push((to, 0));
        }
    }
    (order, numbers, tree)
}

/// The graph with all edges reversed, between numbers.
fn predecessors(graph: &Digraph, order: &[u32], numbers: &[u32]) -> Digraph {
    let mut ends = vec![0_u32; order.len()];
    let targets =
        || order.iter().flat_map(|&node| graph.of(node).iter().map(|&to| numbers[to as usize]));
    for to in targets() {
        ends[to as usize] += 1;
    }
    let mut sum = 0;
    for end in &mut ends {
        sum += *end;
        *end = sum - *end;
    }
    // From here on an entry is the place for the next edge, so at the end it is the end of all.
    let mut to = vec![0; sum as usize];
    for (number, &node) in (0..).zip(order) {
        for &target in graph.of(node) {
            let place = &mut ends[numbers[target as usize] as usize];
            to[*place as usize] = number;
            *place += 1;
        }
    }
    Digraph { ends, to }
}

/// The node with the least semidominator on the path from `number` up to the nodes that are not linked yet, which are
/// those before `linked`. Shortens the path.
fn label(
    number: u32,
    linked: u32,
    ancestors: &mut [u32],
    labels: &mut [u32],
    semidominators: &[u32],
    path: &mut Vec<u32>,
) -> u32 {
    let mut at = number;
    while ancestors[at as usize] >= linked {
        path.push(at);
        at = ancestors[at as usize];
    }
    let top = ancestors[at as usize];
    let mut best = labels[at as usize];
    while let Some(below) = path.pop() {
        ancestors[below as usize] = top;
        let own = labels[below as usize];
        if semidominators[best as usize] < semidominators[own as usize] {
            labels[below as usize] = best;
        } else {
            best = own;
        }
    }
    labels[number as usize]
}

#[cfg(test)]
mod tests {
    use petgraph::algo::dominators::simple_fast;
    use petgraph::graph::{DiGraph, NodeIndex};
    use proptest::prelude::*;

    use super::*;

    fn graph_of(nodes: u32, edges: &[(u32, u32)]) -> Digraph {
        let mut graph = Digraph::with_nodes(nodes as usize);
        for node in 0..nodes {
            edges.iter().filter(|edge| edge.0 == node).for_each(|edge| graph.push(edge.1));
            graph.end_node();
        }
        graph
    }

    fn dominators_of(nodes: u32, edges: &[(u32, u32)]) -> Vec<Option<u32>> {
        let dominators = Dominators::find(&graph_of(nodes, edges));
        (0..nodes).map(|node| dominators.of(node)).collect()
    }

    #[test]
    fn a_node_that_two_ways_lead_to_is_dominated_by_their_fork() {
        let edges = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (5, 4), (6, 5)];
        let expected = [None, Some(0), Some(1), Some(1), Some(1), Some(4), None];
        assert_eq!(dominators_of(7, &edges), expected);
    }

    /// Also for the stack: recursion would overflow it.
    #[test]
    fn a_long_list_is_a_chain_of_dominators() {
        let nodes = 1_000_000;
        let mut graph = Digraph::with_nodes(nodes as usize);
        for node in 0..nodes {
            (node + 1 < nodes).then(|| graph.push(node + 1));
            node.checked_sub(1).into_iter().for_each(|before| graph.push(before));
            graph.end_node();
        }
        let dominators = Dominators::find(&graph);
        assert!((1..nodes).all(|node| dominators.of(node) == Some(node - 1)));
    }

    #[test]
    fn a_graph_without_nodes_has_none() {
        assert!(Dominators::find(&Digraph::default()).order.is_empty());
    }

    proptest! {
        #[test]
        fn petgraph_finds_the_same_dominators(
            nodes in 1_u32..40,
            edges in prop::collection::vec((0_u32..40, 0_u32..40), 0..120),
        ) {
            let edges: Vec<_> = edges.into_iter().map(|(a, b)| (a % nodes, b % nodes)).collect();
            let mut other = DiGraph::<(), ()>::new();
            (0..nodes).for_each(|_| _ = other.add_node(()));
            other.extend_with_edges(&edges);
            let expected = simple_fast(&other, NodeIndex::new(0));
            for (node, found) in (0..nodes).zip(dominators_of(nodes, &edges)) {
                let expected = expected.immediate_dominator(NodeIndex::new(node as usize));
                prop_assert_eq!(found, expected.map(|it| it.index() as u32));
            }
        }
    }
}
