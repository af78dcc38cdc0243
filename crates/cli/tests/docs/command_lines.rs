//! The command lines in pages, scripts and messages: the program knows their commands and options.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::{GENERATED, prose, read, root};

/// The commands and options of the program, by its own help. Those of the program itself have an empty name.
#[derive(Default)]
struct Program(BTreeMap<String, Option<BTreeSet<String>>>);

impl Program {
    /// Returns the options of a command; `None` if there is no such command.
    fn options(&mut self, command: &str) -> Option<&BTreeSet<String>> {
        let ask = || {
            let mut program = Command::new(env!("CARGO_BIN_EXE_rbloat"));
            let words = ["help", command].into_iter().filter(|word| !word.is_empty());
            let output = program.args(words).output().unwrap();
            let help = String::from_utf8(output.stdout).unwrap();
            let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
            let words = lines.flat_map(|line| line.split_whitespace().take(2));
            let names =
                words.map(|word| word.trim_end_matches([',', '.']).split(['=', '[']).next());
            let names = names.flatten().filter(|name| name.starts_with('-')).map(str::to_owned);
            output.status.success().then(|| names.collect())
        };
        self.0.entry(command.to_owned()).or_insert_with(ask).as_ref()
    }

    /// Returns what the program does not know among the words behind its name.
    fn complaint(&mut self, words: &[&str]) -> Option<String> {
        let everywhere = self.options("").unwrap().clone();
        let is_end = |word: &str| {
            let begins = |it: &str| word.starts_with(it);
            ["--", "%W"].contains(&word) || ["|", "&", ";", "<", ">", "$("].into_iter().any(begins)
        };
        let mut words = words.iter().copied().take_while(|word| !is_end(word)).peekable();
        while words.next_if(|word| everywhere.contains(*word)).is_some() {}
        let command = words.next()?;
        let is_letter = |it: u8| it.is_ascii_lowercase();
        if !command.bytes().all(is_letter) {
            return None;
        }
        let Some(options) = self.options(command) else {
            return Some(format!("no command {command}"));
        };
        let names = words.filter_map(|word| word.split(['=', '[']).next());
        let is_option = |name: &&str| {
            let letters = name.trim_start_matches('-');
            letters.len() < name.len() && letters.bytes().next().is_some_and(is_letter)
        };
        let unknown = names.filter(is_option).find(|name| !options.contains(*name));
        unknown.map(|name| format!("no option {name} of {command}"))
    }

    /// Returns what the program does not know in a line of code. In a page, `rbloat` in a line is the program; elsewhere it may be a
    /// variable or a word of a sentence.
    fn complaint_of_line(&mut self, line: &str, is_page: bool) -> Option<String> {
        let line = line.split(" # ").next().unwrap_or_default();
        let line = without_quoted_commands(line)
            .replace("%W[", " %W ")
            .replace("RBLOAT, \"", "$rbloat \"")
            .replace("args: [", "$rbloat ")
            .replace("\"command\": [", "$rbloat ");
        let separators = |it: char| "\"',[](){}".contains(it);
        let words: Vec<&str> = line.split_whitespace().collect();
        let trimmed: Vec<&str> = words
            .iter()
            .map(|word| if word.contains("$(") { "$(" } else { word.trim_matches(separators) })
            .collect();
        (0..words.len()).find_map(|at| {
            let name = words[at].trim_matches(separators);
            let name = name.rsplit(['=', '(', '[', '"']).next().unwrap_or_default();
            let follows = |before: &str| at > 0 && trimmed[at - 1] == before;
            let is_bare = is_page
                || at == 0 && words.len() > 1 && !words[0].ends_with(',')
                || follows("inside")
                || follows("sudo");
            let is_program = ["$rbloat", "/rbloat"].contains(&name)
                || ["bin/rbloat", "debug/rbloat", "release/rbloat"]
                    .iter()
                    .any(|it| name.ends_with(it))
                || ["rbloat:0", "rbloat:$"].iter().any(|it| name.contains(it))
                || name == "rbloat" && is_bare && !follows("-p") && !follows("--package");
            let is_ruby =
                trimmed[at] == "%W" && trimmed.get(at + 2).is_some_and(|it| it.starts_with('#'));
            (is_program || is_ruby).then(|| self.complaint(&trimmed[at + 1..])).flatten()
        })
    }
}

