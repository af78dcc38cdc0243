#![doc = include_str!("../README.md")]
//!
//! A tracer that sets a thread's registers and dies before it restores them kills the target. So nothing here
//! restores registers: the kernel does. CRuby, for one, has a handler for SIGVTALRM that does nothing, and sends itself
//! that signal to wake threads from system calls. We send it too, stop the thread at the handler's first instruction,
//! and let it run something else instead. By then the kernel has saved registers, extended state, signal mask and
//! the interrupted system call, and it restores all of that when the code returns, whether rbloat still lives or not:
//!
//! | rbloat dies | the thread |
//! |---|---|
//! | before the handler | runs the handler, which does nothing |
//! | at its first instruction | runs the handler, which does nothing |
//! | after its registers were set | runs what it was made to run, and returns |
//!
//! At no instant does the thread have registers that are not its own. For a forked copy, which takes
//! milliseconds, the call in which it waits starts again afterwards. Calls that the kernel never restarts after a handler
//! (those with time limits, poll, select, epoll_wait, pause) return EINTR, as after any signal; so do all after `call`.
//!
//! - `safe_point` chooses a thread: one that waits in a system call that no allocator makes, on a stack with room.
//! - `handler` takes the thread to the handler, and lets it run a function or a system call there.
//! - `seccomp` runs the thread's filters beside the target, since a filter may kill for a system call.
//! - `call` calls a function, such as malloc_trim(3), in the target or in its forked copy.
//! - `forked_copy` makes a copy of the process by clone(2), which is read while the process runs on.
//! - `room` compares the memory that a copy needs with the memory that is left, and watches it.
//!
//! The caller chooses the function, and the signal whose handler is borrowed: this crate knows neither Ruby nor malloc.

mod call;
mod error;
mod forked_copy;
mod handle;
mod handler;
mod room;
mod safe_point;
mod seccomp;

pub use call::{CallOutcome, FunctionCall, call};
pub use error::{Error, Refusal, TraceFailure};
pub use forked_copy::{EndedCopy, ForkPlan, ForkedCopy, end_copy_early, fork};
pub use room::MemoryLimits;
pub use safe_point::wait_for_safe_point;
