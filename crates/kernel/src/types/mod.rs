//! Reads the kernel's types from its BTF, as far as needed to find a function and a member of a
//! structure.
//! <https://docs.kernel.org/bpf/btf.html>

use lb_network::bytes::{read_u16_at, read_u32_at};

/// Where the kernel exports its types.
pub const TYPES: &str = "/sys/kernel/btf/vmlinux";

/// All types. The first one has id 1.
pub struct Types<'a> {
    types: Vec<Type<'a>>,
    strings: &'a [u8],
}

#[derive(Clone, Copy)]
struct Type<'a> {
    name: u32,
    information: u32,
    /// The data after the fixed part: members, if the type has any.
    rest: &'a [u8],
}

const MAGIC: u16 = 0xeb9f;

const STRUCT: u32 = 4;
const UNION: u32 = 5;
const FUNCTION: u32 = 12;

/// Size of a member's description: name, type, offset in bits.
const MEMBER: usize = 12;

impl<'a> Types<'a> {
    /// `None` if it is not BTF in this machine's byte order.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let magic = read_u16_at(data, 0)?;
        let [header, type_offset, type_length, string_offset, string_length] =
            [4, 8, 12, 16, 20].map(|at| read_u32_at(data, at).map(|word| word as usize));
        let part = |offset: Option<usize>, length: Option<usize>| {
            data.get(header?..)?.get(offset?..)?.get(..length?)
        };
        let mut descriptions = part(type_offset, type_length)?;
        let strings = part(string_offset, string_length)?;
        if magic != MAGIC {
            return None;
        }
        let mut types = Vec::new();
        while !descriptions.is_empty() {
            let (name, information) =
                (read_u32_at(descriptions, 0)?, read_u32_at(descriptions, 4)?);
            let (_, follows) = descriptions.split_at_checked(12)?;
            let (rest, next) = follows.split_at_checked(rest_length(information)?)?;
            types.push(Type { name, information, rest });
            descriptions = next;
        }
        Some(Self { types, strings })
    }

    /// The id of a function.
    pub fn function(&self, name: &str) -> Option<u32> {
        let found =
            self.types.iter().position(|it| it.kind() == FUNCTION && self.is(it.name, name))?;
        u32::try_from(found + 1).ok()
    }

    /// Offset in bits of a structure's member, also of one in an anonymous structure within it.
    pub(crate) fn bit_of_member(&self, structure: &str, member: &str) -> Option<u32> {
        let mut named =
            self.types.iter().filter(|it| it.kind() == STRUCT && self.is(it.name, structure));
        named.find_map(|it| self.bit_within(it, member, 0))
    }

    fn bit_within(&self, structure: &Type, wanted: &str, depth: u32) -> Option<u32> {
        // Deeper nesting occurs only in corrupt files.
        if depth > 16 || !matches!(structure.kind(), STRUCT | UNION) {
            return None;
        }
        structure.rest.chunks_exact(MEMBER).find_map(|member| {
            let (name, of, offset) =
                (read_u32_at(member, 0)?, read_u32_at(member, 4)?, read_u32_at(member, 8)?);
            let bit = if structure.has_bit_fields() { offset & 0xff_ffff } else { offset };
            if self.is(name, wanted) {
                return Some(bit);
            }
            let inner = self.types.get((of as usize).checked_sub(1)?).filter(|_| name == 0)?;
            bit.checked_add(self.bit_within(inner, wanted, depth + 1)?)
        })
    }

    fn is(&self, name: u32, wanted: &str) -> bool {
        let text = self.strings.get(name as usize..).unwrap_or_default();
        text.strip_prefix(wanted.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }
}

impl Type<'_> {
    fn kind(&self) -> u32 {
        kind(self.information)
    }

    /// If so, the upper octet of a member's offset is the size of the bit field.
    fn has_bit_fields(&self) -> bool {
        self.information >> 31 == 1
    }
}

fn kind(information: u32) -> u32 {
    (information >> 24) & 0x1f
}

/// Octets after the fixed part of a type; `None` if the kind is unknown.
fn rest_length(information: u32) -> Option<usize> {
    let count = (information & 0xffff) as usize;
    Some(match kind(information) {
        // Pointers, forward declarations, typedefs, qualifiers, functions, floats, type tags.
        2 | 7..=12 | 16 | 18 => 0,
        // Integers, variables, declaration tags.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Members of structures and unions, variables of data sections, 64-bit enumerators.
        STRUCT | UNION | 15 | 19 => 12 * count,
        6 | 13 => 8 * count,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
