//! The request or job that a stack belongs to, by the methods of frameworks. No argument and no data is read, so a request
//! is known by its action, and a job by its class.

use formats::{TaskKind, WhoFrame};

/// The method that calls an action, by way of `send_action`. Each module of a controller has a `process_action` that calls
/// the next one.
const CALLS_ACTION: &str = "AbstractController::Base#process_action";
const PROCESS_ACTION: &str = "#process_action";
const CONTROLLER_MODULES: [&str; 2] = ["AbstractController::", "ActionController::"];
/// The modules of Rails, whose methods are no actions.
const RAILS_MODULES: [&str; 7] = [
    "AbstractController::",
    "ActionController::",
    "ActionDispatch::",
    "ActionView::",
    "ActiveSupport::",
    "BasicObject#",
    "Kernel#",
];
/// The folder of templates.
const VIEWS: &str = "/app/views/";
/// The modules of the programs that run jobs.
const JOB_MODULES: [&str; 8] = [
    "ActiveJob::",
    "Delayed::",
    "GoodJob::",
    "Que::",
    "Resque::",
    "Sidekiq::",
    "SolidQueue::",
    "Sneakers::",
];
/// The method of a job, and those that only the methods of one module call.
const PERFORM: &str = "perform";
const CALLED_BY: [(&str, &str); 3] =
    [("Que::", "run"), ("Sneakers::", "work"), ("Sneakers::", "work_with_params")];

/// A request or a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Task {
    pub(crate) kind: TaskKind,
    pub(crate) name: String,
}

/// Returns the outermost request or job of a stack; `frames` begin with the outermost one.
pub(crate) fn task<'a>(frames: impl Iterator<Item = &'a WhoFrame>) -> Option<Task> {
    let frames: Vec<&WhoFrame> = frames.collect();
    for (index, frame) in frames.iter().enumerate() {
        let label = frame.method.as_str();
        let inner = &frames[index + 1..];
        if is_of(label, &CONTROLLER_MODULES) && label.ends_with(PROCESS_ACTION) {
            return Some(Task { kind: TaskKind::Action, name: action(inner)? });
        }
        if is_of(label, &JOB_MODULES) {
            let mut calls = frames[index..].windows(2);
            let class = calls.find_map(|call| job_class(&call[0].method, &call[1].method));
            // Without a class it is a server's thread that runs no job at the moment.
            return class.map(|class| Task { kind: TaskKind::Job, name: class.to_owned() });
        }
    }
    None
}

/// The action that runs in the frames inside of `process_action`: the method that is called last of all that Rails calls by
/// itself. A filter runs before, and a template may run without a method.
fn action(frames: &[&WhoFrame]) -> Option<String> {
    let base = frames.iter().rposition(|frame| frame.method == CALLS_ACTION);
    let called = base.and_then(|base| {
        let inner = frames[base + 1..].iter();
        inner.clone().find(|frame| !is_of(&frame.method, &CONTROLLER_MODULES) && !is_c(frame))
    });
    if let Some(frame) = called.filter(|frame| !is_of(&frame.method, &RAILS_MODULES)) {
        return Some(without_block(&frame.method).to_owned());
    }
    let template = frames.iter().find_map(|frame| {
        let (_, template) = frame.path.as_deref()?.split_once(VIEWS)?;
        Some(template.to_owned())
    });
    template.or_else(|| {
        let is_own = |frame: &&&WhoFrame| {
            let method = without_block(&frame.method);
            // The body of a module belongs to Rails here.
            !method.starts_with('<') && !is_of(method, &RAILS_MODULES) && !is_c(frame)
        };
        let own = frames.iter().find(is_own);
        own.map(|frame| without_block(&frame.method).to_owned())
    })
}

/// The class of a job whose method this is. Only some modules call other methods than `perform`.
fn job_class<'a>(caller: &str, label: &'a str) -> Option<&'a str> {
    let (class, method) = label.rsplit_once(['#', '.'])?;
    let is_called = |&(module, called): &(&str, &str)| method == called && is_of(caller, &[module]);
    let is_job = method == PERFORM || CALLED_BY.iter().any(is_called);
    (is_job && !class.contains(' ') && !is_of(class, &JOB_MODULES)).then_some(class)
}

/// Returns true if this is a method of one of these modules, or a block in one.
fn is_of(label: &str, modules: &[&str]) -> bool {
    let label = without_block(label);
    modules.iter().any(|module| label.starts_with(module))
}

