//! Choices from random bytes.

/// Bytes that determine choices. After the last byte, every choice is the first one.
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        first
    }

    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub fn word(&mut self) -> u32 {
        u32::from(self.short()) | u32::from(self.short()) << 16
    }

    /// A number below `end`, which is at most 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// True for `of_256` of the 256 values of a byte.
    pub fn chance(&mut self, of_256: u8) -> bool {
        // Byte 0, the first choice, means no.
        self.byte() > 255 - of_256
    }

    pub fn choose<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub fn take(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.byte()).collect()
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }
}
