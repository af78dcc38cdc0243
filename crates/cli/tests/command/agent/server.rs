//! Attacks on the agent's server: `/healthz` answers meanwhile, and the agent ends when it is asked to.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use testkit::ControlGroup;

use super::Agent;

/// Connections that have sent this, and then nothing.
fn connections(agent: &Agent, count: usize, sent: &[u8]) -> Vec<TcpStream> {
    let connect = |_| {
        let mut stream = TcpStream::connect(&agent.address).unwrap();
        // The agent may have closed it.
        let _ = stream.write_all(sent);
        stream
    };
    (0..count).map(connect).collect()
}

fn is_healthy(agent: &Agent) -> bool {
    agent.get("/healthz").1 == "ok\n"
}

/// 16 connections that said nothing kept a check of health waiting for ten seconds, so that Kubernetes restarted the agent.
#[test]
fn silent_connections_keep_no_check_of_health_waiting() {
    let Some(group) = ControlGroup::make() else { return };
    let agent = Agent::start(&group, &["--every", "1s"]);
    let part = b"GET /metrics HTTP/1.1\r\nHost: n";
    for sent in [&b""[..], part, &[b'a'; 4096], b"\x16\x03\x01\x02\x00\x01\x00"] {
        let mut silent = connections(&agent, 300, sent);
        assert!(is_healthy(&agent), "{sent:?}");
        // The oldest ones were ended.
        let mut rest = Vec::new();
        silent[0].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let _ = silent[0].read_to_end(&mut rest);
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 400"), "{rest:?}");
    }
    super::wait_until("they are counted", || {
        agent.samples("rbloat_agent_answers_total", "closed").values().sum::<f64>() > 200.0
    });
    agent.end();
}

#[test]
fn requests_that_are_too_long_or_several_get_one_answer() {
    let Some(group) = ControlGroup::make() else { return };
    let agent = Agent::start(&group, &[]);
    let long = format!("GET /healthz HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(100_000));
    let many = format!("GET /healthz HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(1000));
    let binary = "GET /healthz HTTP/1.1\r\nA: \0\r\n\r\n".to_owned();
    for request in [long, many, binary] {
        assert!(agent.ask(&request).0.starts_with("HTTP/1.1 400"), "{}", &request[..40]);
    }
    let chunked =
        "GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    assert_eq!(agent.ask(chunked).1, "ok\n");
    let pipelined = "GET /healthz HTTP/1.1\r\n\r\n".repeat(100);
    assert_eq!(agent.ask(&pipelined).1, "ok\n");
    agent.end();
}

#[test]
fn the_agent_ends_on_request_while_others_connect() {
    let Some(group) = ControlGroup::make() else { return };
    let agent = Agent::start(&group, &[]);
    let silent = connections(&agent, 200, b"GET");
    let unread = connections(&agent, 40, b"GET /metrics HTTP/1.1\r\n\r\n");
    // It waits for the end, and checks the status.
    agent.end();
    drop((silent, unread));
}
