//! The roles of processes, which are labels of metrics.

use std::collections::{BTreeMap, BTreeSet};

use formats::{Container, Place};

/// The roles of a container at a time: a program that writes numbers into its title would have a new one each time, and each is a
/// series that Prometheus keeps for long.
const MAX_ROLES: usize = 100;
/// The role of the processes beyond that.
const OTHER: &str = "other";

/// The roles of the processes of each container.
#[derive(Default)]
pub(crate) struct Roles(BTreeMap<Container, BTreeSet<String>>);

impl Roles {
    pub(crate) fn of<'a>(places: impl Iterator<Item = &'a Place>) -> Self {
        let mut roles = Self::default();
        for Place { container, role } in places.filter(|place| place.role != OTHER) {
            roles.0.entry(container.clone()).or_default().insert(role.clone());
        }
        roles
    }

    /// Returns the role, or another one if the container has too many.
    pub(crate) fn admit(&mut self, container: &Container, role: String) -> String {
        let roles = self.0.entry(container.clone()).or_default();
        if roles.len() < MAX_ROLES {
            roles.insert(role.clone());
        }
        if roles.contains(&role) { role } else { OTHER.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each role is a series, and a process can change its title as often as it likes.
    #[test]
    fn the_number_of_roles_is_bounded() {
        let (mut roles, container) = (Roles::default(), Container::default());
        let mut admit = |number| roles.admit(&container, format!("job-{number}"));
        let admitted: BTreeSet<String> = (0..1000).map(&mut admit).collect();
        assert_eq!(admitted.len(), MAX_ROLES + 1);
        assert_eq!(admit(MAX_ROLES - 1), format!("job-{}", MAX_ROLES - 1));
        assert_eq!(admit(MAX_ROLES), OTHER);
    }

    /// After a hundred scripts outside of containers, which had all ended, new ones were `other` until the agent was restarted.
    #[test]
    fn roles_of_processes_that_have_ended_make_room() {
        let (mut roles, container) = (Roles::default(), Container::default());
        let place = |role| Place { container: Container::default(), role };
        let admitted = (0..200).map(|number| roles.admit(&container, format!("job-{number}")));
        let places: Vec<Place> = admitted.map(place).collect();
        let mut later = Roles::of(places[..MAX_ROLES - 1].iter().chain(&places[MAX_ROLES..]));
        assert_eq!(later.admit(&container, "new".into()), "new");
        assert_eq!(later.admit(&container, "one more".into()), OTHER);
    }
}
