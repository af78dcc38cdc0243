use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A page in a headless Chromium, controlled as its developer tools do.
pub(super) struct Chromium {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    session: Option<String>,
    last_id: u64,
    _profile: TempDir,
}

impl Chromium {
    pub(super) fn open(url: &str, [width, height]: [u32; 2]) -> Self {
        let profile = tempfile::tempdir().expect("a folder can be made");
        // It communicates over the descriptors 3 and 4, to which the shell duplicates its standard input and output.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 0</dev/null 1>&2", "sh", "chromium-headless-shell"])
            .args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is a shell");
        let input = child.stdin.take().expect("its input is a pipe");
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let mut browser =
            Self { child, input, output, session: None, last_id: 0, _profile: profile };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", &target);
        browser.session = attached["sessionId"].as_str().map(ToOwned::to_owned);
        browser.call(
            "Emulation.setDeviceMetricsOverride",
            &json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false }),
        );
        browser.call("Page.navigate", &json!({ "url": url }));
        browser
    }

    pub(super) fn evaluate(&mut self, expression: &str) -> Value {
        let answer = self.call(
            "Runtime.evaluate",
            &json!({ "expression": expression, "awaitPromise": true, "returnByValue": true }),
        );
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    pub(super) fn click(&mut self, x: f64, y: f64) {
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let event = json!({ "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &event);
        }
    }

    pub(super) fn press(&mut self, key: &str) {
        let code = match key {
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            "Enter" => 13,
            "Escape" => 27,
            _ => 0,
        };
        let mut down = json!({ "type": "keyDown", "key": key, "windowsVirtualKeyCode": code });
        if code == 0 {
            down["text"] = key.into();
        }
        self.call("Input.dispatchKeyEvent", &down);
        let up = json!({ "type": "keyUp", "key": key, "windowsVirtualKeyCode": code });
        self.call("Input.dispatchKeyEvent", &up);
    }

    pub(super) fn write(&mut self, text: &str) {
        self.call("Input.insertText", &json!({ "text": text }));
    }

    pub(super) fn drag(&mut self, from: [f64; 2], to: [f64; 2]) {
        for (kind, [x, y]) in [
            ("mouseMoved", from),
            ("mousePressed", from),
            ("mouseMoved", to),
            ("mouseReleased", to),
        ] {
            let buttons = u8::from(kind != "mouseReleased");
            let event = json!({
                "type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1,
            });
            self.call("Input.dispatchMouseEvent", &event);
        }
    }

    pub(super) fn prefer_dark(&mut self) {
        let feature = json!([{ "name": "prefers-color-scheme", "value": "dark" }]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": feature }));
        self.call("Page.reload", &json!({}));
    }

    pub(super) fn accessibility_tree(&mut self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().expect("a tree has nodes");
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        let shown = nodes.iter().filter(|node| node["ignored"] != true);
        shown.map(|node| (text(&node["role"]), text(&node["name"]))).collect()
    }

    pub(super) fn screenshot(&mut self) -> String {
        let shot = self.call("Page.captureScreenshot", &json!({ "format": "png" }));
        shot["data"].as_str().expect("a screenshot has data").to_owned()
    }

    /// Calls a method of the protocol and returns its result. Events that arrive before it are skipped.
    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let sent = write!(self.input, "{message}\0").and_then(|()| self.input.flush());
        sent.expect("chromium-headless-shell is installed, and runs");
        loop {
            let mut answer = Vec::new();
            let read = self.output.read_until(0, &mut answer).expect("its output can be read");
            assert!(read > 0, "chromium ended: {method}");
            answer.pop();
            let answer: Value = serde_json::from_slice(&answer).expect("it speaks JSON");
            if answer["id"] == self.last_id {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = write!(self.input, "{}\0", json!({ "id": 0, "method": "Browser.close" }));
        let _ = self.input.flush();
        // The output ends when the browser and all of its processes have ended.
        let mut rest = Vec::new();
        while self.output.read_until(0, &mut rest).is_ok_and(|read| read > 0) {
            rest.clear();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
