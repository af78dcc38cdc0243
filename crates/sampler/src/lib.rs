#![doc = include_str!("../README.md")]
//!
//! | module | |
//! |---|---|
//! | `sampler` | the loop: `records` of the kernel or `polls` become samples, and growth is divided among them |
//! | `events` | which page faults the kernel records, and where it copies stacks |
//! | `polling` | page faults without events of the kernel |
//! | `processes` | the processes that are watched |
//! | `process` | one process: its threads, their stacks, its growth |
//! | `program` | what is derived of a program |
//! | `shared` | the pages that a fork shares |
//! | `kind` | what memory is for, by its address |
//! | `account` | who has grown, by which code |
//! | `book` | the numbers of stacks, and the rows of the profile |
//! | `touched` | the pages that were sampled |
//! | `profile` | the result |
//! | `budget` | the CPU time for everything but stacks |
//! | `kept` | which code allocates what stays |

mod account;
mod book;
mod budget;
mod events;
mod kept;
mod kind;
mod polling;
mod process;
mod processes;
mod profile;
mod program;
mod sampler;
mod shared;
mod touched;

pub use kept::{KeptObject, KeptProfile, KeptProgram, KeptSampler, KeptSearch, MAX_RATE, NotShown};
pub use kind::Kind;
pub use profile::{
    Growth, MachineCode, Method, ProcessGrowth, Profile, Touched, TouchedPage, UnknownStacks,
};
pub use program::{NoStacks, Program};
pub use ruby::Frame;
pub use sampler::Sampler;
