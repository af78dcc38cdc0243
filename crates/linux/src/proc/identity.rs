//! The identity of a program in a process.

use std::os::unix::fs::FileExt;

use super::{open, read, start_time};
use crate::{Address, Error, PageState, Pagemap};

/// The identity of the program that runs in a process: the process, and its last exec.
///
/// The kernel may give the id to another process, which has another start time. An exec keeps both. But it gives the process a new
/// auxiliary vector with the random addresses of the program, its stack and the vDSO, and new random bytes (AT_RANDOM), which
/// decide if addresses are not random. The bytes are not compared if their page is in swap.
///
/// A pidfd cannot replace this: it survives an exec, too. The value is plain data, so it can be copied and compared. The default is
/// the identity of no process.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    pid: i32,
    /// In clock ticks since boot.
    started_ticks: u64,
    /// The bytes of /proc/PID/auxv.
    vector: Vec<u8>,
    /// `None` if they were not resident.
    random: Option<[u8; 16]>,
}

impl Identity {
    /// Reads the identity of the program that runs in process `pid`.
    ///
    /// # Errors
    /// If there is no such process, or the kernel refuses.
    pub fn of(pid: i32) -> Result<Self, Error> {
        let started_ticks = start_time(pid)?;
        let vector = read(pid, "auxv")?;
        let random = random_bytes(pid, &vector);
        Ok(Self { pid, started_ticks, vector, random })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The start time of the process, in clock ticks since boot.
    #[must_use]
    pub fn started_ticks(&self) -> u64 {
        self.started_ticks
    }

    /// Fails unless the same program still runs in the process. If all its threads are stopped, that holds until they continue, and
    /// everything that was read since the identity was is of this program.
    ///
    /// # Errors
    /// [`Error::Ended`] if the process ended or became another program, and the errors of [`Identity::of`].
    pub fn verify(&self) -> Result<(), Error> {
        let now = Self::of(self.pid)?;
        let how = match () {
            () if now.started_ticks != self.started_ticks => "ended",
            () if !now.is_of_same_exec(self) => "became another program",
            () => return Ok(()),
        };
        Err(Error::Ended { pid: self.pid, how })
    }

    /// Returns true if the same exec started both programs: they are one, or one was forked from the other, or both from a third.
    #[must_use]
    pub fn is_of_same_exec(&self, other: &Self) -> bool {
        self.vector == other.vector
            && self.random.zip(other.random).is_none_or(|(one, other)| one == other)
    }
}

/// Returns the random bytes of the last exec, to which this auxiliary vector refers, if their page is resident.
fn random_bytes(pid: i32, vector: &[u8]) -> Option<[u8; 16]> {
    let (words, _) = vector.as_chunks::<8>();
    let mut pairs = words.chunks_exact(2);
    let [_, at] = pairs.find(|pair| u64::from_ne_bytes(pair[0]) == libc::AT_RANDOM)? else {
        return None;
    };
    let at = Address(u64::from_ne_bytes(*at));
    let mut bytes = [0; 16];
    let length = bytes.len() as u64;
    if Pagemap::open(pid).ok()?.state_at(at, length) != (Some(PageState::Anonymous), length) {
        return None;
    }
    open(pid, "mem").ok()?.read_exact_at(&mut bytes, at.0).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(vector: &[u8], random: Option<[u8; 16]>) -> Identity {
        Identity { vector: vector.to_vec(), random, ..Identity::default() }
    }

    #[test]
    fn random_bytes_decide_only_if_both_are_known() {
        let (one, other) = (Some([1; 16]), Some([2; 16]));
        let program = identity(b"vector", one);
        assert!(program.is_of_same_exec(&program));
        assert!(program.is_of_same_exec(&identity(b"vector", None)));
        assert!(!program.is_of_same_exec(&identity(b"vector", other)));
        assert!(!program.is_of_same_exec(&identity(b"elsewhere", one)));
    }

    #[test]
    fn another_process_with_the_id_is_not_the_same() {
        let own = Identity::of(std::process::id().cast_signed()).unwrap();
        assert!(own.verify().is_ok() && own.random.is_some());
        let earlier = Identity { started_ticks: own.started_ticks - 1, ..own };
        assert!(matches!(earlier.verify(), Err(Error::Ended { how: "ended", .. })));
    }

    #[test]
    fn no_process_has_the_default_identity() {
        assert!(matches!(Identity::default().verify(), Err(Error::NoSuchProcess { pid: 0 })));
    }
}
