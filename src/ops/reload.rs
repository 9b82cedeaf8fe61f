//! `POST /v1/reload` and `GET /v1/config`: the settings in force, and how others are put in their place.
//!
//! What happens is [`crate::serve`]'s business; here is only how it is asked for, and how the outcome is told.

use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::body::Body;
use crate::clock::UnixMs;
use crate::config::Mistakes;
use crate::response::problem::Problem;

/// Somebody asks for the settings' file to be read again.
#[derive(Debug)]
pub struct ReloadAsk {
    /// Who asks.
    pub who: String,
    /// The operation's id.
    pub operation: String,
    /// Where the outcome goes.
    pub answer: oneshot::Sender<Result<Reloaded, Refused>>,
}

/// Settings were read again and are in force.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Reloaded {
    /// The keys that changed, by name.
    pub changed: Vec<String>,
    /// Keys among them that only say where a new room begins: the room has gone on, and operators change it live.
    pub without_effect: Vec<String>,
    /// The mark of the settings in force.
    pub mark: String,
}

/// Settings were not put in force; those before go on, whole.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The file has mistakes.
    #[error("{0}")]
    Mistakes(Mistakes),
    /// Keys changed that are read once.
    #[error("only a restart changes {}", .0.join(", "))]
    AtStart(Vec<String>),
    /// It can be read and not be used.
    #[error("{0}")]
    Unusable(String),
}

/// The settings in force, as operators are shown them.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ConfigNow {
    /// The same on every gateway with the same settings.
    pub mark: String,
    /// Since when they are in force.
    pub loaded_at_ms: UnixMs,
}

/// Asks for a reload, and waits for its outcome.
pub(super) async fn reload(asks: Option<&mpsc::Sender<ReloadAsk>>, who: &str, operation: &str) -> Result<Response<Body>, Problem> {
    let (answer, outcome) = oneshot::channel();
    let ask = ReloadAsk {
        who: who.to_owned(),
        operation: operation.to_owned(),
        answer,
    };
    let asked = asks.is_some_and(|asks| asks.try_send(ask).is_ok());
    let outcome = if asked { outcome.await.ok() } else { None };
    match outcome {
        Some(Ok(reloaded)) => Ok(super::answer(StatusCode::OK, &reloaded)),
        Some(Err(refused)) => Err(refusal(&refused)),
        None => {
            let detail = "This gateway is stopping, or has as many reloads waiting as it may. Nothing was changed.";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no_reload", "Not now", detail))
        }
    }
}

fn refusal(refused: &Refused) -> Problem {
    let said = |code, title| {
        Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            code,
            title,
            format!("{refused}. Nothing was changed."),
        )
    };
    match refused {
        Refused::Mistakes(mistakes) => {
            let told: Vec<Value> = mistakes
                .0
                .iter()
                .map(|mistake| {
                    json!({ "file": mistake.file.display().to_string(), "line": mistake.line, "column": mistake.column,
                            "key": mistake.key, "detail": mistake.sentence })
                })
                .collect();
            Problem {
                detail: format!("{mistakes}\nNothing was changed."),
                ..said("bad_settings", "The settings have mistakes")
            }
            .with("mistakes", told)
        }
        Refused::AtStart(keys) => said("restart_needed", "These settings are read once").with("keys", keys.clone()),
        Refused::Unusable(_) => said("unusable_settings", "The settings cannot be used"),
    }
}
