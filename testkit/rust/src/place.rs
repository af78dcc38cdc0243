//! The systems in which the tests' targets run: this machine, or the root filesystem of another release.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use linux::arch;

use crate::skip::skip;

/// Enters a root filesystem as container runtimes do, in a mount namespace that ends with the process, and executes the
/// program in this process, so its process id remains the command's.
const ENTER: &str = r#"
    set -e
    root=$0 workspace=$1
    shift
    mkdir -p "$root$workspace"
    mount --rbind /proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --bind /tmp "$root/tmp"
    mount --bind "$workspace" "$root$workspace"
    exec chroot "$root" "$@"
"#;

/// The root filesystem that targets run in, from RBLOAT_TEST_ROOT; `None` for this machine's own. `scripts/rootfs`
/// makes root filesystems.
#[must_use]
pub fn root() -> Option<PathBuf> {
    env::var_os("RBLOAT_TEST_ROOT").map(PathBuf::from)
}

/// A command to run `program` where the targets run. The workspace and /tmp have the same paths
/// there.
#[must_use]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let Some(root) = root() else { return Command::new(program) };
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", ENTER]);
    command.arg(root).arg(workspace()).arg(program);
    command
}

/// A command to run Ruby where the targets run: `ruby`, or what RBLOAT_TEST_RUBY names. If RBLOAT_TEST_PRELOAD names a
/// library with an allocator, it serves malloc there.
#[must_use]
pub fn ruby() -> Command {
    let mut command = command(ruby_name());
    if let Some(library) = preload() {
        command.env("LD_PRELOAD", library);
    }
    command
}

/// The library that RBLOAT_TEST_PRELOAD names.
#[must_use]
pub fn preload() -> Option<OsString> {
    env::var_os("RBLOAT_TEST_PRELOAD").filter(|library| !library.is_empty())
}

/// The path of jemalloc's library where targets run: the one that RBLOAT_TEST_JEMALLOC names, or Debian's. If there is
/// none, the test is reported as skipped, and the result is `None`.
#[must_use]
pub fn jemalloc() -> Option<PathBuf> {
    let library = named_jemalloc().filter(|path| !is_archive(path)).unwrap_or_else(debian_jemalloc);
    if outside(&library).exists() {
        return Some(library);
    }
    skip(&format!("there is no {}", library.display()));
    None
}

/// The archive of jemalloc that RBLOAT_TEST_JEMALLOC names; `None` if it names none.
#[must_use]
pub fn jemalloc_archive() -> Option<PathBuf> {
    named_jemalloc().filter(|path| is_archive(path))
}

/// jemalloc's library as Debian installs it.
fn debian_jemalloc() -> PathBuf {
    Path::new("/usr/lib").join(arch::LIBRARY_TRIPLET).join("libjemalloc.so.2")
}

/// The path of mimalloc's library where targets run: the one that RBLOAT_TEST_MIMALLOC names, or Debian's. If there is none, the test
/// is reported as skipped, and the result is `None`.
#[must_use]
pub fn mimalloc() -> Option<PathBuf> {
    library("RBLOAT_TEST_MIMALLOC", &["libmimalloc.so.2", "libmimalloc.so.3"])
}

/// The path of tcmalloc's library where targets run, as [`mimalloc`]: the one that RBLOAT_TEST_TCMALLOC names, or Debian's.
#[must_use]
pub fn tcmalloc() -> Option<PathBuf> {
    library("RBLOAT_TEST_TCMALLOC", &["libtcmalloc_minimal.so.4"])
}

/// The library that the variable names, or the first of these that Debian has installed.
fn library(variable: &str, names: &[&str]) -> Option<PathBuf> {
    let named = env::var_os(variable).filter(|path| !path.is_empty());
    let libraries = match named {
        Some(path) => vec![PathBuf::from(path)],
        None => {
            let folder = Path::new("/usr/lib").join(arch::LIBRARY_TRIPLET);
            names.iter().map(|name| folder.join(name)).collect()
        }
    };
    let found = libraries.into_iter().find(|library| outside(library).exists());
    if found.is_none() {
        skip(&format!("there is no {}", names[0]));
    }
    found
}

fn named_jemalloc() -> Option<PathBuf> {
    env::var_os("RBLOAT_TEST_JEMALLOC").filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "a")
}

/// The path by which tests reach a file of targets.
#[must_use]
pub fn outside(path: &Path) -> PathBuf {
    let is_shared = path.starts_with(workspace()) || path.starts_with("/tmp");
    match root().filter(|_| !is_shared) {
        Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
        None => path.to_owned(),
    }
}

/// The number of captures of each busy process; set RBLOAT_TEST_CAPTURES=700 for 700.
#[must_use]
pub fn captures() -> u32 {
    let count = env::var("RBLOAT_TEST_CAPTURES").ok().and_then(|count| count.parse().ok());
    count.unwrap_or(4)
}

pub(crate) fn ruby_name() -> OsString {
    env::var_os("RBLOAT_TEST_RUBY").unwrap_or_else(|| "ruby".into())
}

/// A command to run a Ruby program from `scenarios/` where the targets run, without RubyGems as `Target::bare_ruby`: a program that needs
/// gems requires it.
#[must_use]
pub fn scenario(name: &str) -> Command {
    let mut command = ruby();
    command
        .arg("--disable-gems")
        .arg(workspace().join("scenarios").join(name).with_extension("rb"));
    command
}

/// Returns true if the machine has `bytes` of memory available for a target. Otherwise the test is reported as skipped.
#[must_use]
pub fn has_free_memory(bytes: u64) -> bool {
    let text = std::fs::read_to_string("/proc/meminfo").expect("there is /proc");
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let has = kilobytes.is_some_and(|kilobytes| kilobytes << 10 >= bytes);
    if !has {
        crate::skip(&format!("it takes {} MiB of free memory", bytes >> 20));
    }
    has
}

/// The folder of the workspace.
fn workspace() -> PathBuf {
    let this = Path::new(env!("CARGO_MANIFEST_DIR"));
    this.ancestors().nth(2).expect("testkit/rust lies in it").to_owned()
}
