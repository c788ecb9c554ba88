//! Leaves the source lines out of the BPF object. Only the verifier's log of a refused program shows them, and reading
//! them was most of the time and memory of reading the object: aya copies all lines of a section for each function in it.

use lb_network::bytes::read_u16_at;
use object::{File, Object as _, ObjectSection as _};

/// The section with the lines, and the types of functions.
const SECTION: &str = ".BTF.ext";
/// The start of this section.
const MAGIC: u16 = 0xeb9f;
/// Where its header states the length of the lines, and how long that number is.
const LENGTH: std::ops::Range<usize> = 20..24;

/// The object as if it had been compiled without source lines.
pub(crate) fn without_lines(mut object: Vec<u8>) -> Vec<u8> {
    if let Some(start) = section(&object)
        && let Some(length) = object.get_mut(start + LENGTH.start..start + LENGTH.end)
    {
        length.fill(0);
    }
    object
}

fn section(object: &[u8]) -> Option<usize> {
    let (start, _) = File::parse(object).ok()?.section_by_name(SECTION)?.file_range()?;
    let start = usize::try_from(start).ok()?;
    (read_u16_at(object, start)? == MAGIC).then_some(start)
}

#[cfg(test)]
mod tests {
    use aya_obj::Object;

    use super::*;
    use crate::object::OBJECT;

    /// How many lines and types of functions the programs have.
    fn counts(object: &[u8]) -> (usize, usize) {
        let object = Object::parse(object).expect("an object");
        let functions = object.functions.values();
        functions.fold((0, 0), |(lines, types), function| {
            (lines + function.line_info.len(), types + function.func_info.len())
        })
    }

    #[test]
    fn only_the_lines_are_left_out() {
        // Without the BPF toolchain there is no object.
        if OBJECT.is_empty() {
            return;
        }
        let lean = without_lines(OBJECT.to_vec());
        assert_eq!(lean.len(), OBJECT.len());
        let ((lines, types), (no_lines, same_types)) = (counts(OBJECT), counts(&lean));
        assert!(lines > 0 && types > 0);
        assert_eq!((no_lines, same_types), (0, types));
    }

    #[test]
    fn what_is_no_object_stays_as_it_is() {
        for bytes in [&b""[..], b"no object", &[0x7f, b'E', b'L', b'F']] {
            assert_eq!(without_lines(bytes.to_vec()), bytes);
        }
    }
}
