//! Reads captures of tcpdump and Wireshark: pcap and pcapng.

use anyhow::{Result, bail, ensure};

/// The link-layer header: `LINKTYPE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Ethernet,
    /// None: packets begin with the IP header.
    Raw,
    /// The header of `tcpdump -i any`: its size, and the offset of the EtherType in it.
    Cooked {
        header: usize,
        ether_type: usize,
    },
}

impl Link {
    fn of(number: u16) -> Result<Self> {
        Ok(match number {
            1 => Self::Ethernet,
            12 | 14 | 101 | 228 | 229 => Self::Raw,
            113 => Self::Cooked { header: 16, ether_type: 14 },
            276 => Self::Cooked { header: 20, ether_type: 0 },
            other => bail!(
                "the capture's link type is {other}; capture with Ethernet headers, as \
                 `tcpdump -i DEVICE -w FILE` does on an Ethernet device"
            ),
        })
    }

    /// Puts a packet in an Ethernet frame.
    fn frame(self, packet: &[u8]) -> Option<Vec<u8>> {
        let (ether_type, ip) = match self {
            Self::Ethernet => return Some(packet.to_vec()),
            Self::Raw if packet.first()? >> 4 == 6 => ([0x86, 0xdd], packet),
            Self::Raw => ([0x08, 0x00], packet),
            Self::Cooked { header, ether_type } => {
                let kind = packet.get(ether_type..ether_type + 2)?;
                (kind.try_into().ok()?, packet.get(header..)?)
            }
        };
        Some([&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], &ether_type[..], ip].concat())
    }
}

/// The frames of a capture.
pub fn parse_capture(file: &[u8]) -> Result<Vec<Captured>> {
    match file {
        [0xd4, 0xc3, 0xb2, 0xa1, ..] | [0x4d, 0x3c, 0xb2, 0xa1, ..] => pcap(file, false),
        [0xa1, 0xb2, 0xc3, 0xd4, ..] | [0xa1, 0xb2, 0x3c, 0x4d, ..] => pcap(file, true),
        [0x0a, 0x0d, 0x0d, 0x0a, ..] => pcapng(file),
        _ => bail!("this is neither a pcap nor a pcapng file"),
    }
}

/// A frame of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    pub bytes: Vec<u8>,
    /// Its length on the wire, if it was captured only in part.
    pub cut_from: Option<u32>,
    /// Its link-layer header is not from the network.
    pub is_made: bool,
}

impl Captured {
    /// A frame that no machine has sent.
    pub fn made(bytes: Vec<u8>) -> Self {
        Self { bytes, cut_from: None, is_made: true }
    }
}

/// Reads numbers in the file's byte order.
#[derive(Clone, Copy)]
struct NumberReader {
    big: bool,
}

impl NumberReader {
    fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let octets = bytes.get(at..at + 2)?.try_into().ok()?;
        Some(if self.big { u16::from_be_bytes(octets) } else { u16::from_le_bytes(octets) })
    }

    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let octets = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(if self.big { u32::from_be_bytes(octets) } else { u32::from_le_bytes(octets) })
    }
}

fn captured(link: Link, packet: &[u8], length: u32) -> Option<Captured> {
    let cut = length as usize > packet.len();
    let bytes = link.frame(packet)?;
    let is_made = !matches!(link, Link::Ethernet);
    Some(Captured { bytes, cut_from: cut.then_some(length), is_made })
}

/// <https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcap/>
fn pcap(file: &[u8], big: bool) -> Result<Vec<Captured>> {
    const FILE_HEADER: usize = 24;
    const LINK: usize = 20;
    const HEADER: usize = 16;
    let numbers = NumberReader { big };
    let Some(link) = numbers.u32(file, LINK) else { bail!("the capture ends in its header") };
    // The upper bits have another meaning.
    let link = Link::of(link as u16)?;
    let mut frames = Vec::new();
    let mut rest = &file[FILE_HEADER..];
    while let (Some(kept), Some(length)) = (numbers.u32(rest, 8), numbers.u32(rest, 12)) {
        // An interrupted capture may end within a packet.
        let Some(packet) = rest.get(HEADER..HEADER + kept as usize) else { break };
        frames.extend(captured(link, packet, length));
        rest = &rest[HEADER + kept as usize..];
    }
    Ok(frames)
}

