//! A fact about CRuby processes that other parts of rbloat rely on.

/// The signal for which every CRuby installs a handler that does nothing.
///
/// Ruby sends it to its own threads to wake them from system calls (`Init_native_thread` in
/// thread_pthread.c installs `null_func`; 2.7 to 4.1). So a signal that arrives from outside has no
/// effect, except that a waiting system call may return EINTR, which Ruby handles.
pub const WAKEUP_SIGNAL: i32 = libc::SIGVTALRM;
