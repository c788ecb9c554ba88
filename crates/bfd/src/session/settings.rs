//! New settings for a session that is up, of this process or of an earlier one.

use std::time::Duration;

use super::{BfdConfig, BfdEffect, BfdStateMachine, Reflection};
use crate::packet::{BfdState, ControlPacket, interval_to_micros};

/// In microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PacketIntervals {
    pub transmit: u32,
    pub receive: u32,
}

impl BfdStateMachine {
    /// Continues a session of an earlier process, which the kernel has kept up: it answered last
    /// `age` ago. `None` if that is the detection time or longer, so that the peer has ended the
    /// session; or if `reflection` is not of such a session.
    pub fn adopt(
        config: BfdConfig,
        reflection: &Reflection,
        age: Duration,
        seed: u64,
        now: Duration,
    ) -> Option<(Self, Vec<BfdEffect>)> {
        let expected = ControlPacket::decode(&reflection.expected).ok()?;
        let answer = ControlPacket::decode(&reflection.answer).ok()?;
        let belongs = expected.your_discriminator == answer.my_discriminator
            && expected.my_discriminator == answer.your_discriminator
            && expected.state == BfdState::Up
            && answer.state == BfdState::Up;
        let interval = |micros: u32| Duration::from_micros(micros.into());
        let before = BfdConfig {
            multiplier: answer.multiplier,
            transmit: interval(answer.desired_min_tx),
            receive: interval(answer.required_min_rx),
            ..config
        };
        let mut session = Self::new(before, answer.my_discriminator, seed, now);
        session.state = BfdState::Up;
        session.diagnostic = answer.diagnostic;
        session.desired_min_tx = answer.desired_min_tx;
        session.remember(&expected);
        let is_whole = session.reflection_of(&expected) == Some(*reflection);
        session.reflection = Some(*reflection);
        session.heard = Some(now.saturating_sub(age));
        let is_alive = age < session.detection_time();
        let effects = session.configure(config, now);
        (belongs && is_whole && is_alive).then_some((session, effects))
    }

    /// Changes the settings. A session that is up stays up: its packets poll until the peer has
    /// confirmed the new intervals (RFC 5880, section 6.8.3). What the kernel has heard must be handed
    /// over before: it answers no longer.
    pub fn configure(&mut self, config: BfdConfig, now: Duration) -> Vec<BfdEffect> {
        self.wanted = Some(config);
        self.apply_wanted(now);
        std::mem::take(&mut self.effects)
    }

    /// Applies new settings. As long as confirmations of others may be on the way, they wait: a
    /// confirmation does not say which it means.
    pub(super) fn apply_wanted(&mut self, now: Duration) {
        if self.state == BfdState::Up && !self.settled {
            return;
        }
        let Some(config) = self.wanted.take().filter(|config| *config != self.config) else {
            return;
        };
        let before = PacketIntervals {
            transmit: self.own_interval(),
            receive: interval_to_micros(self.config.receive),
        };
        self.config = config;
        let says_the_same = self.reflection.is_some_and(|reflection| {
            let expected = ControlPacket::decode(&reflection.expected);
            expected.is_ok_and(|expected| self.reflection_of(&expected) == Some(reflection))
        });
        if says_the_same {
            return;
        }
        self.agree_on_interval();
        if self.state == BfdState::Up {
            self.before = before;
            self.set_polling(true);
            self.send_at = now;
            if self.reflection.take().is_some() {
                self.effects.push(BfdEffect::StopReflecting);
            }
        }
    }
}
