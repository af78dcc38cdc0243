//! The help of each command.

use formats::Explanations;

use crate::{document, rbloat};

fn shown(arguments: &[&str]) -> String {
    let output = rbloat().args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands, as the help lists them.
fn commands() -> Vec<String> {
    let help = shown(&["--help"]);
    let (_, list) = help.split_once("Commands:\n").unwrap();
    let (list, _) = list.split_once("\n\n").unwrap();
    let name = |line: &str| line.strip_prefix("  ")?.split(' ').next().map(str::to_owned);
    list.lines().filter_map(name).filter(|name| !name.is_empty() && name != "help").collect()
}

#[track_caller]
fn assert_fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
        assert_eq!(line.trim_end(), line);
    }
}

/// The help of `report` had 32 lines, up to 100 columns wide, and earlier the examples of all commands.
#[test]
fn short_help_fits_one_screen_with_three_examples() {
    let commands = commands();
    assert!(commands.len() > 10, "{commands:?}");
    for command in &commands {
        let help = shown(&[command, "-h"]);
        assert_fits(&help);
        assert!(help.lines().count() <= 24, "{command}: {}\n{help}", help.lines().count());
        let (_, examples) = help.split_once("\nExamples:\n").unwrap();
        let is_example = |line: &&str| line.starts_with("  rbloat ") || line.contains(" rbloat ");
        assert_eq!(examples.lines().filter(is_example).count(), 3, "{help}");
        assert!(examples.contains(&format!("rbloat {command}")), "{help}");
        // The long help has everything.
        let long = shown(&[command, "--help"]);
        assert_fits(&long);
        for option in help.split_whitespace().filter(|word| word.starts_with("--")) {
            assert!(long.contains(option), "{option}: {long}");
        }
    }
    // The help of rbloat itself had 36 lines.
    let help = shown(&["-h"]);
    assert_fits(&help);
    assert!(help.lines().count() <= 24, "{help}");
    assert!(commands.iter().all(|command| help.contains(&format!("\n  {command} "))), "{help}");
    assert_fits(&shown(&["--help"]));
}

#[test]
fn explanations_are_also_data() {
    let json = |words: &[&str]| document::<Explanations>(shown(words).as_bytes()).explanations;
    let all = json(&["explain", "--json"]);
    assert_eq!(all.len(), shown(&["explain"]).lines().count());
    let one = json(&["explain", "Arena", "--json"]);
    assert_eq!(one.len(), 1);
    assert!(all.contains(&one[0]) && !one[0].text.contains("  "), "{one:?}");
}

#[test]
fn explanations_fit_and_have_no_blanks_at_the_ends_of_lines() {
    for word in shown(&["explain"]).lines() {
        let text = shown(&["explain", word]);
        for line in text.lines() {
            // Without a terminal, the width is 120.
            assert!(line.chars().count() <= 120 && line.trim_end() == line, "{line}");
        }
    }
}
