//! Other hosts, as an admin saved them in the console.

use std::net::IpAddr;

use super::{HostName, InvalidValue};

/// Another host with a manager. Its token is kept apart from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedHost {
    /// Its name here.
    pub name: HostName,
    /// The address of its manager.
    pub url: HostUrl,
    /// Certificates to trust there, as PEM; `None` for those of the system.
    pub ca: Option<String>,
    /// When it was saved.
    pub saved_at: i64,
    /// Caller that saved it.
    pub saved_by: String,
}

/// The address of a manager: `https://`, or `http://` for this machine alone, since a token is sent there.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct HostUrl(String);

impl HostUrl {
    /// Parses an address; it has neither a path nor a password.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let text = text.trim_end_matches('/');
        let refused = |why: &str| {
            let shown: String = text.chars().take(80).collect();
            Err(InvalidValue(format!("{shown:?} {why}: give one such as https://gpu02:8640")))
        };
        let Some((scheme, authority)) = text.split_once("://") else {
            return refused("is not the URL of a manager");
        };
        if authority.is_empty() || authority.contains(|c: char| c.is_whitespace() || "/?#@\\".contains(c)) {
            return refused("is not the URL of a manager alone");
        }
        match scheme {
            "https" => Ok(Self(text.to_owned())),
            "http" if is_loopback(authority) => Ok(Self(text.to_owned())),
            "http" => refused("would send the token over the network as it is"),
            _ => refused("is neither an https:// nor an http:// URL"),
        }
    }

    /// Returns the address without a slash at its end.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for HostUrl {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        Self::parse(&text)
    }
}

impl std::fmt::Display for HostUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns true if a host, with or without a port, is this machine.
pub fn is_loopback(authority: &str) -> bool {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_this_machine_go_without_tls() {
        for name in ["localhost", "localhost:8640", "127.0.0.1:1", "[::1]:8640", "127.0.0.1"] {
            assert!(is_loopback(name), "{name}");
            assert_eq!(
                HostUrl::parse(&format!("http://{name}/")).expect(name).as_str(),
                format!("http://{name}")
            );
        }
        for name in ["gpu01", "gpu01:8640", "192.0.2.2", "localhost.example:1", "[2001:db8::1]:8640"] {
            assert!(!is_loopback(name), "{name}");
            let InvalidValue(why) = HostUrl::parse(&format!("http://{name}")).expect_err(name);
            assert!(why.contains("send the token"), "{why}");
            HostUrl::parse(&format!("https://{name}")).expect(name);
        }
    }

    #[test]
    fn address_is_a_manager_and_nothing_else() {
        for text in [
            "",
            "gpu01:8640",
            "https://",
            "https://admin:x@gpu01",
            "https://gpu01/api",
            "ftp://gpu01",
            "https://a b",
            "https://a?b",
        ] {
            let InvalidValue(why) = HostUrl::parse(text).expect_err(text);
            assert!(why.contains("https://gpu02:8640"), "{why}");
        }
    }
}
