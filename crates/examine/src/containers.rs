//! The containers of this machine, by name.

use std::collections::BTreeMap;

use formats::Container;

/// The folder in which the kubelet keeps links to the logs of containers.
const LOGS: &str = "/var/log/containers";

/// The containers that the kubelet names, by their ids.
#[derive(Debug, Default)]
pub struct Containers(BTreeMap<String, Container>);

impl Containers {
    /// Returns the container of a process, by the path of its control group.
    pub fn of(&mut self, group_path: Option<&str>) -> Container {
        let ids = diagnosis::container_ids(group_path.unwrap_or_default());
        let of_kubelet = ids.container.as_ref().and_then(|id| {
            if !self.0.contains_key(id) {
                let entries = std::fs::read_dir(LOGS).into_iter().flatten().flatten();
                let logs = entries.filter_map(|entry| {
                    diagnosis::container_of_log(&entry.file_name().to_string_lossy())
                });
                self.0 = logs.collect();
            }
            self.0.get(id).cloned()
        });
        of_kubelet.unwrap_or_else(|| ids.named())
    }
}
