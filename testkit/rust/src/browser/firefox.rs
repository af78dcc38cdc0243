use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::skip;

/// Firefox listens on a port of its choice, dials nobody, and asks nothing.
const SETTINGS: &str = "\
user_pref('marionette.port', 0);
user_pref('browser.shell.checkDefaultBrowser', false);
user_pref('datareporting.policy.dataSubmissionEnabled', false);
user_pref('toolkit.telemetry.enabled', false);
user_pref('app.normandy.enabled', false);
user_pref('network.proxy.type', 1);
user_pref('network.proxy.http', '127.0.0.1');
user_pref('network.proxy.http_port', 9);
user_pref('network.proxy.ssl', '127.0.0.1');
user_pref('network.proxy.ssl_port', 9);
";
const NAMES: [&str; 2] = ["firefox-esr", "firefox"];

/// A page in a headless Firefox, controlled by its Marionette protocol.
pub(super) struct Firefox {
    child: Child,
    stream: BufReader<TcpStream>,
    last_id: u64,
    _profile: TempDir,
}

impl Firefox {
    /// Opens an address in a window with this room for the page. Returns `None`, and skips the test, if Firefox is not
    /// installed.
    pub(super) fn open(url: &str, [width, height]: [u32; 2]) -> Option<Self> {
        let folders = env::var_os("PATH").unwrap_or_default();
        let is_there = |name: &&str| env::split_paths(&folders).any(|it| it.join(name).is_file());
        let Some(name) = NAMES.into_iter().find(is_there) else {
            skip("Firefox is not installed, so the page was tested in Chromium only");
            return None;
        };
        let profile = tempfile::tempdir().expect("a folder can be made");
        fs::write(profile.path().join("user.js"), SETTINGS).expect("a file can be written");
        let mut child = Command::new(name)
            .args([
                "--headless",
                "--no-remote",
                "--marionette",
                "--remote-allow-system-access",
                "--profile",
            ])
            .arg(profile.path())
            // The tests run as root, and in containers, where its own sandbox cannot be set up.
            .env("MOZ_DISABLE_CONTENT_SANDBOX", "1")
            .env("HOME", profile.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it can be started");
        let port = profile.path().join("MarionetteActivePort");
        let port: u16 = loop {
            if let Some(port) = fs::read_to_string(&port).ok().and_then(|it| it.trim().parse().ok())
            {
                break port;
            }
            let ended = child.try_wait().expect("it is a child");
            assert!(ended.is_none(), "Firefox ended: {ended:?}");
            std::thread::sleep(Duration::from_millis(20));
        };
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("Firefox listens");
        let stream = BufReader::new(stream);
        let mut firefox = Self { child, stream, last_id: 0, _profile: profile };
        firefox.receive();
        firefox.call("WebDriver:NewSession", &json!({}));
        // The window is larger than the page.
        let mut size = [width, height].map(u64::from);
        for _ in 0..2 {
            let rect = json!({ "width": size[0], "height": size[1] });
            firefox.call("WebDriver:SetWindowRect", &rect);
            let inner = firefox.evaluate("[innerWidth, innerHeight]");
            for (at, wanted) in [width, height].map(u64::from).into_iter().enumerate() {
                size[at] = (size[at] + wanted).saturating_sub(inner[at].as_u64().unwrap_or(wanted));
            }
        }
        firefox.call("WebDriver:Navigate", &json!({ "url": url }));
        Some(firefox)
    }

    pub(super) fn evaluate(&mut self, expression: &str) -> Value {
        let script = json!({ "script": format!("return ({expression});"), "args": [] });
        self.call("WebDriver:ExecuteScript", &script)["value"].clone()
    }

    pub(super) fn click(&mut self, x: f64, y: f64) {
        self.drag([x, y], [x, y]);
    }

    pub(super) fn drag(&mut self, from: [f64; 2], to: [f64; 2]) {
        let go = |[x, y]: [f64; 2]| json!({ "type": "pointerMove", "x": x as i64, "y": y as i64, "duration": 0 });
        let button = |what: &str| json!({ "type": what, "button": 0 });
        let actions = [go(from), button("pointerDown"), go(to), button("pointerUp")];
        self.act(&json!({ "type": "pointer", "id": "mouse", "actions": actions }));
    }

    pub(super) fn press(&mut self, key: &str) {
        let value = match key {
            "ArrowLeft" => "\u{e012}",
            "ArrowUp" => "\u{e013}",
            "ArrowRight" => "\u{e014}",
            "ArrowDown" => "\u{e015}",
            "Enter" => "\u{e007}",
            "Escape" => "\u{e00c}",
            other => other,
        };
        self.write(value);
    }

    pub(super) fn write(&mut self, text: &str) {
        let key = |what: &str, key: char| json!({ "type": what, "value": key });
        let actions = text.chars().flat_map(|it| [key("keyDown", it), key("keyUp", it)]);
        let actions: Vec<Value> = actions.collect();
        self.act(&json!({ "type": "key", "id": "keyboard", "actions": actions }));
    }

    pub(super) fn screenshot(&mut self) -> String {
        let shot = self.call("WebDriver:TakeScreenshot", &json!({ "full": false }));
        shot["value"].as_str().expect("a screenshot is text").to_owned()
    }

    pub(super) fn prefer_dark(&mut self) {
        self.call("Marionette:SetContext", &json!({ "value": "chrome" }));
        self.evaluate(
            "Services.prefs.setIntPref('layout.css.prefers-color-scheme.content-override', 0)",
        );
        self.call("Marionette:SetContext", &json!({ "value": "content" }));
        self.call("WebDriver:Refresh", &json!({}));
    }

    fn act(&mut self, source: &Value) {
        self.call("WebDriver:PerformActions", &json!({ "actions": [source] }));
    }

    /// Calls a method of the protocol and returns its result.
    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last_id += 1;
        let message = json!([0, self.last_id, method, parameters]).to_string();
        let stream = self.stream.get_mut();
        write!(stream, "{}:{message}", message.len()).expect("Firefox runs");
        let answer = self.receive();
        assert_eq!(answer[1], self.last_id, "{method}: {answer}");
        assert!(answer[2].is_null(), "{method} {parameters}: {}", answer[2]);
        answer[3].clone()
    }

    /// Receives a message: its length in bytes, a colon, and JSON.
    fn receive(&mut self) -> Value {
        let mut length = Vec::new();
        self.stream.read_until(b':', &mut length).expect("Firefox runs");
        length.pop();
        let length = String::from_utf8(length).expect("it is a number");
        let mut message = vec![0; length.parse().expect("it is a number")];
        self.stream.read_exact(&mut message).expect("Firefox runs");
        serde_json::from_slice(&message).expect("it speaks JSON")
    }
}

impl Drop for Firefox {
    fn drop(&mut self) {
        let message = json!([0, self.last_id + 1, "Marionette:Quit", { "flags": ["eForceQuit"] }]);
        let message = message.to_string();
        let sent = write!(self.stream.get_mut(), "{}:{message}", message.len());
        if sent.is_err() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
