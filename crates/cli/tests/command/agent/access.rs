//! Who may read the metrics.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use testkit::ControlGroup;

use super::{Agent, has, succeed};
use crate::rbloat;

#[test]
fn an_address_that_is_in_use_is_told() {
    let Some(group) = ControlGroup::make() else { return };
    let agent = Agent::start(&group, &[]);
    let output = rbloat().args(["agent", "--listen", &agent.address]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("cannot listen on 127.0.0.1") && complaint.contains("--listen"));
    agent.end();
}

#[test]
fn a_token_is_needed_except_for_the_check_of_health() {
    let Some(group) = ControlGroup::make() else { return };
    use std::os::unix::fs::PermissionsExt;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "an-example-of-a-token\n").unwrap();
    let path = file.path().to_str().unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o604)).unwrap();
    let output =
        rbloat().args(["agent", "--listen", "127.0.0.1:0", "--token-file", path]).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && complaint.contains("but is 604"), "{complaint}");

    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let agent = Agent::start(&group, &["--token-file", path]);
    assert_eq!(agent.get("/healthz").1, "ok\n");
    for path in ["/metrics", "/processes", "/debug/pprof/owners", "/other"] {
        let (head, _) = agent.get(path);
        assert!(
            head.starts_with("HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer"),
            "{head}"
        );
    }
    let with = |token: &str| {
        let request = format!("GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n");
        agent.ask(&request).0
    };
    assert!(with("an-example-of-a-tokeN").starts_with("HTTP/1.1 401"));
    assert!(with("an-example-of-a-token").starts_with("HTTP/1.1 200"));
    agent.end();
}

/// Reads the metrics by curl, and with the certificate as the only authority.
#[test]
fn connections_are_encrypted_on_request() {
    let Some(group) = ControlGroup::make() else { return };
    if !has("openssl") || !has("curl") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [key, certificate] = ["key.pem", "cert.pem"].map(|name| folder.path().join(name));
    succeed(
        Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
            ])
            .args([
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
            ])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate),
    );
    let paths = [&certificate, &key].map(|path| path.to_str().unwrap());
    let agent = Agent::start(&group, &["--tls-cert", paths[0], "--tls-key", paths[1]]);
    let curl = |arguments: &[&str]| {
        let url = format!("https://{}/metrics", agent.address);
        Command::new("curl").args(["--silent", "--show-error"]).args(arguments).arg(url).output()
    };
    // Handshakes that stall keep nobody waiting.
    let stalled: Vec<_> = (0..200).map(|_| TcpStream::connect(&agent.address).unwrap()).collect();
    stalled.iter().for_each(|mut it| it.write_all(b"\x16\x03\x01\x02\x00\x01\x00").unwrap_or(()));
    for version in [&["--tls-max", "1.2"][..], &["--tlsv1.3"]] {
        let output = curl(&[&["--cacert", paths[0]], version].concat()).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("rbloat_agent_info"), "{text}");
        assert!(text.ends_with('\n'), "{text}");
    }
    // Another authority does not vouch for it, and requests in plain text get no answer.
    assert!(!curl(&[]).unwrap().status.success());
    let mut plain = TcpStream::connect(&agent.address).unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("rbloat"), "{answer:?}");
    agent.end();

    std::fs::write(&key, "no key").unwrap();
    let output =
        rbloat().args(["agent", "--tls-cert", paths[0], "--tls-key", paths[1]]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot use"));
}
