//! The format of a file, which its name decides.

use std::path::Path;

use crate::failure::Failure;

/// Checks the extension of a file of a command that writes one format only.
///
/// # Errors
/// As [`format_of`].
pub(crate) fn check_extension(path: Option<&Path>, extension: &'static str) -> Result<(), Failure> {
    path.map_or(Ok(()), |path| format_of(path, &[(extension, ())]))
}

/// Returns the format that belongs to the extension of this name, or the first one if it has none.
///
/// # Errors
/// If it has another extension.
pub(crate) fn format_of<T: Copy>(path: &Path, formats: &[(&'static str, T)]) -> Result<T, Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match formats.iter().find(|(extension, _)| name.ends_with(&format!(".{extension}"))) {
        Some(&(_, format)) => Ok(format),
        None if path.extension().is_none() => Ok(formats[0].1),
        None => {
            let extensions = formats.iter().map(|(extension, _)| *extension).collect();
            Err(Failure::NoFormat { path: path.into(), extensions })
        }
    }
}
