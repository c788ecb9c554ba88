//! Timeouts of flows by state.

use super::{FlowState, Ticks};

/// The number of possible state numbers.
pub const STATES: usize = 32;

/// Configurable timeouts of idle flows, in seconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// An established connection of TCP or SCTP (`nf_conntrack_tcp_timeout_established`).
    pub tcp_established: u32,
    /// Datagrams that are not a stream (`nf_conntrack_udp_timeout`).
    pub udp: u32,
    /// Datagrams both ways over more than two seconds (`nf_conntrack_udp_timeout_stream`).
    pub udp_stream: u32,
}

impl Timeouts {
    pub const DEFAULT: Self = Self { tcp_established: 86_400, udp: 30, udp_stream: 180 };
    /// The longest time span that is not mistaken for a future time: half of the range of
    /// [`Ticks`], more than a year.
    pub const LONGEST: u32 = 31_536_000;

    /// Timeout of an idle entry by state, in ticks; below 2^31.
    pub const fn limits(&self) -> [u32; STATES] {
        use FlowState::*;
        const NEVER: u32 = i32::MAX as u32;
        let (tcp, udp, stream) = (self.tcp_established, self.udp, self.udp_stream);
        let seconds = [
            (SynSent, 60),
            (SynReceived, 60),
            (Established, tcp),
            (FinFromClient, Self::smaller(3_600, tcp)),
            (FinFromBackend, Self::smaller(3_600, tcp)),
            (TimeWait, 60),
            (Reset, 10),
            (PickedUp, 60),
            (Probation, 300),
            (OneWaySyn, 60),
            (OneWayProbation, 300),
            (OneWayEstablished, tcp),
            (OneWayClosed, 60),
            (Datagram, udp),
            (DatagramReplied, udp),
            (DatagramContinued, udp),
            (DatagramStream, stream),
        ];
        let mut limits = [NEVER; STATES];
        let mut index = 0;
        while index < seconds.len() {
            let (state, limit) = seconds[index];
            limits[state as usize] = Ticks::in_seconds(Self::smaller(limit, Self::LONGEST));
            index += 1;
        }
        limits
    }

    const fn smaller(one: u32, other: u32) -> u32 {
        if one < other { one } else { other }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_is_the_limit_of_its_states() {
        let limits = Timeouts { tcp_established: 600, udp: 7, udp_stream: 70 }.limits();
        let defaults = Timeouts::DEFAULT.limits();
        for (state, seconds) in [
            (FlowState::Established, 600),
            (FlowState::OneWayEstablished, 600),
            // No longer than an established connection.
            (FlowState::FinFromClient, 600),
            (FlowState::FinFromBackend, 600),
            (FlowState::Datagram, 7),
            (FlowState::DatagramReplied, 7),
            (FlowState::DatagramContinued, 7),
            (FlowState::DatagramStream, 70),
        ] {
            assert_eq!(limits[state as usize], Ticks::in_seconds(seconds), "{state:?}");
            assert_ne!(limits[state as usize], defaults[state as usize], "{state:?}");
        }
        let fixed = (0..STATES).filter(|&state| limits[state] == defaults[state]);
        assert_eq!(fixed.count(), STATES - 8);
    }
}