/// Returns a line without strings that have several words, such as other command lines.
fn without_quoted_commands(line: &str) -> String {
    let mut parts = line.split(" '");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('\'') {
            Some((quoted, rest)) if quoted.contains(' ') => kept.extend([" ''", rest]),
            _ => kept.extend([" '", part]),
        }
    }
    kept
}

/// The lines of code of a page: indented, or between fences. A backslash continues a line.
fn code_lines(text: &str) -> Vec<String> {
    let prose: BTreeSet<*const u8> = prose(text).map(str::as_ptr).collect();
    let code: Vec<&str> = text.lines().filter(|line| !prose.contains(&line.as_ptr())).collect();
    joined(&code.join("\n"))
}

fn joined(code: &str) -> Vec<String> {
    code.replace("\\\n", " ").lines().map(str::to_owned).collect()
}

/// The spans of code in the prose of a page, by paragraph.
fn spans(text: &str) -> Vec<String> {
    let paragraphs = text.split("\n\n");
    let spans = paragraphs.flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2));
    spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The words of the lists of arguments that have an item in each line.
fn argument_lists(text: &str) -> Vec<String> {
    let lists = text.split("args:\n").skip(1);
    let items = |list: &str| {
        let lines = list.lines().map(str::trim).take_while(|line| line.starts_with(['-', '{']));
        lines.filter_map(|line| line.strip_prefix("- ")).collect::<Vec<_>>().join(" ")
    };
    lists.map(items).collect()
}

fn files(folder: &str, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(root().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().into_string().unwrap());
        match entry.file_type().unwrap().is_dir() {
            true if !["gem/tmp", "gem/pkg", "docs/schemas"].contains(&&*path) => files(&path, into),
            false if std::fs::read_to_string(root().join(&path)).is_ok() => into.push(path),
            _ => {}
        }
    }
}

/// Returns the command lines of a file, and true if it is a page. Sentences that are printed, and comments, have some, too.
fn lines_of(path: &str, program: &mut Program) -> (Vec<String>, bool) {
    let text = read(path);
    let extension = Path::new(path).extension().and_then(|it| it.to_str()).unwrap_or_default();
    let (mut lines, mut words) = (Vec::new(), Vec::new());
    match extension {
        "md" => {
            lines = code_lines(&text);
            words = spans(&prose(&text).collect::<Vec<_>>().join("\n"));
        }
        "rs" => {
            words = spans(&text.replace("\\\n", " ").replace("\n///", " ").replace("\n//", " "))
        }
        "html" | "js" | "svg" | "json" | "snap" | "c" | "toml" => {}
        _ => {
            let (comments, code): (Vec<_>, Vec<_>) =
                text.lines().partition(|line| line.trim_start().starts_with('#'));
            lines = joined(&code.join("\n"));
            lines.extend(argument_lists(&text).iter().map(|list| format!("$rbloat {list}")));
            words = spans(&comments.join("\n"));
        }
    }
    // The program is left out in sentences such as "`report --fix` prints".
    let is_command = |word: &str| word.bytes().all(|it| it.is_ascii_lowercase());
    for span in words {
        match span.split_once(' ') {
            Some((first, _)) if first == "rbloat" || first.ends_with("/rbloat") => lines.push(span),
            Some((first, rest))
                if rest.starts_with("--")
                    && is_command(first)
                    && program.options(first).is_some() =>
            {
                lines.push(format!("rbloat {span}"));
            }
            _ => {}
        }
    }
    (lines, extension == "md")
}

/// The files that have command lines. CHANGELOG.md has those of former versions.
fn paths() -> Vec<String> {
    let pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile"];
    let mut paths = pages.map(str::to_owned).to_vec();
    for folder in
        ["docs", "gem", "deploy", "scripts", "crates", "scenarios", "packaging", ".github"]
    {
        files(folder, &mut paths);
    }
    paths.retain(|path| path != "gem/CHANGELOG.md" && !GENERATED.contains(&path.as_str()));
    paths
}

