use formats::to_json;

use crate::failure::{Failure, Outcome};
use crate::remedy::explained;
use crate::terminal;

/// Lists the Ruby processes on this machine.
pub(crate) fn run(json: bool) -> Result<Outcome, Failure> {
    let complain = |pid, error| terminal::complain(examine::about(pid, &explained(&error)));
    let list = examine::list(complain)?;
    terminal::print(&match json {
        true => to_json(&list, &render::processes_summary(&list)),
        false => render::processes(&list, terminal::width()),
    })?;
    let largest = list.processes.iter().max_by_key(|process| process.rss_bytes);
    if let Some(largest) = largest.filter(|_| !json) {
        terminal::suggest(&["rbloat", "report", &largest.pid.to_string()])?;
    }
    Ok(Outcome::Done)
}
