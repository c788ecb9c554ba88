//! Reads numbers in this machine's byte order, as the kernel writes them, at an offset; `None`
//! beyond the end.

pub fn read_u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub fn read_u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub fn read_u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_only_where_it_is_whole() {
        let bytes = 0x0102_0304_0506_0708u64.to_ne_bytes();
        assert_eq!(read_u64_at(&bytes, 0), Some(0x0102_0304_0506_0708));
        assert_eq!(read_u32_at(&bytes, 4).map(u32::to_ne_bytes), bytes.last_chunk().copied());
        let readable = |at| {
            let [short, long, longest] = [
                read_u16_at(&bytes, at).is_some(),
                read_u32_at(&bytes, at).is_some(),
                read_u64_at(&bytes, at).is_some(),
            ];
            (short, long, longest)
        };
        assert_eq!(readable(0), (true, true, true));
        assert_eq!(readable(1), (true, true, false));
        assert_eq!(readable(5), (true, false, false));
        assert_eq!(readable(7), (false, false, false));
        assert_eq!(readable(usize::MAX), (false, false, false));
    }
}
