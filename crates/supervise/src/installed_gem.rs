//! The folder of rbloat's gem, for the Ruby that a command runs on.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Prints the folder of the newest installed version.
const FIND: &str = "puts Gem::Specification.find_by_name('rbloat').gem_dir";
/// The maximum length of a script's first line.
const MAX_LINE: u64 = 4096;

/// Finds the installed gem for the Ruby that runs a command.
///
/// # Errors
/// The requirement that is missing.
pub fn installed_gem(command: &[OsString]) -> Result<PathBuf, String> {
    let ruby = ruby_of(command);
    let shown = ruby.to_string_lossy();
    let output = Command::new(&ruby)
        .args(["-e", FIND])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("a Ruby, or --gem FOLDER (cannot run {shown}: {error})"))?;
    // A library that RUBYOPT names may also print lines.
    let folder = output.stdout.trim_ascii_end().rsplit(|&byte| byte == b'\n').next();
    match folder.map(|folder| PathBuf::from(OsStr::from_bytes(folder))) {
        Some(folder) if output.status.success() && folder.is_dir() => Ok(folder),
        _ => Err(format!(
            "the gem rbloat, which {shown} does not find: install it, or use --gem FOLDER"
        )),
    }
}

/// The Ruby that runs a command: the program itself, or the interpreter of a script such as `bundle` or `puma`. For another
/// program, `ruby`.
fn ruby_of(command: &[OsString]) -> PathBuf {
    let program = command.first().map(Path::new).unwrap_or(Path::new(""));
    if is_ruby(program) {
        return program.into();
    }
    in_path(program).and_then(|script| interpreter(&script)).unwrap_or_else(|| "ruby".into())
}

fn is_ruby(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ruby"))
}

/// The file that is run for the name of a program.
fn in_path(program: &Path) -> Option<PathBuf> {
    if program.as_os_str().as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The Ruby in the first line of a script: `#!/usr/bin/ruby3.3` or `#!/usr/bin/env ruby`.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    BufReader::new(File::open(script).ok()?.take(MAX_LINE)).read_until(b'\n', &mut line).ok()?;
    let words = line.strip_prefix(b"#!")?.split(u8::is_ascii_whitespace);
    words
        .map(|word| Path::new(OsStr::from_bytes(word)))
        .find(|word| is_ruby(word))
        .map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_runs_on_its_own_ruby() {
        let folder = tempfile::tempdir().unwrap();
        let of = |first_line: &str| {
            let script = folder.path().join("puma");
            std::fs::write(&script, format!("{first_line}\nrequire 'puma'\n")).unwrap();
            ruby_of(&[script.into(), "-p".into()])
        };
        assert_eq!(of("#!/usr/bin/ruby3.3"), Path::new("/usr/bin/ruby3.3"));
        assert_eq!(of("#! /opt/ruby/bin/ruby -w"), Path::new("/opt/ruby/bin/ruby"));
        assert_eq!(of("#!/usr/bin/env ruby3.1"), Path::new("ruby3.1"));
        assert_eq!(of("#!/bin/sh"), Path::new("ruby"));
        assert_eq!(
            ruby_of(&["/opt/ruby/bin/ruby".into(), "job.rb".into()]),
            Path::new("/opt/ruby/bin/ruby")
        );
        assert_eq!(ruby_of(&["/nowhere/app".into()]), Path::new("ruby"));
        assert_eq!(ruby_of(&[]), Path::new("ruby"));
    }
}
