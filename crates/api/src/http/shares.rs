//! Limits what each user holds of a common resource: connections, requests, watches, bytes.

use lb_limits::Shares;

use super::identity::ClientIdentity;

/// What one user holds, until it is dropped.
pub(crate) type UserShare = lb_limits::Share<String>;

/// One user never holds more than half, and all except the agent together never more than seven eighths: so the agent
/// always finds room.
#[derive(Debug, Clone)]
pub(crate) struct UserShares(Shares<String>);

impl UserShares {
    pub fn new(total: usize) -> Self {
        Self(Shares::new(total, total.div_ceil(2)).with_reserve(total / 8))
    }

    /// A share that contains nothing yet.
    pub(crate) fn empty_share(&self, identity: &ClientIdentity) -> UserShare {
        let user = identity.user.clone();
        if identity.is_agent() { self.0.empty_privileged(user) } else { self.0.empty(user) }
    }

    pub(crate) fn take_one(&self, identity: &ClientIdentity) -> Option<UserShare> {
        let mut share = self.empty_share(identity);
        share.grow(1).then_some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(shares: &UserShares, identity: &ClientIdentity) -> Vec<UserShare> {
        std::iter::from_fn(|| shares.take_one(identity)).collect()
    }

    #[test]
    fn a_user_gets_half_and_the_agent_finds_room_whatever_others_hold() {
        let shares = UserShares::new(16);
        let user = |name: &str| ClientIdentity { user: name.to_owned(), groups: Vec::new() };
        let held: Vec<_> = ["a", "b", "c"].map(|name| take_all(&shares, &user(name))).into();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [8, 6, 0]);
        assert_eq!(take_all(&shares, &ClientIdentity::agent()).len(), 2);
    }
}
