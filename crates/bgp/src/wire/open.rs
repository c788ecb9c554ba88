//! OPEN messages (RFC 4271, section 4.2) and their capabilities (RFC 5492).

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::header::{MessageKind, append_message};
use super::notification::{Notification, Reason};
use super::reader::OctetReader;
use crate::family::{Family, SAFI_UNICAST};

/// What stands for an AS number of four octets in a field of two (RFC 6793).
pub(crate) const AS_TRANS: u16 = 23456;

const BGP_VERSION: u8 = 4;
/// The optional parameter that holds capabilities.
const CAPABILITIES_PARAMETER: u8 = 2;
/// As a parameter's type: lengths have two octets (RFC 9072).
const EXTENDED_LENGTH_PARAMETER: u8 = 255;

mod code {
    pub(crate) const MULTIPROTOCOL: u8 = 1;
    pub(crate) const ROUTE_REFRESH: u8 = 2;
    pub(crate) const EXTENDED_NEXT_HOP: u8 = 5;
    pub(crate) const GRACEFUL_RESTART: u8 = 64;
    pub(crate) const FOUR_OCTET_AS: u8 = 65;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenMessage {
    pub autonomous_system: u32,
    /// In seconds; 0: no KEEPALIVE messages.
    pub hold_time: u16,
    pub identifier: Ipv4Addr,
    pub capabilities: Capabilities,
}

/// Capabilities that matter to a speaker that only announces. Others are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Never empty in a received message: a peer that announces no family, known or unknown, can do IPv4.
    pub families: BTreeSet<Family>,
    pub route_refresh: bool,
    /// AS numbers in AS_PATH have four octets.
    pub four_octet_as: bool,
    /// IPv4 prefixes may have IPv6 next hops (RFC 8950).
    pub extended_next_hop: bool,
    pub graceful_restart: Option<GracefulRestart>,
}

/// RFC 4724.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GracefulRestart {
    /// The sender has restarted, and announces everything again.
    pub restarting: bool,
    /// How long peers keep the routes of the sender without a session, in seconds; at most 4095.
    pub time: u16,
    /// Whether the sender has kept forwarding, by family.
    pub preserved: BTreeMap<Family, bool>,
}

const RESTART_STATE_BIT: u16 = 0x8000;
const MAX_RESTART_SECONDS: u16 = 0x0fff;
const FORWARDING_PRESERVED_BIT: u8 = 0x80;

impl OpenMessage {
    pub fn encode(&self, out: &mut Vec<u8>) {
        append_message(out, MessageKind::Open, |out| {
            out.push(BGP_VERSION);
            out.extend(u16::try_from(self.autonomous_system).unwrap_or(AS_TRANS).to_be_bytes());
            out.extend(self.hold_time.to_be_bytes());
            out.extend(self.identifier.octets());
            let mut capabilities = Vec::new();
            self.capabilities.encode(self.autonomous_system, &mut capabilities);
            // Five kinds of capabilities for two families: below 64 octets.
            out.extend([
                capabilities.len() as u8 + 2,
                CAPABILITIES_PARAMETER,
                capabilities.len() as u8,
            ]);
            out.extend(capabilities);
        });
    }

    /// The error is what to send to the peer.
    pub fn parse(body: &[u8]) -> Result<Self, Notification> {
        Self::read(&mut OctetReader::new(body))
            .unwrap_or_else(|| Err(Notification::new(Reason::MalformedOpen)))
    }

    /// `None`: a length does not fit.
    fn read(reader: &mut OctetReader) -> Option<Result<Self, Notification>> {
        let refuse = |reason| Some(Err(Notification::new(reason)));
        if reader.u8()? != BGP_VERSION {
            let supported = u16::from(BGP_VERSION).to_be_bytes();
            return Some(Err(Notification::new(Reason::UnsupportedVersion).with(&supported)));
        }
        let short_as = reader.u16()?;
        let hold_time = reader.u16()?;
        let identifier = Ipv4Addr::from(reader.u32()?);
        let (mut parameters, extended) = read_parameters(reader)?;
        if !reader.is_empty() {
            return None;
        }
        let mut capabilities = Capabilities::default();
        let (mut long_as, mut names_families) = (None, false);
        while !parameters.is_empty() {
            let parameter = parameters.u8()?;
            let part = if extended { parameters.long_part()? } else { parameters.part()? };
            if parameter != CAPABILITIES_PARAMETER {
                return refuse(Reason::UnsupportedParameter);
            }
            capabilities.read(part, &mut long_as, &mut names_families)?;
        }
        if !names_families {
            capabilities.families.insert(Family::Ipv4);
        }
        let autonomous_system = long_as.unwrap_or(short_as.into());
        match () {
            // RFC 7607.
            _ if autonomous_system == 0 => refuse(Reason::BadPeerAs),
            _ if hold_time == 1 || hold_time == 2 => refuse(Reason::UnacceptableHoldTime),
            _ if identifier.is_unspecified() => refuse(Reason::BadIdentifier),
            _ if capabilities.families.is_empty() => {
                Some(Err(refuse_missing_families(Family::ALL.into())))
            }
            _ => Some(Ok(Self { autonomous_system, hold_time, identifier, capabilities })),
        }
    }
}