#[test]
fn every_command_line_has_commands_and_options_that_exist() {
    let mut program = Program::default();
    let (mut checked, mut wrong) = (0, Vec::new());
    for path in paths() {
        let (lines, is_page) = lines_of(&path, &mut program);
        checked += lines.len();
        for line in lines {
            let complaint = program.complaint_of_line(&line, is_page);
            wrong.extend(complaint.map(|what| format!("{path}: {what}: {line}")));
        }
    }
    assert!(checked > 1000, "{checked}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn stale_command_lines_are_found() {
    let mut program = Program::default();
    for (line, is_page, expected) in [
        ("    sudo rbloat fix 4242", true, "no command fix"),
        ("docker run --rm rbloat:0.1.0 report puma --owner 3", true, "no option --owner of report"),
        ("rbloat record puma --who -o a.jsonl -- x --y", true, "no option --who of record"),
        ("ssh HOST rbloat --quiet map 1 -p 3 | cat", true, "no option -p of map"),
        ("args: [\"agent\", \"--lisen\", \"0.0.0.0:1\"]", false, "no option --lisen of agent"),
        ("ExecStart=/usr/bin/rbloat serve --every 1s", false, "no command serve"),
        ("  %W[diff #{pid}], %W[plot #{recording} -o a.html],", false, "no command plot"),
        (
            "system(RBLOAT, \"who\", pid.to_s, \"--duration\", \"1s\")",
            false,
            "no option --duration of who",
        ),
        ("\"$rbloat\" export a.rbloat >/dev/null", false, "no command export"),
    ] {
        assert_eq!(program.complaint_of_line(line, is_page).as_deref(), Some(expected), "{line}");
    }
    for (line, is_page) in [
        ("puts \"what rbloat reads\"", false),
        ("nice rbloat compare --load 'wrk -t9 http://x' -- ruby --yjit app.rb", true),
        ("cargo test -p rbloat --test docs    # rbloat checks", true),
        ("rbloat report \"$(systemctl show --property MainPID)\" --json", true),
    ] {
        assert_eq!(program.complaint_of_line(line, is_page), None, "{line}");
    }
}

#[test]
fn every_exit_status_on_a_page_is_one_of_the_program() {
    let help = Command::new(env!("CARGO_BIN_EXE_rbloat")).arg("help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, known) = help.split_once("Exit status:\n").unwrap();
    let is_known = |number: &str| {
        // A program that a signal killed has 128 and its number.
        number.parse::<u32>().is_ok_and(|number| (129..192).contains(&number))
            || known.lines().any(|line| line.trim_start().starts_with(number))
    };
    for path in paths().iter().filter(|path| path.ends_with(".md")) {
        let words = read(path).split_whitespace().collect::<Vec<_>>().join(" ");
        for before in ["exits with ", "exits with status ", "exit status "] {
            for rest in words.split(before).skip(1) {
                let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
                assert!(number.is_empty() || is_known(&number), "{path}: {before}{number}");
            }
        }
    }
}

#[test]
fn a_command_without_json_has_a_reason() {
    let help = Command::new(env!("CARGO_BIN_EXE_rbloat")).arg("help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands = commands.lines().take_while(|line| !line.is_empty());
    let names = commands
        .filter(|line| !line.starts_with("   "))
        .map(|line| line.trim().split(' ').next().unwrap());
    let mut program = Program::default();
    let mut number = 0;
    for name in names.filter(|name| *name != "help") {
        number += 1;
        let has_json = program.options(name).unwrap().contains("--json");
        let note = read("docs/design/025-commands.md");
        let reasons = note.split("A command without `--json` has a reason:").nth(1).unwrap();
        let has_reason = reasons
            .lines()
            .any(|line| line.starts_with("- ") && line.contains(&format!("`{name}`")));
        assert!(
            has_json || has_reason,
            "{name} has neither --json nor a reason in docs/design/025-commands.md"
        );
    }
    assert!(number > 10, "{help}");
}
