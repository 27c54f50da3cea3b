//! Encryption of the tokens of other hosts, with a key beside the database: a backup or a copy of the database gives no access to them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::domain::saved_host::SavedHost;
use crate::domain::token::Secret;
use crate::host::durable_file;

/// The file with the key, in the state directory.
pub const HOSTS_KEY: &str = "hosts.key";

/// Encrypts and decrypts tokens. The key is made for the first one.
#[derive(Debug)]
pub struct TokenSealer {
    key: PathBuf,
    /// Held while a key is made: two would leave one token unreadable.
    making: Mutex<()>,
}

impl TokenSealer {
    /// Returns the sealer with the key in a state directory.
    pub fn in_directory(state_dir: &Path) -> Self {
        Self { key: state_dir.join(HOSTS_KEY), making: Mutex::default() }
    }

    /// Encrypts the token of a host, for its name, address and certificates alone.
    pub(super) fn seal(&self, host: &SavedHost, token: &Secret) -> io::Result<Vec<u8>> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let key = match self.key()? {
            Some(key) => key,
            None => self.make(random()?)?,
        };
        let nonce: [u8; NONCE_LEN] = random()?;
        let mut sealed = token.reveal().as_bytes().to_vec();
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), about(host), &mut sealed)
            .map_err(|_| io::Error::other("the token is too long"))?;
        Ok([nonce.as_slice(), &sealed].concat())
    }

    /// Decrypts the token of a host; `None` without the key that encrypted it, or if it was kept for another address.
    pub(super) fn open(&self, host: &SavedHost, sealed: &[u8]) -> Option<Secret> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = sealed.to_vec();
        let text = self.key().ok()??.open_in_place(nonce, about(host), &mut text).ok()?;
        std::str::from_utf8(text).ok().map(Secret::shown)
    }

    fn key(&self) -> io::Result<Option<LessSafeKey>> {
        match std::fs::read(&self.key) {
            Ok(bytes) => key(&bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn make(&self, bytes: [u8; 32]) -> io::Result<LessSafeKey> {
        durable_file::replace(&self.key, &bytes)?;
        key(&bytes)
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn key(bytes: &[u8]) -> io::Result<LessSafeKey> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, bytes);
    key.map(LessSafeKey::new).map_err(|_| io::Error::other("it has not 32 bytes"))
}

/// Text that is authenticated with a token: one that is moved to another row cannot be decrypted.
fn about(host: &SavedHost) -> Aad<String> {
    Aad::from(format!("{} {} {}", host.name, host.url, host.ca.as_deref().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::HostName;
    use crate::domain::saved_host::HostUrl;

    fn host(name: &str, url: &str) -> SavedHost {
        let (name, url) = (HostName::parse(name).expect("a name"), HostUrl::parse(url).expect("a URL"));
        SavedHost { name, url, ca: None, saved_at: 0, saved_by: "admin".into() }
    }

    #[test]
    fn token_is_readable_for_its_host_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let keeper = TokenSealer::in_directory(directory.path());
        let (b, token) = (host("b", "https://gpu02:8640"), Secret::shown("mpsm_1_2"));
        let sealed = keeper.seal(&b, &token).expect("sealed");
        assert!(!sealed.windows(4).any(|window| window == b"mpsm"));
        assert_ne!(keeper.seal(&b, &token).expect("sealed"), sealed);
        assert_eq!(keeper.open(&b, &sealed), Some(token));
        for other in [host("c", "https://gpu02:8640"), host("b", "https://gpu03:8640")] {
            assert_eq!(keeper.open(&other, &sealed), None);
        }
        assert_eq!(keeper.open(&b, &sealed[..8]), None);
        std::fs::write(directory.path().join(HOSTS_KEY), [1; 32]).expect("another key");
        assert_eq!(keeper.open(&b, &sealed), None);
        std::fs::write(directory.path().join(HOSTS_KEY), "short").expect("no key");
        assert!(keeper.seal(&b, &Secret::shown("x")).is_err());
    }
}
