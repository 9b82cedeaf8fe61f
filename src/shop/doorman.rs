//! Verifying admissions the way any backend can: by the gateway's public keys, without a secret and without asking for each request.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use http::{Method, Uri};
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;

use super::ROOM;
use super::ask::Asker;
/// What the shop reads of an admission.
#[derive(Debug, Deserialize)]
struct Admission {
    sub: String,
}

/// Knows the gateway's public keys.
pub(super) struct Doorman {
    gateway: Asker,
    keys: Mutex<HashMap<String, DecodingKey>>,
}

impl Doorman {
    /// Keys are fetched when the first admission comes.
    pub(super) fn new(gateway: &Uri) -> Self {
        Self {
            gateway: Asker::new(gateway),
            keys: Mutex::new(HashMap::new()),
        }
    }

    /// Is this the admission of this visitor? The reason when it is not.
    pub(super) async fn verify(&self, token: &str, user: &str) -> Result<(), String> {
        if token.is_empty() {
            return Err("none was sent".to_owned());
        }
        let header = decode_header(token).map_err(|unreadable| unreadable.to_string())?;
        let kid = header.kid.ok_or("it names no key")?;
        let key = match self.known(&kid) {
            Some(key) => key,
            None => {
                self.fetch().await?;
                self.known(&kid).ok_or("it is signed with a key that the gateway does not list")?
            }
        };
        let mut validation = Validation::new(Algorithm::EdDSA);
        validation.leeway = 0;
        validation.set_audience(&[ROOM]);
        validation.set_required_spec_claims(&["exp", "aud", "sub"]);
        let admission = decode::<Admission>(token, &key, &validation).map_err(|bad| bad.to_string())?;
        if admission.claims.sub == user {
            Ok(())
        } else {
            Err("it is another visitor's".to_owned())
        }
    }

    fn known(&self, kid: &str) -> Option<DecodingKey> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).get(kid).cloned()
    }

    async fn fetch(&self) -> Result<(), String> {
        let (status, body) = self.gateway.ask(Method::GET, "/.well-known/waitgate/jwks.json", "").await?;
        let set: JwkSet = serde_json::from_slice(&body).map_err(|bad| format!("the gateway's keys ({status}): {bad}"))?;
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        for jwk in &set.keys {
            if let (Some(kid), Ok(key)) = (&jwk.common.key_id, DecodingKey::from_jwk(jwk)) {
                keys.insert(kid.clone(), key);
            }
        }
        Ok(())
    }
}
