//! The servers that targets connect to: they answer, and they do not outlive their test.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use testkit::{Server, Target, scenario};

fn process(server: &Server) -> PathBuf {
    PathBuf::from(format!("/proc/{}", server.pid()))
}

fn objects_of(server: &Server, name: &str) -> u64 {
    let mut command = scenario(&format!("owners/{name}"));
    let variables = server.variables().iter().map(|(name, value)| (name, value));
    let target = Target::start(command.envs(variables).args(["--scale", "0.05"]));
    target.truth["owners"][0]["objects"].as_u64().unwrap()
}

/// Asserts that the server ends with a thread that panics while it has the server, as a failing test does.
fn assert_ends_with_a_panic(start: fn() -> Server) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let test = std::thread::spawn(move || {
        let server = start();
        assert!(process(&server).exists());
        sender.send(process(&server)).unwrap();
        panic!("as it should");
    });
    assert!(test.join().is_err());
    assert!(!receiver.recv().unwrap().exists());
}

/// Asserts that the server ends with the thread that started it, as threads do when the test's process is killed.
fn assert_ends_with_its_thread(start: fn() -> Server) {
    let server = std::thread::spawn(start).join().unwrap();
    let status = process(&server).join("status");
    let started = Instant::now();
    // It stays a zombie until the server is dropped.
    while !std::fs::read_to_string(&status).unwrap().contains("Z (zombie)") {
        assert!(started.elapsed() < Duration::from_secs(60), "{} lives on", status.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn postgres_serves() {
    let server = Server::postgres();
    assert_eq!(objects_of(&server, "pg_results"), 50);
    assert_eq!(objects_of(&server, "libpq_unaccounted"), 50);
}

#[test]
fn mariadb_serves() {
    assert_eq!(objects_of(&Server::mariadb(), "mysql2_results"), 50);
}

#[test]
fn postgres_ends_with_a_test_that_panics() {
    assert_ends_with_a_panic(Server::postgres);
}

#[test]
fn mariadb_ends_with_a_test_that_panics() {
    assert_ends_with_a_panic(Server::mariadb);
}

#[test]
fn postgres_ends_with_its_thread() {
    assert_ends_with_its_thread(Server::postgres);
}

#[test]
fn mariadb_ends_with_its_thread() {
    assert_ends_with_its_thread(Server::mariadb);
}
