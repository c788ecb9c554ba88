//! Credentials that were verified before, so that not each request costs what its hash costs. Wrong ones are remembered
//! too, apart from the others: a client with an old password repeats it with each request.
//!
//! Invariants:
//! - Memory is fixed, and only valid credentials take the place of valid ones.
//! - A change of the user's hash ends what was remembered, because the hash is a part of what is.
//! - No password can be found from what is remembered without the process's secret.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use super::scheme::Scheme;

const WAYS: usize = 8;
/// For 8,192 valid credentials and as many wrong ones.
const SETS: usize = 1024;

/// A keyed hash of user, hash and password.
pub(super) type Tag = [u8; 16];

pub struct VerifiedCredentials {
    secret: [u8; 32],
    valid: Tags,
    wrong: Tags,
}

impl VerifiedCredentials {
    /// `secret`: random, and of this process only.
    pub fn new(secret: [u8; 32]) -> Self {
        Self { secret, valid: Tags::new(), wrong: Tags::new() }
    }

    pub(super) fn tag(&self, user: &str, scheme: &Scheme, password: &[u8]) -> Tag {
        let mut hash = Sha256::new();
        // A key of fixed length in front and a truncated result: that is a sound MAC.
        hash.update(self.secret);
        for part in [user.as_bytes(), scheme.text().as_bytes(), password] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let mut tag = Tag::default();
        tag.copy_from_slice(&digest[..16]);
        tag
    }

    /// Whether the credentials were valid when they were verified; `None`: they were not, or that is forgotten.
    pub(super) fn recall(&self, tag: Tag) -> Option<bool> {
        if self.valid.contains(tag) {
            Some(true)
        } else {
            self.wrong.contains(tag).then_some(false)
        }
    }

    pub(super) fn remember(&self, tag: Tag, is_valid: bool) {
        let tags = if is_valid { &self.valid } else { &self.wrong };
        tags.insert(tag);
    }
}

/// Tags in a set-associative table. In a full set a new one takes the place of the oldest.
struct Tags(Box<[Mutex<VerifiedSet>]>);

#[derive(Clone, Copy, Default)]
struct VerifiedSet {
    tags: [Option<Tag>; WAYS],
    next: usize,
}

impl Tags {
    fn new() -> Self {
        Self((0..SETS).map(|_| Mutex::default()).collect())
    }

    fn contains(&self, tag: Tag) -> bool {
        self.set(tag).tags.contains(&Some(tag))
    }

    fn insert(&self, tag: Tag) {
        let mut set = self.set(tag);
        if !set.tags.contains(&Some(tag)) {
            let next = set.next;
            set.tags[next] = Some(tag);
            set.next = (next + 1) % WAYS;
        }
    }

    fn set(&self, tag: Tag) -> MutexGuard<'_, VerifiedSet> {
        let position = usize::from(u16::from_be_bytes([tag[0], tag[1]])) % SETS;
        self.0[position].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
