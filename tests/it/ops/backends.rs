//! Backends as operators see them: by the API, on `/metrics` and from a terminal.

use serde_json::Value;
use tokio::process::Command;

use crate::gateway::{Site, shop};
use crate::harness::within;

/// Who is up and who is left alone, how busy each is, and what was sent: the same numbers in all three places.
#[tokio::test]
async fn backends_are_seen_with_what_they_do() {
    let backend = shop().await;
    let other = shop().await;
    let dead = format!("http://{}", other.address);
    drop(other); // nobody listens there any more
    let live = format!("http://{}", backend.address);
    let settings = format!(
        "server.fallback = [\"{live}\", \"{dead}\"]\n[upstream]\nmax_failures = 1\nrest = \"1min\"\nmax_in_flight = 9\n[rooms.42]\npaths = [\"/sale\"]\n"
    );
    let site = Site::before(backend, &settings).await;
    for _ in 0..4 {
        assert!(site.visitor().fetch("/free").await.is_shop());
    }
    within("the dead one is left alone", || async {
        let _once_more = site.visitor().fetch("/free").await;
        let now = site.operate("GET", "/v1/backends", &Value::Null).await.json();
        let of = |origin: &str| {
            now["backends"]
                .as_array()
                .unwrap()
                .iter()
                .find(|one| one["origin"] == origin)
                .cloned()
                .unwrap()
        };
        let (up, down) = (of(&live), of(&dead));
        assert_eq!(
            (&up["up"], &up["failures"], &up["in_flight_limit"]),
            (&true.into(), &0.into(), &9.into()),
            "{now}"
        );
        down["up"] == false && down["failures"] == 1 && down["rests"] == 1 && down["connections"] == 0
    })
    .await;
    let metrics = site.operate("GET", "/metrics", &Value::Null).await.text();
    for line in [
        format!("waitgate_upstream_up{{upstream=\"{live}\"}} 1"),
        format!("waitgate_upstream_up{{upstream=\"{dead}\"}} 0"),
        format!("waitgate_upstream_rests_total{{upstream=\"{dead}\"}} 1"),
    ] {
        assert!(metrics.lines().any(|written| written == line), "{line} in\n{metrics}");
    }
    let none = format!("waitgate_upstream_connections_opened_total{{upstream=\"{live}\"}} 0");
    assert!(!metrics.contains(&none), "{metrics}");

    let mut command = Command::new(env!("CARGO_BIN_EXE_waitgate"));
    command.arg("backends").env_remove("RUST_LOG").env_remove("WAITGATE_TOKEN_FILE");
    let said = command
        .env("WAITGATE_OPS_URL", format!("http://{}", site.operators))
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let rows: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    let row = rows.iter().find(|row| row[0] == dead).unwrap();
    assert_eq!(row[1..], ["left", "alone", "0", "9", "0", "0", "1", "1"], "{said}");
}