/// `Export#run` of `block (2 levels) in Export#run`.
fn without_block(label: &str) -> &str {
    label.rsplit_once(" in ").map_or(label, |(_, method)| method)
}

fn is_c(frame: &WhoFrame) -> bool {
    frame.path.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The task of a stack of labels, outermost first, with paths if they matter.
    fn of(labels: &[&str]) -> Option<(TaskKind, String)> {
        let frame = |label: &&str| {
            let (method, path) = match label.split_once(" at ") {
                Some((method, path)) => (method, path),
                None => (*label, "/srv/x.rb"),
            };
            let path = (path != "C").then(|| path.to_owned());
            WhoFrame { method: method.to_owned(), path, line: None }
        };
        let frames: Vec<WhoFrame> = labels.iter().map(frame).collect();
        task(frames.iter()).map(|task| (task.kind, task.name))
    }

    const RAILS: [&str; 4] = [
        "Puma::Server#process_client",
        "ActionController::Metal#dispatch",
        "ActionController::Rescue#process_action",
        "AbstractController::Callbacks#process_action",
    ];

    fn rails(inner: &[&str]) -> Option<(TaskKind, String)> {
        of(&[&RAILS, inner].concat())
    }

    #[test]
    fn a_request_is_known_by_its_action() {
        let action = |name: &str| Some((TaskKind::Action, name.to_owned()));
        let base = ["block in AbstractController::Callbacks#process_action", CALLS_ACTION];
        let sent = [&base[..], &["ActionController::BasicImplicitRender#send_action"]].concat();
        let export = [&sent[..], &["Admin::ReportsController#export", "Array#map at C"]].concat();
        assert_eq!(rails(&export), action("Admin::ReportsController#export"));
        // The method of a gem's controller.
        let gem = [&base[..], &["Devise::SessionsController#new"]].concat();
        assert_eq!(rails(&gem), action("Devise::SessionsController#new"));
        // A filter, before the action.
        let filter = [
            "ActiveSupport::Callbacks#run_callbacks",
            "block (2 levels) in <module:Callbacks>",
            "ReportsController#check",
        ];
        assert_eq!(rails(&filter), action("ReportsController#check"));
        // A template without a method.
        let template = [
            &sent[..],
            &["ActionController::ImplicitRender#default_render", "ActionView::Base#_run"],
            &["_app_views_reports_index__1 at /srv/app/views/reports/index.html.erb"],
        ];
        assert_eq!(rails(&template.concat()), action("reports/index.html.erb"));
        assert_eq!(rails(&[]), None);
        // A middleware, and no framework.
        assert_eq!(of(&RAILS[..2]), None);
        assert_eq!(of(&["<main>", "Report#perform"]), None);
    }

    #[test]
    fn a_job_is_known_by_its_class() {
        let job = |name: &str| Some((TaskKind::Job, name.to_owned()));
        let processor = "block in Sidekiq::Processor#process";
        let direct = [processor, "Sidekiq::Processor#execute_job", "Mail::SendJob#perform", "x"];
        assert_eq!(of(&direct), job("Mail::SendJob"));
        let by_active_job = [
            processor,
            "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper#perform",
            "ActiveJob::Execution#perform_now",
            "SendJob#perform",
            "OtherJob#perform",
        ];
        assert_eq!(of(&by_active_job), job("SendJob"));
        assert_eq!(of(&["Resque::Job#perform", "Archive.perform"]), job("Archive"));
        assert_eq!(of(&[processor]), None);
        let que = ["Que::Worker#work_loop", "block in Que::JobMethods#_run", "SendJob#run", "x"];
        assert_eq!(of(&que), job("SendJob"));
        let sneakers = "block (3 levels) in Sneakers::Worker#do_work";
        assert_eq!(of(&[sneakers, "Mail::Inbox#work"]), job("Mail::Inbox"));
        assert_eq!(of(&[sneakers, "Inbox#work_with_params"]), job("Inbox"));
        // Such a method is none of a job if another method calls it.
        assert_eq!(of(&[processor, "Pool#run"]), None);
        assert_eq!(of(&["Que::Worker#work_loop", "Pool#each", "Pool#run"]), None);
        // A job within a request belongs to the request.
        let within =
            [&RAILS[..], &[CALLS_ACTION, "AController#b", "ActiveJob::Execution#perform_now"]];
        let within = [&within.concat()[..], &["SendJob#perform"]].concat();
        assert_eq!(of(&within), Some((TaskKind::Action, "AController#b".into())));
    }
}
