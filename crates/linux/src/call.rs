//! Calls as data: those who know a library describe them here, and the crate `inferior` makes them.

use std::ffi::CStr;

use crate::Address;

/// An argument of a function.
#[derive(Debug, Clone, Copy)]
pub enum Argument<'a> {
    /// A number.
    Number(u64),
    /// The address of a copy of this text.
    Text(&'a CStr),
    /// The address of a word with this value, which the function may change.
    Word(u64),
}

/// A system call, as far as it is known before it is made. Seccomp filters judge it by these values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemCall {
    /// The number.
    pub number: i64,
    /// The instruction pointer of the call, if known.
    pub instruction: Option<Address>,
    /// The arguments that are known.
    pub arguments: [Option<u64>; 6],
}

impl SystemCall {
    /// Returns a system call of which only the number is known.
    #[must_use]
    pub const fn any(number: i64) -> Self {
        Self { number, instruction: None, arguments: [None; 6] }
    }

    /// Returns the call with one more known argument, counted from 0.
    ///
    /// # Panics
    /// If `index` is above 5.
    #[must_use]
    pub const fn with(mut self, index: usize, argument: u64) -> Self {
        self.arguments[index] = Some(argument);
        self
    }
}
