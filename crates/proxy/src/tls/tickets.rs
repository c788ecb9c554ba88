//! Session tickets: what a session needs to be resumed, encrypted so that only proxies with the same secret read it.
//!
//! Invariants:
//! - The key changes every six hours, and a ticket is accepted for at most twelve. Proxies agree on the key without
//!   talking to each other, as it follows from their secret and the time.
//! - No two tickets are encrypted with the same key: each has a salt of its own.
//! - What is no ticket costs a comparison: a client may send hundreds in one message.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use rustls::server::ProducesTickets;

use crate::session_keys::{Secret, SessionKeys, derive_key};

/// In seconds.
const PERIOD: u64 = 6 * 3600;
const NAME: usize = 8;
const SALT: usize = 16;

/// A ticket is the name of its key, a salt, and the encrypted session.
#[derive(Debug)]
pub(crate) struct Tickets {
    shared: SessionKeys,
    /// While there are no shared secrets.
    own: Arc<Vec<Secret>>,
    /// The keys of the last use.
    keys: ArcSwapOption<PeriodKeys>,
}

/// The keys of one period and its neighbours: clocks of proxies differ.
#[derive(Debug)]
struct PeriodKeys {
    period: u64,
    secrets: Arc<Vec<Secret>>,
    /// For new tickets.
    current: PeriodKey,
    others: Vec<PeriodKey>,
}

#[derive(Debug)]
struct PeriodKey {
    name: [u8; NAME],
    key: hmac::Key,
}

impl Tickets {
    pub fn new(shared: SessionKeys) -> Result<Self, getrandom::Error> {
        let own = Arc::new(vec![Secret::random()?]);
        Ok(Self { shared, own, keys: ArcSwapOption::empty() })
    }

    fn keys(&self, now: u64) -> Option<Arc<PeriodKeys>> {
        let mut secrets = self.shared.secrets();
        if secrets.is_empty() {
            secrets = self.own.clone();
        }
        let period = now / PERIOD;
        let known = self
            .keys
            .load_full()
            .filter(|keys| keys.period == period && Arc::ptr_eq(&keys.secrets, &secrets));
        if known.is_some() {
            return known;
        }
        // If two threads do this at the same time, they do the same.
        let made = Arc::new(PeriodKeys::new(secrets, period)?);
        self.keys.store(Some(made.clone()));
        Some(made)
    }

    fn encrypt_at(&self, session: &[u8], now: u64) -> Option<Vec<u8>> {
        let keys = self.keys(now)?;
        let mut salt = [0; SALT];
        getrandom::fill(&mut salt).ok()?;
        let mut sealed = session.to_vec();
        let name = &keys.current.name;
        keys.current
            .cipher(&salt)?
            .seal_in_place_append_tag(nonce(), Aad::from(name), &mut sealed)
            .ok()?;
        Some([name, &salt[..], &sealed].concat())
    }

    fn decrypt_at(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME>()?;
        let (salt, sealed) = rest.split_first_chunk::<SALT>()?;
        let keys = self.keys(now)?;
        let all = std::iter::once(&keys.current).chain(&keys.others);
        let key = all.into_iter().find(|key| key.name == *name)?;
        let mut session = sealed.to_vec();
        let length =
            key.cipher(salt)?.open_in_place(nonce(), Aad::from(name), &mut session).ok()?.len();
        session.truncate(length);
        Some(session)
    }
}

impl PeriodKeys {
    /// `None`: there are no secrets.
    fn new(secrets: Arc<Vec<Secret>>, period: u64) -> Option<Self> {
        let current = PeriodKey::new(secrets.first()?, period);
        let mut others = Vec::new();
        for (number, secret) in secrets.iter().enumerate() {
            for other in [period.saturating_sub(1), period, period + 1] {
                if (number, other) != (0, period) {
                    others.push(PeriodKey::new(secret, other));
                }
            }
        }
        Some(Self { period, secrets, current, others })
    }
}

