//! Profiles as an OpenTelemetry collector takes them: version 1 of the development of this signal, in JSON.

use std::collections::HashMap;

use formats::Place;
use serde_json::{Value, json};

use crate::otlp::{resource, scope};
use crate::pprof::Profile;

/// Returns the body of a request to `/v1development/profiles`: a profile for each kind of value.
pub(crate) fn profile_request(node: &str, place: &Place, profile: &Profile) -> Vec<u8> {
    let mut tables = Tables::default();
    let samples: Vec<_> = profile
        .samples
        .iter()
        .map(|sample| (tables.stack(&sample.stack), tables.attributes(&sample.labels, profile)))
        .collect();
    let value_type = |(kind, unit)| json!({ "typeStrindex": kind, "unitStrindex": unit });
    let of_kind = |(number, kind): (usize, &(u64, u64))| {
        // A sample of which there is none of this kind is no sample.
        let of_kind = profile.samples.iter().zip(&samples).filter(|(it, _)| it.values[number] > 0);
        let samples: Vec<_> = of_kind
            .map(|(sample, (stack, attributes))| {
                let values = [sample.values[number].to_string()];
                json!({ "stackIndex": stack, "values": values, "attributeIndices": attributes })
            })
            .collect();
        json!({
            "sampleType": value_type(*kind),
            "samples": samples,
            "timeUnixNano": profile.unix_ns.to_string(),
            "durationNano": profile.duration_ns.to_string(),
            "periodType": value_type(profile.period),
            "period": "1",
        })
    };
    let profiles: Vec<_> = profile.values.iter().enumerate().map(of_kind).collect();
    let request = json!({
        "resourceProfiles": [{
            "resource": resource(node, place),
            "scopeProfiles": [{ "scope": scope(), "profiles": profiles }],
        }],
        "dictionary": tables.dictionary(profile),
    });
    request.to_string().into_bytes()
}

/// The tables that all profiles of a request share. The first entry of each stands for none.
#[derive(Default)]
struct Tables<'a> {
    stacks: Vec<&'a [u64]>,
    numbers: HashMap<&'a [u64], usize>,
    attributes: Vec<Value>,
    labels: HashMap<(u64, u64), usize>,
}

impl<'a> Tables<'a> {
    fn stack(&mut self, stack: &'a [u64]) -> usize {
        *self.numbers.entry(stack).or_insert_with(|| {
            self.stacks.push(stack);
            self.stacks.len()
        })
    }

    fn attributes(&mut self, labels: &[(u64, u64)], profile: &Profile) -> Vec<usize> {
        let number = |label: &(u64, u64)| {
            *self.labels.entry(*label).or_insert_with(|| {
                let value = &profile.strings[label.1 as usize];
                let value = json!({ "stringValue": value });
                self.attributes.push(json!({ "keyStrindex": label.0, "value": value }));
                self.attributes.len()
            })
        };
        labels.iter().map(number).collect()
    }

    fn dictionary(&self, profile: &Profile) -> Value {
        // Each function has one location, with the same number.
        let functions = profile.functions.iter().map(|name| json!({ "nameStrindex": name }));
        let locations =
            (1..=profile.functions.len()).map(|id| json!({ "lines": [{ "functionIndex": id }] }));
        let stacks = self.stacks.iter().map(|stack| json!({ "locationIndices": stack }));
        json!({
            "mappingTable": [{}],
            "linkTable": [{}],
            "functionTable": after_none(functions),
            "locationTable": after_none(locations),
            "stackTable": after_none(stacks),
            "attributeTable": after_none(self.attributes.iter().cloned()),
            "stringTable": profile.strings,
        })
    }
}

fn after_none(rows: impl Iterator<Item = Value>) -> Vec<Value> {
    [json!({})].into_iter().chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owners_profile;
    use formats::{Container, KeptBy, Owned, Owner};
    use ledger::Cause;

    #[test]
    fn each_kind_of_value_has_the_stacks_of_the_owners() {
        let owner = |name: &str, objects, bytes, kept_by| Owner {
            owner: name.into(),
            kind: "class".into(),
            cause: Some(Cause::RubyMalloc),
            objects,
            slot_bytes: bytes,
            chunks: 0,
            exclusive_bytes: 0,
            shared_bytes: 0,
            resident_bytes: Some(0),
            memsize: None,
            retained_bytes: None,
            singleton_objects: 0,
            singleton_bytes: 0,
            kept_by,
        };
        let path = Some("Shop::ALL → Array → String".to_owned());
        let kept_by = KeptBy { path, objects: 3, bytes: 3000, other_path: None, shared: None };
        let strings = owner("String", 5, 4000, vec![kept_by]);
        let blob = owner("Blob", 0, 100, vec![]);
        let owned = Owned { unix_ms: 1500, rss_bytes: 1 << 20, owners: vec![strings, blob] };
        let place = Place {
            container: Container { name: "app".into(), ..Container::default() },
            role: "puma".into(),
        };
        let body = profile_request("node-1", &place, &owners_profile(&owned));
        let request: Value = serde_json::from_slice(&body).unwrap();
        let dictionary = &request["dictionary"];
        let of_process = &request["resourceProfiles"][0];
        assert!(of_process["resource"].to_string().contains("node-1"), "{of_process}");
        let text =
            |number: &Value| dictionary["stringTable"][number.as_u64().unwrap() as usize].clone();
        let entry = |table: &str, number: &Value| {
            dictionary[table][number.as_u64().unwrap() as usize].clone()
        };
        let stacks = |profile: &Value| {
            assert_eq!(profile["timeUnixNano"], "1500000000");
            let stack = |sample: &Value| {
                let stack = entry("stackTable", &sample["stackIndex"]);
                let frames = stack["locationIndices"].as_array().unwrap().iter().map(|location| {
                    let location = entry("locationTable", location);
                    let function = entry("functionTable", &location["lines"][0]["functionIndex"]);
                    text(&function["nameStrindex"]).as_str().unwrap().to_owned()
                });
                let attribute = entry("attributeTable", &sample["attributeIndices"][0]);
                assert_eq!(text(&attribute["keyStrindex"]), "cause");
                assert_eq!(attribute["value"]["stringValue"], "ruby.malloc");
                format!(
                    "{} {}",
                    frames.collect::<Vec<_>>().join(" < "),
                    sample["values"][0].as_str().unwrap()
                )
            };
            let samples = profile["samples"].as_array().unwrap().iter();
            let kind = text(&profile["sampleType"]["typeStrindex"]);
            (kind.as_str().unwrap().to_owned(), samples.map(stack).collect::<Vec<_>>())
        };
        let profiles = of_process["scopeProfiles"][0]["profiles"].as_array().unwrap();
        let profiles: Vec<_> = profiles.iter().map(stacks).collect();
        let path = "String < Array < Shop::ALL";
        let all = |rows: &[String]| rows.to_vec();
        assert_eq!(
            profiles,
            [
                ("inuse_objects".into(), all(&[format!("{path} 3"), "String 2".into()])),
                (
                    "inuse_space".into(),
                    all(&[format!("{path} 3000"), "String 1000".into(), "Blob 100".into()])
                ),
            ]
        );
        // The first entry stands for none.
        for table in ["mapping", "link", "function", "location", "stack", "attribute"] {
            assert_eq!(dictionary[format!("{table}Table")][0], json!({}), "{table}");
        }
        assert_eq!(dictionary["stringTable"][0], "");
    }
}
