//! Profiles in pprof's format: served, and pushed to a server.

use std::process::Command;

use base64::Engine as _;
use testkit::{ControlGroup, Profile, Target};

use super::{Agent, PATIENCE, TakingServer, ask, server, succeed, wait_until};

#[test]
fn the_profile_of_owners_has_those_of_the_report() {
    let Some(group) = ControlGroup::make() else { return };
    let target = Target::bare_ruby(
        "Process.setproctitle('agentprofile ')
         module Shelf; BOOKS = Array.new(300) { |i| 'x' * (100_000 + i) }; end
         GC.start; puts 'ready {}'; $stdout.flush; $stdin.read",
    );
    group.adopt(target.pid());
    let agent =
        Agent::start(&group, &["--every", "1s", "--causes-every", "1s", "--owners-every", "1s"]);
    agent.await_samples("rbloat_owner_bytes{", "role=\"agentprofile\"");
    let request = "GET /debug/pprof/owners HTTP/1.1\r\n\r\n";
    let (head, profile) = ask(&agent.address, request);
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("octet-stream"), "{head}");
    // Two cannot trace a process at the same time.
    agent.end();
    let report = crate::report(target.pid());
    assert!(target.finish());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("owners.pb.gz");
    std::fs::write(&file, profile).unwrap();
    let strings = report.owners.as_ref().unwrap().iter().find(|it| it.owner == "String").unwrap();
    if let Some(profile) = Profile::read(&file) {
        assert_eq!(profile.default_kind, "inuse_space");
        let kinds = profile.kinds.iter().map(|(kind, unit)| (kind.as_str(), unit.as_str()));
        assert!(kinds.eq([("inuse_objects", "count"), ("inuse_space", "bytes")]));
        let of_target = profile
            .stacks
            .iter()
            .filter(|it| it.labels.get("role") == Some(&"agentprofile".into()));
        let of_strings = of_target.filter(|it| it.frames.last().is_some_and(|it| it == "String"));
        assert_eq!(of_strings.clone().map(|it| it.values[1]).sum::<u64>(), strings.bytes());
        // The path that retains them: the constant comes first.
        assert!(of_strings.clone().any(|it| it.frames == ["Shelf::BOOKS", "Array", "String"]));
    }
    // Newer releases of Go compile the tool before its first use, which takes a minute.
    if !testkit::is_nightly("go tool pprof") {
        return;
    }
    if !Command::new("go").arg("version").output().is_ok_and(|it| it.status.success()) {
        return testkit::skip("go is not installed");
    }
    let pprof = |arguments: &[&str]| {
        succeed(Command::new("go").args(["tool", "pprof"]).args(arguments).arg(&file))
    };
    let top = pprof(&[
        "-top",
        "-unit=B",
        "-tagfocus=role=agentprofile",
        "-nodecount=5000",
        "-nodefraction=0",
    ]);
    let line = format!("{}B", strings.bytes());
    let of_strings = top.lines().find(|line| line.ends_with(" String")).expect(&top);
    assert_eq!(of_strings.split_whitespace().next(), Some(&*line), "{top}");
    assert!(top.contains("Type: inuse_space"), "{top}");
}

#[test]
fn profiles_are_pushed_with_the_names_of_the_process() {
    let Some(group) = ControlGroup::make() else { return };
    let target = server(&group, "agentpush");
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "an-example-of-a-token\n").unwrap();
    let token = token.path().to_str().unwrap();
    let intervals = ["--every", "1s", "--causes-every", "1s", "--owners-every", "1s"];
    let cases = [
        ("pyroscope", "200 OK", "/push.v1.PusherService/Push", "accepted"),
        ("parca", "400 Bad Request", "/api/profiles/writeraw", "refused"),
        ("otlp-profiles", "200 OK", "/v1development/profiles", "accepted"),
    ];
    for (kind, status, path, outcome) in cases {
        let server = TakingServer::start(status);
        let url = format!("{kind}=http://{}", server.address);
        let push = ["--push", &url, "--push-token-file", token];
        let agent = Agent::start(&group, &[&intervals[..], &push].concat());
        let (head, body) = server.requests.recv_timeout(PATIENCE).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert!(head.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{head}");
        let head = head.to_lowercase();
        assert!(head.contains("authorization: bearer an-example-of-a-token\r\n"), "{head}");
        assert!(head.contains("content-type: application/json\r\n"), "{head}");
        if kind == "otlp-profiles" {
            check_tables(&body);
        } else {
            check_series(kind, &body);
        }
        let outcome = format!("outcome=\"{outcome}\"");
        wait_until("it is counted", || {
            agent.samples("rbloat_pushes_total", &outcome).values().sum::<f64>() > 0.0
        });
        agent.end();
    }
    assert!(target.finish());
}

fn check_series(kind: &str, body: &serde_json::Value) {
    let series = &body["series"][0];
    let labels = &series["labels"];
    let labels = if kind == "parca" { &labels["labels"] } else { labels };
    for label in [("__name__", "memory"), ("role", "agentpush")] {
        let label = serde_json::json!({ "name": label.0, "value": label.1 });
        assert!(labels.as_array().unwrap().contains(&label), "{labels}");
    }
    let profile = series["samples"][0]["rawProfile"].as_str().unwrap();
    let profile = base64::engine::general_purpose::STANDARD.decode(profile).unwrap();
    assert_eq!(profile[..2], [0x1f, 0x8b], "it is compressed");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), profile).unwrap();
    if let Some(profile) = Profile::read(file.path()) {
        let frames = profile.stacks.iter().filter_map(|it| it.frames.last());
        assert!(frames.clone().any(|it| it == "String"), "{profile:?}");
    }
}

/// A profile for a collector has its stacks in tables.
fn check_tables(body: &serde_json::Value) {
    let resource = body["resourceProfiles"][0]["resource"].to_string();
    assert!(resource.contains("agentpush"), "{resource}");
    let profiles = &body["resourceProfiles"][0]["scopeProfiles"][0]["profiles"];
    assert!(profiles[1]["samples"].as_array().is_some_and(|it| !it.is_empty()), "{profiles}");
    let strings = body["dictionary"]["stringTable"].as_array().unwrap();
    assert!(strings.contains(&"String".into()) && strings.contains(&"inuse_space".into()));
}
