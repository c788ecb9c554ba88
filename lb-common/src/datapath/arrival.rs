//! How a packet came to this node, and what a tunnelled one says beside its key.

use crate::header::KeyedGue;
use crate::layout::FlowKind;

/// How a packet came to this node: from a link, or through a tunnel.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival(u32);

impl Arrival {
    pub const BY_LINK: Self = Self(0);
    const BY_TUNNEL: u32 = 1 << 31;
    /// The mark's first bit; below it are the bits of the tag.
    const MARK: u32 = 16;

    /// `tag` names the backend for which another node has chosen this one.
    #[inline(always)]
    pub fn by_tunnel(mark: Mark, tag: u16) -> Self {
        Self(Self::BY_TUNNEL | u32::from(mark.0) << Self::MARK | u32::from(tag))
    }

    #[inline(always)]
    pub fn is_by_tunnel(self) -> bool {
        self.0 & Self::BY_TUNNEL != 0
    }

    /// The tag of the backend; 0 for a packet from a link.
    #[inline(always)]
    pub fn tag(self) -> u16 {
        self.0 as u16
    }

    #[inline(always)]
    pub fn mark(self) -> Mark {
        Mark((self.0 >> Self::MARK) as u8)
    }
}

/// What a tunnelled packet says beside its key: nothing, a question, or that a question is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub u8);

impl Mark {
    pub const NONE: Self = Self(0);

    /// Whether nodes send it.
    #[inline(always)]
    pub fn is_valid(self) -> bool {
        self.number() <= FlowKind::MOST_ASKED && self.0 != KeyedGue::RETURNED
    }

    #[inline(always)]
    pub fn is_question(self) -> bool {
        self.0 != 0 && !self.is_returned()
    }

    #[inline(always)]
    pub fn is_returned(self) -> bool {
        self.0 & KeyedGue::RETURNED != 0
    }

    /// The number of the question, from 1.
    #[inline(always)]
    pub fn number(self) -> u8 {
        self.0 & !KeyedGue::RETURNED
    }
}
