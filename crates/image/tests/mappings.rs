//! Mappings of all processes of this machine, and of a process with files of hostile names.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use image::look;
use linux::{Error, Mappings, proc};
use testkit::Target;

/// A program that waits, and is itself the mapped file with the hostile name.
const PROGRAM: &str = "/bin/sh";
const WAIT: &str = "echo 'ready {}'; read _ || exit 0";

fn sums(pid: i32) -> Option<[u64; 2]> {
    let mappings = match proc::mappings(pid, true) {
        Err(error @ Error::Proc { .. }) => panic!("{error}"),
        mappings => mappings.ok()?,
    };
    Some([mappings.kernel_rss_bytes()?, mappings.iter().map(|it| it.swap_bytes).sum()])
}

/// The sums must lie between those of the kernel before and after, unless the process changes all the time.
#[test]
fn the_mappings_of_each_process_add_up_to_its_rollup() {
    let mut compared = 0;
    for pid in proc::processes().unwrap() {
        let agrees = || {
            let rollup = || proc::rollup(pid).ok().map(|it| [it.rss_bytes, it.swap_bytes]);
            let (Some(before), Some(sums), Some(after)) = (rollup(), sums(pid), rollup()) else {
                return None;
            };
            Some(before == after && before == sums)
        };
        // A process that stands still agrees at once. One that changes may do so at every look.
        let is_still = || Some(sums(pid)? == sums(pid)?);
        let answers: Vec<bool> = (0..10).map_while(|_| agrees()).collect();
        if answers.contains(&true) {
            compared += 1;
        } else if answers.len() == 10 && pid != std::process::id().cast_signed() {
            let stood_still = (0..100).all(|_| is_still() == Some(true) && agrees() == Some(false));
            assert!(!stood_still, "process {pid}");
        }
    }
    if compared == 0 {
        testkit::skip("no process may be read");
    }
}

#[test]
fn no_name_of_a_file_hides_a_mapping() {
    let folder = tempfile::tempdir().unwrap();
    let names: [&[u8]; 6] = [
        b"x [heap]",
        b"x\nRss:  99 kB",
        b"7f00-7f01 rw-p 00000000 00:00 0 [stack]",
        b"\xff\xfe (deleted)",
        b"ends in blanks  ",
        b"\x1b[2J",
    ];
    for name in names {
        let path = folder.path().join(OsStr::from_bytes(name));
        fs::copy(PROGRAM, &path).unwrap();
        let target = Target::start(Command::new(&path).args(["-c", WAIT]));
        let mappings = proc::mappings(target.pid(), true).unwrap();
        let shown = path.as_os_str().as_bytes().split(|&byte| byte == b'\n').collect::<Vec<_>>();
        let shown = shown.join(&b"\\012"[..]);
        assert!(is_mapped(&mappings, &shown), "{mappings:?}");
        assert!(look(target.pid()).is_ok());
        assert!(target.finish());
    }
}

fn is_mapped(mappings: &Mappings, path: &[u8]) -> bool {
    mappings.iter().any(|it| it.file().is_some_and(|it| it.as_os_str().as_bytes() == path))
}

/// Such a path ended rbloat. It needs no right: a process in a mount namespace of its own maps a file of a file system that is
/// not mounted any more, so that its path is shown without the folders before it.
#[test]
fn no_file_is_taken_for_shared_memory() {
    for name in ["SYSVq", "SYSV", "SYSVqqqqqqqqqq"] {
        let script = format!(
            "mount -t tmpfs none /mnt && cp {PROGRAM} /mnt/{name} && exec 9</mnt/{name} && \
             umount -l /mnt && exec /proc/self/fd/9 -c \"$0\""
        );
        let unshare = ["--user", "--map-root-user", "--mount", "sh", "-c"];
        let unshare = || {
            let mut command = Command::new("unshare");
            command.args(unshare).arg(&script);
            command
        };
        if !unshare().arg("exit").output().is_ok_and(|output| output.status.success()) {
            return testkit::skip("no user namespace with a mount can be made");
        }
        let target = Target::start(unshare().arg(WAIT));
        let mappings = proc::mappings(target.pid(), false).unwrap();
        assert!(is_mapped(&mappings, format!("/{name}").as_bytes()), "{mappings:?}");
        assert!(look(target.pid()).is_ok());
        assert!(target.finish());
    }
}
