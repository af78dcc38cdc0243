//! Which code makes RSS grow.
//!
//! RSS grows by page faults and by nothing else. [`capture::live::page_faults`] says which thread faulted, when, and where.
//! [`Sampler`] reads the Ruby stack of that thread right afterwards, while it runs, and divides the growth of RSS among the
//! samples. The [`Profile`] that results is plain data: growth by stack, thread, kind of memory and native library.
//!
//! The offsets by which stacks are read are derived once, from a capture: [`Program::derive`].
//!
//! | module | |
//! |---|---|
//! | `budget` | the CPU time for everything but stacks |
//! | `program` | what is derived of a program |
//! | `process` | one process: its threads, their stacks, its growth |
//! | `kind` | what memory is for, by its address |
//! | `profile` | the result |
//! | `touched` | the pages that were sampled |
//! | `shared` | the pages that a fork shares |
//! | `polling` | page faults without events of the kernel |
//! | `sampler` | the loop over samples, for a process and those that it starts |

mod budget;
mod kind;
mod polling;
mod process;
mod profile;
mod program;
mod sampler;
mod shared;
mod touched;

pub use kind::Kind;
pub use profile::{
    Growth, MachineCode, Method, ProcessGrowth, Profile, Touched, TouchedPage, UnknownStacks,
};
pub use program::Program;
pub use ruby::Frame;
pub use sampler::Sampler;