/// <https://datatracker.ietf.org/doc/draft-ietf-opsawg-pcapng/>
fn pcapng(file: &[u8]) -> Result<Vec<Captured>> {
    const SECTION: u32 = 0x0a0d_0d0a;
    const INTERFACE: u32 = 1;
    const SIMPLE: u32 = 3;
    const ENHANCED: u32 = 6;
    /// A block's type and length before its body, and the length again after it.
    const AROUND: usize = 12;
    let mut numbers = NumberReader { big: false };
    let mut links = Vec::new();
    let mut frames = Vec::new();
    let mut rest = file;
    while rest.len() >= AROUND {
        if rest.starts_with(&SECTION.to_be_bytes()) {
            numbers = NumberReader { big: rest.get(8..12) == Some(&[0x1a, 0x2b, 0x3c, 0x4d]) };
            links.clear();
        }
        let (Some(kind), Some(length)) = (numbers.u32(rest, 0), numbers.u32(rest, 4)) else {
            break;
        };
        let length = length as usize;
        ensure!(
            length >= AROUND && length.is_multiple_of(4),
            "a block of {length} bytes is not valid"
        );
        let Some(block) = rest.get(..length) else { break };
        let body = &block[8..length - 4];
        match kind {
            INTERFACE => links.push(numbers.u16(body, 0).map(Link::of)),
            ENHANCED => {
                let (Some(interface), Some(kept), Some(length)) =
                    (numbers.u32(body, 0), numbers.u32(body, 12), numbers.u32(body, 16))
                else {
                    break;
                };
                let Some(packet) = body.get(20..20 + kept as usize) else { break };
                frames.extend(captured(of(&mut links, interface)?, packet, length));
            }
            SIMPLE => {
                let Some(length) = numbers.u32(body, 0) else { break };
                let packet = &body[4..];
                let packet = packet.get(..length as usize).unwrap_or(packet);
                frames.extend(captured(of(&mut links, 0)?, packet, length));
            }
            _ => {}
        }
        rest = &rest[length..];
    }
    Ok(frames)
}

/// The link type of an interface. An unsupported one is an error only if packets use it.
fn of(links: &mut [Option<Result<Link>>], interface: u32) -> Result<Link> {
    match links.get_mut(interface as usize) {
        Some(Some(Ok(link))) => Ok(*link),
        Some(other) => match other.take() {
            Some(Err(error)) => Err(error),
            _ => bail!("the capture does not say what interface {interface} is"),
        },
        None => bail!("the capture does not say what interface {interface} is"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: u32, big: bool) -> [u8; 4] {
        if big { number.to_be_bytes() } else { number.to_le_bytes() }
    }

    fn pcap_of(link: u32, packets: &[(&[u8], u32)], big: bool) -> Vec<u8> {
        let mut file = number(0xa1b2_c3d4, big).to_vec();
        file.extend([0; 16]);
        file.extend(number(link, big));
        for (packet, length) in packets {
            file.extend([0; 8]);
            file.extend(number(packet.len() as u32, big));
            file.extend(number(*length, big));
            file.extend(*packet);
        }
        file
    }

    fn block(kind: u32, body: &[u8], big: bool) -> Vec<u8> {
        let mut padded = body.to_vec();
        padded.resize(body.len().next_multiple_of(4), 0);
        let length = number(padded.len() as u32 + 12, big);
        [&number(kind, big)[..], &length, &padded, &length].concat()
    }

    fn pcapng_of(link: u16, packets: &[(&[u8], u32)], big: bool) -> Vec<u8> {
        let section = [&number(0x1a2b_3c4d, big)[..], &[0; 12]].concat();
        let link = if big { link.to_be_bytes() } else { link.to_le_bytes() };
        let mut file = block(0x0a0d_0d0a, &section, big);
        file.extend(block(1, &[&link[..], &[0; 6]].concat(), big));
        for (packet, length) in packets {
            let head = [[0; 4], [0; 4], [0; 4], number(packet.len() as u32, big)].concat();
            let body = [&head[..], &number(*length, big), packet].concat();
            file.extend(block(6, &body, big));
        }
        file
    }

    #[test]
    fn frames_come_out_as_they_went_in() {
        let packets: [(&[u8], u32); 2] = [(&[1; 15], 15), (&[2; 20], 90)];
        let expected = [
            Captured { bytes: vec![1; 15], cut_from: None, is_made: false },
            Captured { bytes: vec![2; 20], cut_from: Some(90), is_made: false },
        ];
        for big in [false, true] {
            assert_eq!(parse_capture(&pcap_of(1, &packets, big)).expect("pcap"), expected);
            assert_eq!(parse_capture(&pcapng_of(1, &packets, big)).expect("pcapng"), expected);
        }
    }

    #[test]
    fn captures_without_ethernet_get_a_header_of_it() {
        let ethernet = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        let v6: &[u8] = &[0x60, 9, 9];
        let cooked = [&[0; 14][..], &[0x08, 0x00], &[0x45, 8]].concat();
        for (link, packet, rest) in
            [(101, v6, &[0x86, 0xdd, 0x60, 9, 9][..]), (113, &cooked, &[0x08, 0x00, 0x45, 8])]
        {
            let found = parse_capture(&pcap_of(link, &[(packet, packet.len() as u32)], false));
            let expected = [&ethernet[..], rest].concat();
            assert_eq!(found.expect("pcap"), [Captured::made(expected)]);
        }
    }

    #[test]
    fn a_capture_that_breaks_off_ends_there_and_nothing_panics() {
        let packets: [(&[u8], u32); 2] = [(&[1; 16], 16), (&[2; 16], 16)];
        for file in [pcap_of(1, &packets, false), pcapng_of(1, &packets, true)] {
            for length in 0..file.len() {
                let found = parse_capture(&file[..length]).unwrap_or_default();
                assert!(found.len() < 2, "{length}");
            }
        }
        assert!(parse_capture(b"GET / HTTP/1.1").is_err());
        let error = parse_capture(&pcap_of(147, &packets, false)).unwrap_err().to_string();
        assert!(error.contains("link type is 147"), "{error}");
    }
}
