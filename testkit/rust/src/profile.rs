use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The format's own description, from pprof's sources.
const FOLDER: &str = "/usr/share/gocode/src/github.com/google/pprof/proto";
/// Prints the profile in the file as JSON.
const PRINT: &str = "require 'zlib'; require './profile_pb'
    puts Perftools::Profiles::Profile.decode(Zlib.gunzip(File.binread(ARGV[0]))).to_json";

/// A profile in pprof's format, read by code that was made from the format's own description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The kind and the unit of each value of a stack.
    pub kinds: Vec<(String, String)>,
    /// The kind that is shown first.
    pub default_kind: String,
    /// The stacks.
    pub stacks: Vec<ProfileStack>,
}

/// A stack with its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileStack {
    /// The names of its functions, the outermost first.
    pub frames: Vec<String>,
    /// One value of each kind.
    pub values: Vec<u64>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
}

impl Profile {
    /// Reads the profile in a file; skips the test if what that takes is not installed.
    ///
    /// # Panics
    /// If it is no valid profile.
    #[must_use]
    pub fn read(file: &Path) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let has_gem = Command::new("ruby").args(["-rgoogle/protobuf", "-e", ""]).output();
        if !has_gem.is_ok_and(|it| it.status.success()) {
            crate::skip("ruby-google-protobuf is not installed");
            return None;
        }
        let protoc = Command::new("protoc")
            .args(["--proto_path", FOLDER, "--ruby_out"])
            .args([folder.path(), Path::new("profile.proto")])
            .output();
        if !protoc.is_ok_and(|it| it.status.success()) {
            crate::skip("protoc or the description of profiles is not installed");
            return None;
        }
        let file = file.canonicalize().expect("the profile");
        let ruby = Command::new("ruby")
            .args(["-rgoogle/protobuf", "-e", PRINT])
            .arg(file)
            .current_dir(folder.path())
            .output()
            .expect("ruby");
        assert!(ruby.status.success(), "{}", String::from_utf8_lossy(&ruby.stderr));
        Some(Self::parse(&serde_json::from_slice(&ruby.stdout).expect("JSON")))
    }

    fn parse(json: &Value) -> Self {
        // 64-bit numbers are strings, and those that are 0 are left out.
        let number = |value: &Value| -> u64 {
            match value {
                Value::Null => 0,
                value => value.as_str().and_then(|it| it.parse().ok()).expect("a number"),
            }
        };
        let rows = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
        let strings = rows(json, "stringTable");
        let string = |number: u64| strings[number as usize].as_str().expect("text").to_owned();
        let by_id = |key: &str| -> BTreeMap<u64, Value> {
            rows(json, key).into_iter().map(|row| (number(&row["id"]), row)).collect()
        };
        let (functions, locations) = (by_id("function"), by_id("location"));
        let name = |location: &Value| {
            let line = &locations[&number(location)]["line"][0];
            string(number(&functions[&number(&line["functionId"])]["name"]))
        };
        let stack = |sample: &Value| ProfileStack {
            frames: rows(sample, "locationId").iter().rev().map(name).collect(),
            values: rows(sample, "value").iter().map(number).collect(),
            labels: rows(sample, "label")
                .iter()
                .map(|label| (string(number(&label["key"])), string(number(&label["str"]))))
                .collect(),
        };
        let kind = |row: &Value| (string(number(&row["type"])), string(number(&row["unit"])));
        Self {
            kinds: rows(json, "sampleType").iter().map(kind).collect(),
            default_kind: string(number(&json["defaultSampleType"])),
            stacks: rows(json, "sample").iter().map(stack).collect(),
        }
    }
}
