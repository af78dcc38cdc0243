use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::{Target, command, place};

/// Copies Ruby and all files that it needs to start, without gems, from the targets' system into a folder.
const MAKE_IMAGE: &str = r#"
    set -e
    image=$0 ruby=$(command -v "$1")
    put() {
        mkdir -p "$image${1%/*}"
        cp -L "$1" "$image$1"
    }
    mkdir -p "$image/proc" "$image/usr/bin"
    cp -L "$ruby" "$image/usr/bin/ruby"
    features=$("$ruby" --disable=gems -e 'puts $".select { |path| File.file?(path) }')
    for file in $features; do put "$file"; done
    for file in $(ldd "$ruby" $features | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*/\1/p' | sort -u); do
        [ -e "$image$file" ] || put "$file"
    done
"#;

/// The first process of a container. It starts Ruby as process `id`.
const RUN: &str = r#"
    set -e
    image=$0 id=$1
    mount -t proc proc "$image/proc"
    exec 3<&0
    echo $((id - 1)) >"$image/proc/sys/kernel/ns_last_pid"
    chroot "$image" /usr/bin/ruby --disable=gems -e "$2" <&3 3<&- &
    wait $!
"#;

/// A Ruby program in a container: in mount, pid, user and network namespaces of its own, with an image that has little
/// but Ruby as its root. It ends when this value is dropped.
#[derive(Debug)]
pub struct Container {
    image: TempDir,
    /// The program, with its process id on the host.
    pub target: Target,
}

impl Container {
    /// Starts a Ruby program that has the process id `namespace_pid` in its container, and waits until it is ready.
    ///
    /// # Panics
    /// If the machine has no unshare(1), or the kernel does not allow such namespaces.
    #[must_use]
    pub fn ruby(namespace_pid: i32, source: &str) -> Self {
        let image = tempfile::tempdir().expect("a folder can be made");
        // The user that the container's root is on the host must be able to enter it.
        fs::set_permissions(image.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
        let made = command("sh")
            .args(["-c", MAKE_IMAGE])
            .args([image.path().as_os_str(), &place::ruby_name()])
            .status();
        assert!(made.is_ok_and(|status| status.success()), "no image");
        let target = Target::start(
            Command::new("unshare")
                .args(["--user", "--map-root-user", "--mount", "--pid", "--net"])
                .args(["--fork", "--kill-child", "sh", "-c", RUN])
                .arg(image.path())
                .args([&namespace_pid.to_string(), source]),
        );
        // unshare waits for the container's first process, which waits for Ruby.
        let ruby = only_child(only_child(target.pid()));
        Self { image, target: target.at(ruby) }
    }

    /// The path on the host of an absolute `path` in the container.
    #[must_use]
    pub fn outside(&self, path: &str) -> PathBuf {
        self.image.path().join(path.trim_start_matches('/'))
    }

    /// Copies a program and the libraries that it is linked to into a folder of the container. Returns a command that
    /// runs it there, in all namespaces of the container.
    ///
    /// # Panics
    /// If it cannot be copied.
    #[must_use]
    pub fn install(&self, program: &Path) -> Command {
        let folder = self.outside("/installed");
        fs::create_dir_all(&folder).expect("the image can be written");
        let linked = Command::new("ldd").arg(program).output().expect("there is ldd");
        let linked = String::from_utf8_lossy(&linked.stdout).into_owned();
        let libraries: Vec<&Path> =
            linked.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new).collect();
        for file in libraries.iter().copied().chain([program]) {
            let name = file.file_name().expect("a file has a name");
            // Not copied by this process: see `installed` in the tests of errors.
            let copied = Command::new("install").arg(file).arg(folder.join(name)).status();
            assert!(copied.is_ok_and(|status| status.success()), "{}", file.display());
        }
        let mut command = self.enter(&["--user", "--mount", "--pid", "--net", "--root"]);
        let inside =
            |file: &Path| Path::new("/installed").join(file.file_name().unwrap_or_default());
        // The container's own loader and libraries may be older.
        if let Some(loader) = libraries.iter().find(|file| file.to_string_lossy().contains("/ld-"))
        {
            command.arg(inside(loader)).args(["--library-path", "/installed"]);
        }
        command.arg(inside(program));
        command
    }

    /// Returns a command that enters some of its namespaces. The program and its arguments are to be appended.
    #[must_use]
    pub fn enter(&self, namespaces: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.target.pid().to_string()]).args(namespaces).arg("--");
        command
    }
}

fn only_child(pid: i32) -> i32 {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(&path).expect("the kernel lists children");
    let mut children = children.split_whitespace();
    let child = children.next().and_then(|child| child.parse().ok());
    child.filter(|_| children.next().is_none()).unwrap_or_else(|| panic!("one child in {path}"))
}
