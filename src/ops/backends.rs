//! Backends as operators see them: the JSON of `GET /v1/backends`, and the same numbers as metrics.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::upstream::BackendNow;

/// All backends.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BackendsNow {
    /// By their origins.
    pub(super) backends: Vec<BackendNow>,
}

/// One metric of a backend: its name, type and sentence, and how it is read.
type Metric = (&'static str, &'static str, &'static str, fn(&BackendNow) -> u64);

const METRICS: [Metric; 7] = [
    ("up", "gauge", "0 while a backend is left alone.", |backend| u64::from(backend.up)),
    ("in_flight", "gauge", "Requests in flight to a backend.", |backend| {
        backend.in_flight
    }),
    ("in_flight_limit", "gauge", "Requests in flight to a backend at most.", |backend| {
        backend.in_flight_limit
    }),
    ("connections", "gauge", "Connections open to a backend.", |backend| {
        backend.connections
    }),
    (
        "connections_opened_total",
        "counter",
        "Connections opened to a backend.",
        |backend| backend.connections_opened,
    ),
    (
        "failures_total",
        "counter",
        "Requests and connections that failed by a backend's fault.",
        |backend| backend.failures,
    ),
    ("rests_total", "counter", "Times a backend was left alone.", |backend| backend.rests),
];

/// Prometheus' text format 0.0.4. An origin needs no escaping: it is a URL.
pub(super) fn metrics(backends: &[BackendNow]) -> String {
    let mut text = String::new();
    for (name, kind, sentence, read) in METRICS {
        if backends.is_empty() {
            continue;
        }
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "# HELP waitgate_upstream_{name} {sentence}\n# TYPE waitgate_upstream_{name} {kind}\n"
        );
        for backend in backends {
            let _ = writeln!(
                text,
                "waitgate_upstream_{name}{{upstream=\"{}\"}} {}",
                backend.origin,
                read(backend)
            );
        }
    }
    text
}
