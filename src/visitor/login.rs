//! The user of the shop's own login, where a room reads one: one place per login, however many devices and tabs.

use http::HeaderMap;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};

use super::{Address, cookies};
use crate::clock::UnixMs;
use crate::config::{Login, LoginAlgorithm};

/// Bytes of a user's name at most.
pub(crate) const MAX_USER: usize = 128;
/// Bytes of a login token at most.
const MAX_TOKEN: usize = 4096;

/// Reads logins as the room's settings say.
pub struct Reader {
    how: How,
}

enum How {
    Header(http::HeaderName),
    Jwt {
        cookie: String,
        key: Box<DecodingKey>,
        validation: Box<Validation>,
        claim: String,
    },
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.how {
            How::Header(name) => write!(formatter, "Header({name})"),
            How::Jwt { cookie, .. } => write!(formatter, "Jwt({cookie})"),
        }
    }
}

impl Reader {
    /// A reader for these settings.
    ///
    /// # Errors
    /// The key is not one of its algorithm.
    pub fn new(settings: &Login) -> Result<Self, jsonwebtoken::errors::Error> {
        let how = match settings {
            Login::Header(name) => How::Header(name.clone()),
            Login::Jwt {
                cookie,
                algorithm,
                key,
                claim,
            } => {
                let pem = key.reveal().as_bytes();
                let (algorithm, key) = match algorithm {
                    LoginAlgorithm::Hs256 => (Algorithm::HS256, DecodingKey::from_secret(key.reveal().trim().as_bytes())?),
                    LoginAlgorithm::Rs256 => (Algorithm::RS256, DecodingKey::from_rsa_pem(pem)?),
                    LoginAlgorithm::Es256 => (Algorithm::ES256, DecodingKey::from_ec_pem(pem)?),
                    LoginAlgorithm::EdDsa => (Algorithm::EdDSA, DecodingKey::from_ed_pem(pem)?),
                };
                let mut validation = Validation::new(algorithm);
                validation.leeway = 0;
                validation.validate_exp = false; // checked below, by the clock that is passed in
                validation.validate_aud = false; // the shop's own audience is the shop's own business
                How::Jwt {
                    cookie: cookie.clone(),
                    key: Box::new(key),
                    validation: Box::new(validation),
                    claim: claim.clone(),
                }
            }
        };
        Ok(Self { how })
    }

    /// Who is logged in; none when nobody is, or what says so cannot be believed.
    #[must_use]
    pub fn user(&self, headers: &HeaderMap, address: Address, now_ms: UnixMs) -> Option<String> {
        let user = match &self.how {
            How::Header(name) => headers.get(name).filter(|_| address.trusted_peer)?.to_str().ok()?.trim().to_owned(),
            How::Jwt {
                cookie,
                key,
                validation,
                claim,
            } => cookies(headers, cookie).find_map(|token| {
                let short = (token.len() <= MAX_TOKEN).then_some(token)?;
                let token = jsonwebtoken::decode::<serde_json::Value>(short, key, validation).ok()?;
                let expires_s = token.claims.get("exp")?.as_f64()?;
                #[allow(clippy::cast_precision_loss, reason = "seconds, far below 2^52")]
                let now_s = (now_ms / 1000) as f64;
                (expires_s > now_s).then_some(())?;
                match token.claims.get(claim)? {
                    serde_json::Value::String(user) => Some(user.clone()),
                    serde_json::Value::Number(user) => Some(user.to_string()),
                    _ => None,
                }
            })?,
        };
        let good = !user.is_empty() && user.len() <= MAX_USER && user.bytes().all(|byte| (0x21..0x7f).contains(&byte));
        good.then_some(user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;
    use jsonwebtoken::{EncodingKey, Header};
    use serde_json::json;

    const NOW: UnixMs = 1_800_000_000_000;
    const SECRET: &str = "a shop's secret of thirty-two byte";

    fn address(trusted_peer: bool) -> Address {
        let ip = "10.0.0.1".parse().unwrap();
        Address {
            ip,
            network: ip,
            trusted_peer,
            https: true,
            unlimited: false,
        }
    }

    fn user(claims: &serde_json::Value, secret: &str) -> Option<String> {
        let reader = Reader::new(&Login::Jwt {
            cookie: "shop".to_owned(),
            algorithm: LoginAlgorithm::Hs256,
            key: Secret::new(SECRET.to_owned()),
            claim: "sub".to_owned(),
        });
        let key = EncodingKey::from_secret(secret.as_bytes()).unwrap();
        let token = jsonwebtoken::encode(&Header::default(), claims, &key).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("cookie", format!("x=1; shop={token}").parse().unwrap());
        reader.unwrap().user(&headers, address(false), NOW)
    }

    #[test]
    fn a_login_is_believed_only_when_the_shop_signed_it() {
        let exp = NOW / 1000 + 60;
        assert_eq!(user(&json!({"sub": "ann", "exp": exp}), SECRET).as_deref(), Some("ann"));
        assert_eq!(user(&json!({"sub": 17, "exp": exp}), SECRET).as_deref(), Some("17"));
        assert_eq!(user(&json!({"sub": "ann", "exp": exp}), "another secret of thirty-two bytes"), None);
        assert_eq!(user(&json!({"sub": "ann", "exp": NOW / 1000}), SECRET), None);
        assert_eq!(user(&json!({"sub": "ann"}), SECRET), None);
        assert_eq!(user(&json!({"sub": "", "exp": exp}), SECRET), None);
        assert_eq!(user(&json!({"sub": "a b", "exp": exp}), SECRET), None);
        assert_eq!(user(&json!({"sub": ["ann"], "exp": exp}), SECRET), None);
    }

    #[test]
    fn a_header_is_believed_from_a_trusted_proxy_only() {
        let reader = Reader::new(&Login::Header(http::HeaderName::from_static("x-user"))).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("x-user", "ann".parse().unwrap());
        assert_eq!(reader.user(&headers, address(true), NOW).as_deref(), Some("ann"));
        assert_eq!(reader.user(&headers, address(false), NOW), None);
    }
}
