use clap::Args;
use formats::to_json;

use crate::failure::{Failure, Outcome};
use crate::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  rbloat explain                    list what can be explained
  rbloat explain malloc.unreturned  a row of a report
  rbloat explain arena              a term";

#[derive(Debug, Args)]
pub(crate) struct ExplainArguments {
    /// A cause in a report, such as malloc.unreturned, a verdict of a diff, such as managed_leak, a term, such as arena, or
    /// a name in parentheses, such as imemo_iseq
    #[arg(value_name = "WORD")]
    word: Option<String>,
    /// Print the explanation, or all of them, as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &ExplainArguments) -> Result<Outcome, Failure> {
    if arguments.json {
        let word = arguments.word.as_deref();
        let explanations = render::explanations(word)
            .ok_or_else(|| Failure::NoExplanation(word.unwrap_or_default().into()))?;
        let summary = render::explanations_summary(&explanations);
        terminal::print(&to_json(&explanations, &summary))?;
        return Ok(Outcome::Done);
    }
    let text = match &arguments.word {
        Some(word) => render::explanation(word, terminal::width())
            .ok_or_else(|| Failure::NoExplanation(word.clone()))?,
        None => render::explained_words().map(|word| format!("{word}\n")).collect(),
    };
    terminal::print(&text)?;
    match &arguments.word {
        Some(_) => terminal::suggest(&["rbloat"])?,
        None => terminal::suggest(&["rbloat", "explain", "malloc.unreturned"])?,
    }
    Ok(Outcome::Done)
}
