//! Authentication of heartbeats by a key that all nodes have.

use ring::hmac;

/// Octets of the tag that a message ends with: half an HMAC-SHA256, as RFC 2104 allows.
pub(crate) const TAG_OCTETS: usize = 16;

/// Derived keys differ from those that other protocols derive from the same secret.
const KEY_PURPOSE: &[u8] = b"millrace announcements 1";

/// The keys of this node. The first one seals, all of them open. `Debug` does not print them.
#[derive(Clone, Debug, Default)]
pub struct SealKeys(Vec<hmac::Key>);

impl SealKeys {
    /// Without secrets, messages are not authenticated.
    pub fn derive<S: AsRef<[u8]>>(secrets: impl IntoIterator<Item = S>) -> Self {
        Self::derive_for(KEY_PURPOSE, secrets)
    }

    /// For another protocol.
    pub fn derive_for<S: AsRef<[u8]>>(
        purpose: &[u8],
        secrets: impl IntoIterator<Item = S>,
    ) -> Self {
        let derive = |secret: S| {
            let secret = hmac::Key::new(hmac::HMAC_SHA256, secret.as_ref());
            hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&secret, purpose).as_ref())
        };
        Self(secrets.into_iter().map(derive).collect())
    }

    pub fn authenticate(&self) -> bool {
        !self.0.is_empty()
    }

    /// Appends the tag.
    pub fn append_seal(&self, message: &mut Vec<u8>) {
        match self.0.first() {
            Some(key) => {
                let tag = hmac::sign(key, message);
                message.extend(&tag.as_ref()[..TAG_OCTETS]);
            }
            None => message.extend([0; TAG_OCTETS]),
        }
    }

    /// The message without its tag, if that is right.
    pub fn open_sealed<'a>(&self, sealed: &'a [u8]) -> Option<&'a [u8]> {
        let (message, tag) = sealed.split_at_checked(sealed.len().checked_sub(TAG_OCTETS)?)?;
        let is_sealed_by = |key: &hmac::Key| {
            // Constant time: how many octets are right must not show.
            let own = hmac::sign(key, message);
            let differences = own.as_ref()[..TAG_OCTETS].iter().zip(tag).map(|(a, b)| a ^ b);
            std::hint::black_box(differences.fold(0, |all, one| all | one)) == 0
        };
        let valid =
            !self.authenticate() && tag == [0; TAG_OCTETS] || self.0.iter().any(is_sealed_by);
        valid.then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_holders_of_a_key_seal_and_a_key_is_replaced_in_three_steps() {
        let (old, both, new) = (
            SealKeys::derive(["old"]),
            SealKeys::derive(["new", "old"]),
            SealKeys::derive(["new"]),
        );
        let none = SealKeys::default();
        let sealed = |keys: &SealKeys| {
            let mut message = b"message".to_vec();
            keys.append_seal(&mut message);
            message
        };
        for (sender, receiver, accepted) in [
            (&old, &both, true),
            (&both, &new, true),
            (&both, &old, false),
            (&none, &old, false),
            (&old, &none, false),
            (&none, &none, true),
        ] {
            let sealed = sealed(sender);
            assert_eq!(receiver.open_sealed(&sealed).is_some(), accepted);
            for index in 0..sealed.len() {
                let mut changed = sealed.clone();
                changed[index] ^= 1;
                let opened = receiver.open_sealed(&changed);
                assert!(opened.is_none() || !receiver.authenticate(), "octet {index}");
            }
        }
        assert_eq!(new.open_sealed(b"short"), None);
    }
}
