#![doc = include_str!("../README.md")]

mod arguments;
mod command_line;
mod commands;
mod comparison_folder;
mod failure;
mod naming;
mod progress;
mod recording_view;
mod remedy;
mod terminal;

use std::process::ExitCode;

use command_line::Arguments;

fn main() -> ExitCode {
    linux::return_freed_memory();
    print_panics();
    let arguments = Arguments::read(std::env::args_os()).unwrap_or_else(|error| refuse(&error));
    terminal::set(arguments.color, arguments.quiet);
    let result = command_line::run(&arguments);
    examine::wait_if_ending();
    match result {
        Ok(outcome) => outcome.into(),
        Err(failure) => {
            terminal::complain(&failure);
            failure.exit_code()
        }
    }
}

/// Lets panics print one line, without sequences that control a terminal: messages may quote names that a process chose.
fn print_panics() {
    let print_backtrace = std::panic::take_hook();
    examine::set_panic_hook(move |panic, message| {
        top::restore();
        match std::env::var_os("RUST_BACKTRACE") {
            Some(_) => print_backtrace(panic),
            None => terminal::complain(examine::defect(message)),
        }
    });
}

/// Prints the help, the version, or an error in the arguments, which may quote a file's name, and exits.
fn refuse(error: &clap::Error) -> ! {
    let text = error.render().ansi().to_string();
    if error.use_stderr() {
        terminal::print_error(&text);
    } else {
        // clap leaves blanks on empty lines. Nobody may read the text: `rbloat --help | head -3`.
        let lines = text.lines().map(|line| format!("{}\n", line.trim_end()));
        let _ = terminal::print(&lines.collect::<String>());
    }
    std::process::exit(error.exit_code());
}
