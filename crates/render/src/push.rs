//! Requests that hand a profile over to a server.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use formats::{Container, Place};
use serde_json::json;

use crate::otlp_profile::profile_request;
use crate::pprof::Profile;

/// The kinds of servers that keep profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileServer {
    /// Grafana Pyroscope.
    Pyroscope,
    /// Parca.
    Parca,
    /// An OpenTelemetry collector that takes profiles.
    Collector,
}

impl ProfileServer {
    /// The path to which profiles are posted.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            // https://github.com/grafana/pyroscope, api/push/v1/push.proto
            Self::Pyroscope => "/push.v1.PusherService/Push",
            // https://github.com/parca-dev/parca, proto/parca/profilestore/v1alpha1/profilestore.proto
            // Its gateway is below /api. Elsewhere Parca answers 200 with its page.
            Self::Parca => "/api/profiles/writeraw",
            // https://github.com/open-telemetry/opentelemetry-collector, receiver/otlpreceiver
            Self::Collector => "/v1development/profiles",
        }
    }

    /// Returns the body of the request, in JSON. The profile is one of the process at this place of the node.
    #[must_use]
    pub fn request(self, node: &str, place: &Place, profile: &Profile) -> Vec<u8> {
        let Container { namespace, pod, name } = &place.container;
        // Pyroscope lists profiles by service.
        let service = if name.is_empty() { &place.role } else { name };
        let labels = [
            ("__name__", "memory"),
            ("service_name", service),
            ("node", node),
            ("namespace", namespace),
            ("pod", pod),
            ("container", name),
            ("role", &place.role),
        ];
        let labels = labels.into_iter().filter(|(_, value)| !value.is_empty());
        let labels: Vec<_> =
            labels.map(|(name, value)| json!({ "name": name, "value": value })).collect();
        let labels = match self {
            Self::Pyroscope => json!(labels),
            Self::Parca => json!({ "labels": labels }),
            Self::Collector => return profile_request(node, place, profile),
        };
        let samples = [json!({ "rawProfile": STANDARD.encode(profile.pprof()) })];
        json!({ "series": [{ "labels": labels, "samples": samples }] }).to_string().into_bytes()
    }
}
