//! `rbloat report --fix`, word for word.

use formats::{Action, Advice, Platform, Report, Server};

fn burst() -> Report {
    serde_json::from_str(include_str!("burst.json")).unwrap()
}

fn fix(report: &Report, platform: Option<Platform>) -> String {
    anstream::adapter::strip_str(&render::fix(report, platform, 100)).to_string()
}

#[test]
fn the_text_of_a_fix() {
    insta::assert_snapshot!(fix(&burst(), None));
}

#[test]
fn the_text_of_a_fix_for_kubernetes() {
    let mut report = burst();
    report.process.deployment = Default::default();
    insta::assert_snapshot!(fix(&report, Some(Platform::Kubernetes)));
}

#[test]
fn the_gem_is_configured_where_the_program_is() {
    let gem = |server, rails, bundler| {
        let mut report = burst();
        report.advice.retain(|advice| advice.action == Action::AutoTrim);
        let deployment = &mut report.process.deployment;
        (deployment.server, deployment.rails, deployment.bundler) = (server, rails, bundler);
        let text = fix(&report, Some(Platform::Shell));
        let lines = text.lines().filter_map(|line| line.strip_prefix("    "));
        lines
            .filter(|line| !line.starts_with("rbloat compare"))
            .map(Into::into)
            .collect::<Vec<String>>()
    };
    let gemfile = "gem \"rbloat\"";
    assert_eq!(gem(Some(Server::Puma), true, true), [gemfile, "plugin :rbloat"]);
    assert_eq!(gem(Some(Server::Sidekiq), true, true), [gemfile, "require \"rbloat/sidekiq\""]);
    assert_eq!(gem(None, true, true), [gemfile, "config.rbloat.profile = :server"]);
    assert_eq!(gem(None, false, true), [gemfile, "require \"rbloat\"", "Rbloat::AutoTrim.start"]);
    assert_eq!(gem(Some(Server::Puma), false, false), ["gem install rbloat", "plugin :rbloat"]);
    let plain = gem(None, false, false);
    let exports = ["export RUBYOPT=\"-rrbloat/core\"", "export RBLOAT_AUTO_TRIM=\"1\""];
    assert_eq!(plain, [&["gem install rbloat"][..], &exports].concat());
}

#[test]
fn a_value_that_is_set_is_kept_or_replaced() {
    let mut report = burst();
    let broken = Action::PreloadJemalloc { is_broken: true, is_pinned: false };
    report.process.deployment.variables =
        ["LD_PRELOAD", "MALLOC_CONF", "MALLOC_ARENA_MAX"].map(Into::into).into();
    let text = fix(&report, None);
    assert!(
        text.contains("LD_PRELOAD is set now: keep its value, and append this one after a colon."),
        "{text}"
    );
    assert!(text.contains("MALLOC_CONF is set now: keep its value"), "{text}");
    assert!(text.contains("MALLOC_ARENA_MAX is set now: replace its value."), "{text}");
    report.advice = vec![Advice { action: broken, saves_bytes: None }];
    let text = fix(&report, None);
    assert!(!text.contains("LD_PRELOAD is set now"), "{text}");
}

/// A snapshot may come from anywhere, and its lines are pasted into a shell.
#[test]
fn the_name_of_a_unit_is_one_word_of_a_shell() {
    let mut report = burst();
    report.process.deployment.unit = Some("a'; rm -r /\u{1b}[2J.service".into());
    let text = fix(&report, None);
    assert!(text.contains("sudo systemctl restart -- 'a'\\''; rm -r / [2J.service'\n"), "{text}");
}

#[test]
fn a_healthy_process_and_one_without_advice() {
    let mut report = burst();
    report.advice.clear();
    let text = fix(&report, None);
    assert!(text.contains("rbloat knows no setting or command that lowers this."), "{text}");
    report.verdict.cause = None;
    let text = fix(&report, None);
    assert!(text.contains("There is nothing to fix."), "{text}");
    report.malloc = None;
    assert!(fix(&report, None).contains("so steps may be missing"));
}