/// RFC 5492: a refusal contains what the peer lacks.
pub fn refuse_missing_families(families: BTreeSet<Family>) -> Notification {
    let mut missing = Vec::new();
    let needed = Capabilities { families, ..Capabilities::default() };
    // The AS number is in another capability.
    needed.encode(0, &mut missing);
    Notification::new(Reason::UnsupportedCapability).with(&missing)
}

/// The optional parameters, and whether their lengths have two octets.
fn read_parameters<'a>(reader: &mut OctetReader<'a>) -> Option<(OctetReader<'a>, bool)> {
    let mut ahead = *reader;
    let (length, parameter) = (ahead.u8()?, ahead.u8());
    if length != 0 && parameter == Some(EXTENDED_LENGTH_PARAMETER) {
        *reader = ahead;
        return Some((reader.long_part()?, true));
    }
    Some((reader.part()?, false))
}

impl Capabilities {
    pub fn encode(&self, autonomous_system: u32, out: &mut Vec<u8>) {
        let mut add = |code, value: &[u8]| {
            out.extend([code, value.len() as u8]);
            out.extend(value);
        };
        for family in &self.families {
            let [high, low] = family.afi().to_be_bytes();
            add(code::MULTIPROTOCOL, &[high, low, 0, SAFI_UNICAST]);
        }
        if self.route_refresh {
            add(code::ROUTE_REFRESH, &[]);
        }
        if self.extended_next_hop {
            let [prefix, next_hop] = [Family::Ipv4, Family::Ipv6].map(|family| family.afi() as u8);
            add(code::EXTENDED_NEXT_HOP, &[0, prefix, 0, SAFI_UNICAST, 0, next_hop]);
        }
        if let Some(graceful_restart) = &self.graceful_restart {
            add(code::GRACEFUL_RESTART, &graceful_restart.encode());
        }
        if self.four_octet_as {
            add(code::FOUR_OCTET_AS, &autonomous_system.to_be_bytes());
        }
    }

    /// A capability of an unexpected length is ignored; `None` if its end is not known.
    fn read(
        &mut self,
        mut reader: OctetReader,
        long_as: &mut Option<u32>,
        names_families: &mut bool,
    ) -> Option<()> {
        while !reader.is_empty() {
            let code = reader.u8()?;
            let mut value = reader.part()?;
            match code {
                code::MULTIPROTOCOL => {
                    let found = value.family();
                    *names_families |= found.is_some();
                    self.families.extend(found.flatten());
                }
                code::ROUTE_REFRESH => self.route_refresh = true,
                code::EXTENDED_NEXT_HOP => self.extended_next_hop |= allows_ipv6_for_ipv4(value),
                code::GRACEFUL_RESTART => self.graceful_restart = GracefulRestart::read(value),
                code::FOUR_OCTET_AS => {
                    *long_as = value.u32().or(*long_as);
                    self.four_octet_as = long_as.is_some();
                }
                _ => (),
            }
        }
        Some(())
    }
}

impl OctetReader<'_> {
    /// AFI, a reserved octet, SAFI. `Some(None)`: another family.
    fn family(&mut self) -> Option<Option<Family>> {
        let (afi, _reserved, safi) = (self.u16()?, self.u8()?, self.u8()?);
        Some(Family::of_identifiers(afi, safi))
    }
}

fn allows_ipv6_for_ipv4(mut reader: OctetReader) -> bool {
    let mut next = || Some((reader.u16()?, reader.u16()?, reader.u16()?));
    let wanted = (Family::Ipv4.afi(), SAFI_UNICAST.into(), Family::Ipv6.afi());
    std::iter::from_fn(&mut next).any(|entry| entry == wanted)
}

impl GracefulRestart {
    fn encode(&self) -> Vec<u8> {
        let flags = if self.restarting { RESTART_STATE_BIT } else { 0 };
        let mut value = (flags | self.time.min(MAX_RESTART_SECONDS)).to_be_bytes().to_vec();
        for (family, preserved) in &self.preserved {
            value.extend(family.afi().to_be_bytes());
            value.extend([SAFI_UNICAST, if *preserved { FORWARDING_PRESERVED_BIT } else { 0 }]);
        }
        value
    }

    fn read(mut reader: OctetReader) -> Option<Self> {
        let head = reader.u16()?;
        let mut preserved = BTreeMap::new();
        while let (Some(afi), Some(safi), Some(flags)) = (reader.u16(), reader.u8(), reader.u8()) {
            if let Some(family) = Family::of_identifiers(afi, safi) {
                preserved.insert(family, flags & FORWARDING_PRESERVED_BIT != 0);
            }
        }
        let (restarting, time) = (head & RESTART_STATE_BIT != 0, head & MAX_RESTART_SECONDS);
        Some(Self { restarting, time, preserved })
    }
}
