/// The reason why the kernel refuses, as far as it can be seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// The security module Yama lets nobody stop a process.
    #[error(
        "kernel.yama.ptrace_scope is {ptrace_scope}: no process can be stopped, not even by root, until the next reboot"
    )]
    Locked {
        /// Its setting.
        ptrace_scope: u32,
    },
    /// The files of the process belong to another user.
    #[error(
        "needs CAP_DAC_READ_SEARCH beside CAP_SYS_PTRACE to open the files of another user's process"
    )]
    OthersFiles,
    /// rbloat has the capability, and is refused nevertheless.
    #[error(
        "rbloat has CAP_SYS_PTRACE, so the process is probably in another user namespace, or a security module (SELinux, \
         AppArmor, seccomp) forbids it"
    )]
    Forbidden,
    /// The process is another user's.
    #[error("needs CAP_SYS_PTRACE: the process runs as uid {their_uid}, rbloat as uid {own_uid}")]
    OtherUser {
        /// The effective user of the process.
        their_uid: u32,
        /// Our effective user.
        own_uid: u32,
    },
    /// Yama restricts whom a user may trace.
    #[error("needs CAP_SYS_PTRACE: kernel.yama.ptrace_scope is {ptrace_scope}")]
    Restricted {
        /// Its setting.
        ptrace_scope: u32,
    },
    /// The files of a process that may not be dumped belong to root, regardless of its user.
    #[error(
        "needs CAP_SYS_PTRACE: the process is not dumpable (it changed its user or was started with privileges)"
    )]
    NotDumpable,
    /// Nothing else was found.
    #[error("needs CAP_SYS_PTRACE")]
    NoCapability,
}
