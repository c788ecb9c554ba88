//! A set of ports, as the map `RESERVED_PORTS` holds it: bit p % 64 of word p / 64 is port p.

use std::fmt;
use std::ops::RangeInclusive;

const PORT_SET_WORDS: usize = 1 << 10;

#[derive(Clone, PartialEq, Eq)]
pub struct PortSet(Box<[u64; PORT_SET_WORDS]>);

impl PortSet {
    pub fn add(&mut self, port: u16) {
        self.0[usize::from(port / 64)] |= 1 << (port % 64);
    }

    pub(crate) fn add_range(&mut self, ports: &RangeInclusive<u16>) {
        ports.clone().for_each(|port| self.add(port));
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(word, other)| *word |= other);
    }

    pub fn contains(&self, port: u16) -> bool {
        self.0[usize::from(port / 64)] & 1 << (port % 64) != 0
    }

    pub fn count_within(&self, ports: &RangeInclusive<u16>) -> u32 {
        ports.clone().filter(|port| self.contains(*port)).count() as u32
    }

    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..=u16::MAX).filter(|port| self.contains(*port))
    }

    pub fn words_mut(&mut self) -> &mut [u64; PORT_SET_WORDS] {
        &mut self.0
    }

    pub fn words(&self) -> &[u64; PORT_SET_WORDS] {
        &self.0
    }
}

impl Default for PortSet {
    fn default() -> Self {
        Self(Box::new([0; PORT_SET_WORDS]))
    }
}

impl FromIterator<u16> for PortSet {
    fn from_iter<I: IntoIterator<Item = u16>>(ports: I) -> Self {
        let mut set = Self::default();
        ports.into_iter().for_each(|port| set.add(port));
        set
    }
}

impl fmt::Debug for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_has_a_bit_of_its_own() {
        let ports: PortSet = [0, 63, 64, 65535].into_iter().collect();
        assert_eq!(ports.words()[0], 1 | 1 << 63);
        assert_eq!((ports.words()[1], ports.words()[1023]), (1, 1 << 63));
        assert_eq!(ports.iter().collect::<Vec<_>>(), [0, 63, 64, 65535]);
        assert_eq!(ports.count_within(&(1..=64)), 2);
    }
}
