//! The token that scrapers must present, and files with secrets.

use std::hint::black_box;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::Error;

/// The longest secret.
const MAX_BYTES: u64 = 64 << 10;
/// The longest and the shortest token.
const MAX_TOKEN: usize = 4096;
const MIN_BYTES: usize = 16;
/// Others may not read the file, and nobody but its owner may change it.
const FORBIDDEN: u32 = 0o026;

/// A token. It is never printed.
pub(crate) struct Token(Vec<u8>);

impl Token {
    /// Reads the token.
    ///
    /// # Errors
    /// If the file cannot be read, others may read or change it, or it has no proper token.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let bytes = read_secret(path)?;
        let token = bytes.trim_ascii();
        // The characters that a header may have: RFC 6750.
        let is_proper = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
        let is_long = token.len() > MAX_TOKEN;
        if is_long || token.len() < MIN_BYTES || !token.iter().all(is_proper) {
            let what = "a token has 16 to 4096 letters, digits and -._~+/= on one line, such as `openssl rand -hex 32` prints";
            return Err(unusable(path, what.into()));
        }
        Ok(Self(token.to_vec()))
    }

    /// The value of an Authorization header with the token.
    pub(crate) fn header(&self) -> String {
        // It has nothing but ASCII.
        format!("Bearer {}", String::from_utf8_lossy(&self.0))
    }

    /// Returns true if the value of an Authorization header has the token.
    pub(crate) fn is_in(&self, authorization: &[u8]) -> bool {
        let Some((scheme, given)) = authorization.split_at_checked("Bearer ".len()) else {
            return false;
        };
        let given = given.trim_ascii();
        // The time must not reveal how much of a token is right. Its length is no secret.
        let differences = self.0.iter().zip(given).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
        scheme.eq_ignore_ascii_case(b"Bearer ") && given.len() == self.0.len() && differences == 0
    }
}

/// Returns the contents of a file that only its owner and group may read.
///
/// # Errors
/// If it cannot be read, is too long, or others may read or change it.
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>, Error> {
    let (mode, bytes) = read_file(path, MAX_BYTES).map_err(|it| unusable(path, it.to_string()))?;
    if mode & FORBIDDEN != 0 {
        let what = "other users may read or change it: its mode should be 600 or 640, but is";
        return Err(unusable(path, format!("{what} {:o}", mode & 0o777)));
    }
    Ok(bytes)
}

/// Returns the mode and the contents of a regular file with at most `max` bytes.
///
/// # Errors
/// If it cannot be read, is too long, or another kind of file.
pub(crate) fn read_file(path: &Path, max: u64) -> io::Result<(u32, Vec<u8>)> {
    // Opening a FIFO would block, and the agent has blocked the signals that would end it.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = std::fs::File::options().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::other("it is too long"));
    }
    Ok((metadata.mode(), bytes))
}

fn unusable(path: &Path, what: String) -> Error {
    Error::UnusableSecret { path: path.into(), what }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn token(text: &str, mode: u32) -> Result<Token, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        Token::read(file.path()).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_request_needs_the_whole_token() {
        let token = token("0123456789abcdef\n", 0o640).unwrap_or_else(|error| panic!("{error}"));
        for right in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef "] {
            assert!(token.is_in(right.as_bytes()), "{right}");
        }
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
        ] {
            assert!(!token.is_in(wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_or_that_has_no_token_is_refused() {
        for mode in [0o644, 0o660, 0o602] {
            let error = token("0123456789abcdef", mode).err().unwrap();
            assert!(error.contains(&format!("{mode:o}")), "{error}");
        }
        for text in ["", "short", "0123456789abcdef\nsecond line", "0123456789 bcdef\u{1b}"] {
            let error = token(text, 0o600).err().unwrap();
            assert!(error.contains("16 to 4096"), "{error}");
        }
        assert!(token(&"a".repeat(5000), 0o600).is_err());
    }

    /// The agent waited for a writer, and no signal ended it.
    #[test]
    fn a_fifo_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg("-m600").arg(&fifo).status();
        assert!(made.unwrap().success());
        for failure in [Token::read(&fifo).err(), read_secret(&fifo).err()] {
            assert!(failure.unwrap().to_string().contains("no regular file"));
        }
    }
}