impl PeriodKey {
    fn new(secret: &Secret, period: u64) -> Self {
        let purpose = [b"millrace session tickets", &period.to_be_bytes()[..]].concat();
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret.derive_key(&purpose));
        let mut name = [0; NAME];
        name.copy_from_slice(&derive_key(&key, b"name")[..NAME]);
        Self { name, key }
    }

    fn cipher(&self, salt: &[u8; SALT]) -> Option<LessSafeKey> {
        let key = derive_key(&self.key, &[b"ticket", &salt[..]].concat());
        Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).ok()?))
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        PERIOD as u32
    }

    fn encrypt(&self, session: &[u8]) -> Option<Vec<u8>> {
        self.encrypt_at(session, now())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.decrypt_at(ticket, now())
    }
}

/// Always the same, as each key encrypts one ticket.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session_keys::Secrets;

    fn shared(keys: &[&str]) -> SessionKeys {
        let shared = SessionKeys::new();
        let lines: Vec<String> = keys.iter().map(|key| key.repeat(32)).collect();
        shared.set(Secrets::parse(&lines.join("\n")).unwrap());
        shared
    }

    fn tickets(keys: &[&str]) -> Tickets {
        Tickets::new(shared(keys)).unwrap()
    }

    const NOON: u64 = 1_800_000_000 / PERIOD * PERIOD;

    #[test]
    fn proxies_with_the_same_secret_read_each_others_tickets() {
        let ticket = tickets(&["a"]).encrypt_at(b"session", NOON).unwrap();
        for (keys, is_read) in [(&["a"][..], true), (&["b", "a"], true), (&["b"], false)] {
            let read = tickets(keys).decrypt_at(&ticket, NOON);
            assert_eq!(read.as_deref(), is_read.then_some(&b"session"[..]), "{keys:?}");
        }
        let own = || Tickets::new(SessionKeys::new()).unwrap();
        assert_eq!(own().decrypt_at(&own().encrypt_at(b"session", NOON).unwrap(), NOON), None);
    }

    #[test]
    fn a_ticket_is_read_for_six_to_twelve_hours_whatever_the_difference_of_clocks() {
        let tickets = tickets(&["a"]);
        for (made, read, is_read) in [
            (NOON, NOON + 2 * PERIOD - 1, true),
            (NOON + PERIOD - 1, NOON + PERIOD, true),
            (NOON + PERIOD - 1, NOON + 2 * PERIOD, false),
            // A proxy whose clock is ahead made it.
            (NOON, NOON - 1, true),
            (NOON, NOON - PERIOD - 1, false),
        ] {
            let ticket = tickets.encrypt_at(b"session", made).unwrap();
            assert_eq!(tickets.decrypt_at(&ticket, read).is_some(), is_read, "{made} {read}");
        }
    }

    #[test]
    fn secrets_are_replaced_while_they_are_used() {
        let shared = shared(&["a"]);
        let tickets = Tickets::new(shared.clone()).unwrap();
        let old = tickets.encrypt_at(b"session", NOON).unwrap();
        shared.set(Secrets::parse(&"b".repeat(32)).unwrap());
        assert_eq!(tickets.decrypt_at(&old, NOON), None);
        let new = tickets.encrypt_at(b"session", NOON).unwrap();
        assert!(tickets.decrypt_at(&new, NOON).is_some());
    }

    #[test]
    fn a_changed_ticket_is_none_and_no_two_are_equal() {
        let tickets = tickets(&["a"]);
        let ticket = tickets.encrypt_at(b"session", NOON).unwrap();
        assert_ne!(tickets.encrypt_at(b"session", NOON).unwrap(), ticket);
        for position in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[position] ^= 1;
            assert_eq!(tickets.decrypt_at(&changed, NOON), None, "{position}");
            assert_eq!(tickets.decrypt_at(&ticket[..position], NOON), None, "{position}");
        }
    }
}
