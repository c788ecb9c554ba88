//! Reported packets, and the listener for them.

use super::{Reason, Ticks};

/// The listener for reported packets (`millrace drops`). It has a deadline, so that packets are not
/// reported forever if the command is killed.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    pub until: Ticks,
    /// Identifies the listener; 0 if there is none. In one word with the deadline.
    pub token: u32,
    /// A bit for each [`Reason`] that is listened for.
    pub reasons: u64,
}

const _: () = assert!(Reason::COUNT <= u64::BITS);

impl Listener {
    /// Whether it listens for this [`Reason`], by its number.
    #[inline(always)]
    pub fn hears(&self, reason: u32, now: Ticks) -> bool {
        self.reasons >> (reason % u64::BITS) & 1 != 0 && self.is_there(now)
    }

    #[inline(always)]
    pub fn is_there(&self, now: Ticks) -> bool {
        self.until.0.wrapping_sub(now.0) as i32 > 0
    }
}

/// A reported packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketEvent {
    /// Nanoseconds since the machine started.
    pub time: u64,
    /// IPv4 addresses are mapped to IPv6; all zeros if the packet could not be parsed.
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub device: u32,
    /// Length of the frame in bytes.
    pub length: u32,
    /// A [`Reason`].
    pub reason: u32,
    /// 0 if the packet has no ports, or they could not be parsed.
    pub source_port: u16,
    pub destination_port: u16,
    /// 0 if it is not known.
    pub protocol: u8,
    /// TCP flags, or their equivalents for an SCTP packet.
    pub flags: u8,
    /// An [`Ending`].
    pub ending: u8,
    /// 1 if XDP reported it.
    pub xdp: u8,
    pub reserved: u32,
}

/// How a reported packet ended.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    Passed = 0,
    Dropped = 1,
    Answered = 2,
}

const _: () = {
    assert!(size_of::<Listener>() == 16);
    assert!(size_of::<PacketEvent>() == 64);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_hears_what_it_asked_for_until_its_deadline() {
        let reasons = 1 << Reason::NoRoute as u32;
        let listener = Listener { until: Ticks(10), token: 1, reasons };
        assert!(listener.hears(Reason::NoRoute as u32, Ticks(9)));
        assert!(!listener.hears(Reason::NoRoute as u32, Ticks(10)));
        assert!(!listener.hears(Reason::NoBackend as u32, Ticks(9)));
        // The clock wraps.
        let listener = Listener { until: Ticks(3), ..listener };
        assert!(listener.hears(Reason::NoRoute as u32, Ticks(u32::MAX)));
        assert!(!Listener::default().hears(Reason::NoRoute as u32, Ticks(u32::MAX)));
    }
}
