use std::fs::File;
use std::io::Write;

/// Reports that the current test was not run, in whole or in part, and why.
///
/// `scripts/test` counts the lines of the file that `RBLOAT_TEST_SKIPS` names, and prints the reasons at the end.
#[expect(clippy::print_stderr, reason = "it is the output of a test")]
pub fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or("main").to_owned();
    eprintln!("SKIPPED {test}: {reason}");
    if let Some(path) = std::env::var_os("RBLOAT_TEST_SKIPS") {
        // One write for each line, since tests run side by side.
        let file = File::options().append(true).create(true).open(path);
        let line = format!("{test}: {reason}\n");
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file can be written");
    }
}

/// Returns the number of random cases of a property test: `quick`, or 20 times as many in `make nightly`.
#[must_use]
pub fn cases(quick: u32) -> u32 {
    if runs_nightly() { quick * 20 } else { quick }
}

/// Returns true in `make nightly`, which runs tests that take long and seldom fail. Otherwise notes that `what` is skipped.
#[must_use]
pub fn is_nightly(what: &str) -> bool {
    let is_nightly = runs_nightly();
    if !is_nightly {
        skip(&format!("{what}: make nightly"));
    }
    is_nightly
}

fn runs_nightly() -> bool {
    std::env::var_os("RBLOAT_TEST_NIGHTLY").is_some()
}
