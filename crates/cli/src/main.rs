//! The `rbloat` command. See `rbloat --help` and the README.

mod allocator_call;
mod arguments;
mod attempts;
mod command_line;
mod commands;
mod comparison_folder;
mod containers;
mod failure;
mod installed_gem;
mod interruption;
mod isolation;
mod process;
mod progress;
mod recording_view;
mod rubies;
mod samples;
mod sandbox;
mod screen;
mod source;
mod terminal;
mod trimming;
mod watch;

use std::io;
use std::process::ExitCode;

use command_line::Arguments;
use failure::Failure;

fn main() -> ExitCode {
    linux::return_freed_memory();
    isolation::set_panic_hook();
    let arguments = Arguments::read(std::env::args_os()).unwrap_or_else(|error| refuse(&error));
    terminal::set(arguments.color, arguments.quiet);
    let result = command_line::run(&arguments);
    interruption::wait_if_requested();
    match result {
        Ok(outcome) => outcome.into(),
        // The reader has closed the pipe: `rbloat report 42 | head -3`.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            terminal::complain(&failure);
            failure.exit_code()
        }
    }
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
