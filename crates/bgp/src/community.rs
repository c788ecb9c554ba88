//! Communities (RFC 1997) and large communities (RFC 8092), as bytes and as text.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Community(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LargeCommunity {
    pub administrator: u32,
    pub data: [u32; 2],
}

/// Names of IANA's registry of well-known communities.
const WELL_KNOWN: [(&str, Community); 6] = [
    ("graceful-shutdown", Community::GRACEFUL_SHUTDOWN),
    ("blackhole", Community(0xffff_029a)),
    ("no-export", Community(0xffff_ff01)),
    ("no-advertise", Community(0xffff_ff02)),
    ("local-as", Community(0xffff_ff03)),
    ("no-peer", Community(0xffff_ff04)),
];

impl Community {
    /// RFC 8326: the route is about to be withdrawn; prefer another one.
    pub(crate) const GRACEFUL_SHUTDOWN: Self = Self(0xffff_0000);
}

/// The communities of one route, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Communities {
    standard: BTreeSet<Community>,
    large: BTreeSet<LargeCommunity>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyCommunities;

impl Communities {
    /// Of each kind. All of them and a prefix fit into one message.
    pub const MOST: usize = 100;

    /// Adds a community in text form: `65000:100`, `64512:1:2`, `large:64512:1:2`, or a well-known name.
    pub fn add(&mut self, text: &str) -> Result<(), InvalidCommunity> {
        let added = match text.parse() {
            Ok(community) => self.insert(community),
            Err(_) => self.insert_large(text.parse()?),
        };
        added.map_err(|TooManyCommunities| {
            InvalidCommunity(format!("{text}: more than {} communities of one kind", Self::MOST))
        })
    }

    pub fn insert(&mut self, community: Community) -> Result<(), TooManyCommunities> {
        insert_up_to(&mut self.standard, community, Self::MOST)
    }

    pub fn insert_large(&mut self, community: LargeCommunity) -> Result<(), TooManyCommunities> {
        insert_up_to(&mut self.large, community, Self::MOST)
    }

    /// With the community of RFC 8326, also if there are [`Self::MOST`] others: a message has room for it.
    pub(crate) fn with_graceful_shutdown(mut self) -> Self {
        self.standard.insert(Community::GRACEFUL_SHUTDOWN);
        self
    }

    pub fn standard(&self) -> &BTreeSet<Community> {
        &self.standard
    }

    pub fn large(&self) -> &BTreeSet<LargeCommunity> {
        &self.large
    }
}

fn insert_up_to<T: Ord>(
    set: &mut BTreeSet<T>,
    item: T,
    most: usize,
) -> Result<(), TooManyCommunities> {
    if set.len() >= most && !set.contains(&item) {
        return Err(TooManyCommunities);
    }
    set.insert(item);
    Ok(())
}

/// Why a text is not a community.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidCommunity(pub String);

impl fmt::Display for InvalidCommunity {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for InvalidCommunity {}

fn refuse_community(text: &str) -> InvalidCommunity {
    let shown: String = text.chars().take(64).collect();
    let names = WELL_KNOWN.map(|(name, _)| name).join(", ");
    InvalidCommunity(format!(
        "{shown:?} is not a community: write NUMBER:NUMBER with numbers up to 65535, \
         [large:]NUMBER:NUMBER:NUMBER with numbers up to 4294967295, or one of {names}"
    ))
}

/// Decimal digits only: `u32::from_str` accepts a sign, too.
fn parse_decimal<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl FromStr for Community {
    type Err = InvalidCommunity;

    fn from_str(text: &str) -> Result<Self, InvalidCommunity> {
        if let Some((_, community)) = WELL_KNOWN.iter().find(|(name, _)| *name == text) {
            return Ok(*community);
        }
        let parse = || {
            let (high, low) = text.split_once(':')?;
            Some(Self(
                u32::from(parse_decimal::<u16>(high)?) << 16
                    | u32::from(parse_decimal::<u16>(low)?),
            ))
        };
        parse().ok_or_else(|| refuse_community(text))
    }
}

impl FromStr for LargeCommunity {
    type Err = InvalidCommunity;

    fn from_str(text: &str) -> Result<Self, InvalidCommunity> {
        let parse = || {
            let mut parts =
                text.strip_prefix("large:").unwrap_or(text).split(':').map(parse_decimal);
            let [administrator, first, second] = [parts.next()??, parts.next()??, parts.next()??];
            parts.next().is_none().then_some(Self { administrator, data: [first, second] })
        };
        parse().ok_or_else(|| refuse_community(text))
    }
}

impl fmt::Display for Community {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match WELL_KNOWN.iter().find(|(_, community)| community == self) {
            Some((name, _)) => formatter.write_str(name),
            None => write!(formatter, "{}:{}", self.0 >> 16, self.0 & 0xffff),
        }
    }
}

impl fmt::Display for LargeCommunity {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let [first, second] = self.data;
        write!(formatter, "{}:{first}:{second}", self.administrator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_numbers_correspond() {
        for (text, number) in [
            ("0:0", 0),
            ("65000:100", 65000 << 16 | 100),
            ("graceful-shutdown", 0xffff_0000),
            ("no-export", 0xffff_ff01),
        ] {
            let community: Community = text.parse().unwrap();
            assert_eq!((community.0, community.to_string().as_str()), (number, text));
        }
        let large: LargeCommunity = "large:4200000000:1:2".parse().unwrap();
        assert_eq!(large, LargeCommunity { administrator: 4_200_000_000, data: [1, 2] });
        assert_eq!(large.to_string(), "4200000000:1:2");
        assert_eq!(large.to_string().parse(), Ok(large));
    }

    #[test]
    fn other_text_is_refused() {
        let long = "9".repeat(100_000);
        let texts = [
            "",
            ":",
            "1",
            "1:",
            ":1",
            "65536:1",
            "1:65536",
            "+1:1",
            "1:-1",
            "1: 1",
            "1:2:3:4",
            "1:2:4294967296",
            "large:1:2",
            "large:",
            "No-Export",
            &long,
        ];
        for text in texts {
            let error = Communities::default().add(text).expect_err(text);
            assert!(error.0.len() < 500, "{error}");
        }
    }

    #[test]
    fn their_number_is_bounded() {
        let mut communities = Communities::default();
        for low in 0..Communities::MOST {
            communities.add(&format!("1:{low}")).unwrap();
            communities.add(&format!("1:1:{low}")).unwrap();
        }
        assert!(communities.add("2:1").unwrap_err().0.contains("more than 100"));
        assert!(communities.add("2:1:1").is_err());
        communities.add("1:0").expect("it is one of them already");
    }
}
