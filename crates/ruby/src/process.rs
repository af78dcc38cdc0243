//! Facts about CRuby processes that other parts of rbloat rely on.

/// The signal for which every CRuby installs a handler that does nothing.
///
/// Ruby sends it to its own threads to wake them from system calls (`Init_native_thread` in
/// thread_pthread.c installs `null_func`; 2.7 to 4.1). So a signal that arrives from outside has no
/// effect, except that a waiting system call may return EINTR, which Ruby handles.
pub const WAKEUP_SIGNAL: i32 = libc::SIGVTALRM;

/// The prefixes of environment variables that change how much memory Ruby uses.
///
/// `RUBY_GC_*` configures the garbage collector (`ruby_gc_set_params` in gc.c; from 3.4 on in
/// gc/default/default.c, and `RUBY_GC_LIBRARY` in gc.c). `RUBY_THREAD_*` sets the sizes of thread
/// stacks (`setup_param` in vm.c).
pub const ENVIRONMENT_PREFIXES: [&str; 2] = ["RUBY_GC_", "RUBY_THREAD_"];
