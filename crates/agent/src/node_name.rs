/// The name of the node. In a container, the name of the host is that of the pod.
pub(crate) fn node_name() -> String {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(host)
}
