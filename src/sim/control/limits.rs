//! The grammar of device memory limits in commands, misreadings included (recording 03).

/// Bytes that MPS takes a value for, 0 when it takes it for no limit.
///
/// The number is read as C's `strtoull` does, so `-1` is the largest one, and `G` or `g` right after it makes
/// it gibibytes. Every other unit is mebibytes, whatever it says, and the product wraps.
pub(super) fn parse(value: &str) -> u64 {
    let (negative, rest) = match value.as_bytes().first() {
        Some(b'-') => (true, &value[1..]),
        Some(b'+') => (false, &value[1..]),
        _ => (false, value),
    };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let number = match rest[..digits].parse::<u64>() {
        Ok(number) if negative => number.wrapping_neg(),
        Ok(number) => number,
        Err(_) if digits > 0 => u64::MAX,
        Err(_) => 0,
    };
    let shift = if rest[digits..].starts_with(['G', 'g']) { 30 } else { 20 };
    number.wrapping_shl(shift)
}

/// A limit as the getters print it.
///
/// From one gibibyte on, whole gibibytes are printed and the rest is dropped (recording 12).
pub(super) fn show(bytes: u64) -> String {
    if bytes >= 1 << 30 { format!("{}G", bytes >> 30) } else { format!("{}M", bytes >> 20) }
}
