//! A BFD session whose peer sends anything, at any time, and whose kernel reflects or does not.

use std::time::Duration;

use lb_bfd::packet::PACKET_OCTETS;
use lb_bfd::session::{BfdConfig, BfdEffect, BfdInput as Event};
use lb_bfd::{BfdState, BfdStateMachine, ControlPacket};

use crate::Input;

const DISCRIMINATOR: u32 = 0x0102_0304;

/// The furthest that the session came.
pub fn fuzz_bfd_session(bytes: &[u8]) -> &'static str {
    let mut input = Input::new(bytes);
    let mut wanted = config(&mut input, 100);
    let mut now = Duration::from_secs(1);
    let mut session = BfdStateMachine::new(wanted, DISCRIMINATOR, input.word().into(), now);
    let mut met = "nothing";
    while !input.is_empty() {
        let effects = match input.below(9) {
            0..=4 => match packet(&mut input) {
                Some(packet) if session.expects(&packet) => {
                    session.handle(now, Event::Packet(&packet))
                }
                _ => Vec::new(),
            },
            5 => {
                now += Duration::from_millis(input.short().into());
                session.handle(now, Event::Tick)
            }
            6 => session.handle(now, Event::Heard(now)),
            7 => {
                let longest = input.short();
                wanted = config(&mut input, longest);
                session.configure(wanted, now)
            }
            _ if input.chance(8) => session.handle(now, Event::AdminDown),
            _ => {
                session.reflect_no_longer();
                Vec::new()
            }
        };
        for effect in effects {
            met = furthest(met, check_effect(&session, wanted, &effect, now, input.word()));
        }
        // What is due is done, and nothing stays due.
        if session.deadline().is_some_and(|deadline| deadline <= now) {
            session.handle(now, Event::Tick);
            assert!(session.deadline().is_none_or(|deadline| deadline > now), "due forever");
        }
    }
    met
}

fn config(input: &mut Input, interval: u16) -> BfdConfig {
    let interval = Duration::from_millis(interval.max(1).into());
    BfdConfig {
        multiplier: input.byte().max(1),
        transmit: interval,
        receive: interval / (1 + u32::from(input.chance(128))),
        passive: input.chance(64),
    }
}

/// Mostly one that this session may get.
fn packet(input: &mut Input) -> Option<ControlPacket> {
    let mut octets = [0; PACKET_OCTETS];
    for octet in &mut octets {
        *octet = input.byte();
    }
    if !input.chance(32) {
        octets[0] = 0x20 | octets[0] & 7;
        octets[1] &= 0xf8;
        octets[2] |= 1;
        octets[3] = PACKET_OCTETS as u8;
        octets[8..12].copy_from_slice(&DISCRIMINATOR.to_be_bytes());
        // Up to 17 s.
        for interval in [12, 16, 20] {
            octets[interval] = 0;
        }
    }
    let packet = ControlPacket::decode(&octets).ok()?;
    assert_eq!(
        ControlPacket::decode(&packet.encode()),
        Ok(packet),
        "it means something else when it is written again"
    );
    Some(packet)
}

fn check_effect(
    session: &BfdStateMachine,
    wanted: BfdConfig,
    effect: &BfdEffect,
    now: Duration,
    seed: u32,
) -> &'static str {
    match effect {
        BfdEffect::Send(packet) => {
            assert_eq!(packet.my_discriminator, DISCRIMINATOR);
            assert_eq!(
                ControlPacket::decode(&packet.encode()),
                Ok(*packet),
                "a packet that is not valid"
            );
            "sent"
        }
        BfdEffect::Changed(change) => {
            assert_ne!(change.from, change.to);
            if change.to == BfdState::Up { "up" } else { "sent" }
        }
        BfdEffect::Reflect(reflection) => {
            assert!(session.is_reflected() && session.state() == BfdState::Up);
            let adopted =
                BfdStateMachine::adopt(wanted, reflection, Duration::ZERO, seed.into(), now);
            let (adopted, effects) = adopted.expect("the next process goes on with it");
            assert!(effects.is_empty(), "as it is");
            assert_eq!(adopted.discriminator(), DISCRIMINATOR);
            "reflected"
        }
        BfdEffect::StopReflecting => {
            assert!(!session.is_reflected());
            "sent"
        }
    }
}

fn furthest(one: &'static str, other: &'static str) -> &'static str {
    let order = ["nothing", "sent", "up", "reflected"];
    let place = |name: &str| order.iter().position(|each| *each == name);
    if place(one) >= place(other) { one } else { other }
}
