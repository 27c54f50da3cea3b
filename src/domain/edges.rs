//! Edges: what appeared, changed and ended between two observations.

use std::collections::BTreeMap;

/// Things that are followed from one observation to the next, each by its key.
#[derive(Debug, Clone)]
pub struct Edges<K, V> {
    known: BTreeMap<K, V>,
}

/// Changes between two observations, in the order of the keys.
#[derive(Debug)]
pub struct EdgeChanges<K, V> {
    /// Things that are new.
    pub appeared: Vec<(K, V)>,
    /// Things whose value is another one, with the present value.
    pub changed: Vec<(K, V)>,
    /// Things that are gone, with their last value.
    pub ended: Vec<(K, V)>,
}

impl<K, V> Default for Edges<K, V> {
    fn default() -> Self {
        Self { known: BTreeMap::new() }
    }
}

/// Takes what an earlier manager knew as the last observation.
impl<K: Ord, V> FromIterator<(K, V)> for Edges<K, V> {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(known: T) -> Self {
        Self { known: known.into_iter().collect() }
    }
}

impl<K: Ord + Clone, V: PartialEq + Clone> Edges<K, V> {
    /// Returns the things of the last observation.
    pub fn known(&self) -> &BTreeMap<K, V> {
        &self.known
    }

    /// Takes all things that are there now, and returns what differs from the last observation.
    pub fn observe(&mut self, now: BTreeMap<K, V>) -> EdgeChanges<K, V> {
        let mut before = std::mem::replace(&mut self.known, now);
        let (mut appeared, mut changed) = (Vec::new(), Vec::new());
        for (key, value) in &self.known {
            match before.remove(key) {
                None => appeared.push((key.clone(), value.clone())),
                Some(last) if last != *value => changed.push((key.clone(), value.clone())),
                Some(_) => {}
            }
        }
        EdgeChanges { appeared, changed, ended: before.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_edge_is_returned_once() {
        let mut edges: Edges<u8, char> = [(1, 'a'), (2, 'b')].into_iter().collect();
        let now = BTreeMap::from([(2, 'c'), (3, 'd')]);
        let changes = edges.observe(now.clone());
        assert_eq!(
            (changes.appeared, changes.changed, changes.ended),
            (vec![(3, 'd')], vec![(2, 'c')], vec![(1, 'a')])
        );
        let none = edges.observe(now);
        assert!(none.appeared.is_empty() && none.changed.is_empty() && none.ended.is_empty());
    }
}
