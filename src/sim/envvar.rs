//! The environment of CUDA processes, read as the recordings show the driver to read it.

use super::profile::{Gpu, Part};

/// A client's own memory limit for one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Bytes(u64),
    /// `512K` and the like: 130461 GiB seem free and every allocation fails.
    Nonsense,
}

/// The devices that `CUDA_VISIBLE_DEVICES` leaves of `all`, by position in `all`.
///
/// Indices count within `all`, UUIDs may be cut short where they stay unique; the list ends at the first entry
/// that names nothing, and an entry that comes twice leaves nothing at all.
///
/// Of MIG instances a process sees one alone, the first, and that only if it comes before every GPU (documented).
pub(crate) fn visible(all: &[&Gpu], variable: Option<&str>) -> Vec<usize> {
    let is_instance = |index: &usize| matches!(all[*index].part, Some(Part::Mig { .. }));
    let mut seen = Vec::new();
    for word in variable.into_iter().flat_map(|text| text.split(',')) {
        match position(all, word.trim()) {
            Some(index) if seen.contains(&index) => return Vec::new(),
            Some(index) => seen.push(index),
            None => break,
        }
    }
    if variable.is_none() {
        seen = (0..all.len()).collect();
    }
    if seen.first().is_some_and(is_instance) {
        seen.truncate(1);
    }
    let alone = seen.len() == 1;
    seen.retain(|index| alone || !is_instance(index));
    seen
}

/// The position that an index or a (shortened) UUID names.
pub(crate) fn position(all: &[&Gpu], word: &str) -> Option<usize> {
    if let Ok(index) = word.parse::<usize>() {
        return (index < all.len()).then_some(index);
    }
    let is_kind = word.starts_with("GPU-") || word.starts_with("MIG-");
    if !is_kind || word.len() <= "GPU-".len() {
        return None;
    }
    let mut found = (0..all.len()).filter(|&index| all[index].uuid.starts_with(word));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// The position that a limit names: nowhere is it said that one may name a MIG instance by its UUID, so none can here.
pub(crate) fn limited(all: &[&Gpu], word: &str) -> Option<usize> {
    position(all, word).filter(|_| !word.starts_with("MIG-"))
}

/// The limits of `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` by the client's own ordinals, or `None` when it voids every
/// limit, the server's too: one entry that cannot be read, or one for a device that the client cannot see.
pub(crate) fn limits(visible: &[&Gpu], variable: Option<&str>) -> Option<Vec<(usize, Limit)>> {
    let Some(text) = variable else { return Some(Vec::new()) };
    text.split(',')
        .map(|entry| {
            let (device, value) = entry.split_once('=')?;
            Some((limited(visible, device)?, limit(value)?))
        })
        .collect()
}

fn limit(value: &str) -> Option<Limit> {
    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = value.split_at(digits);
    let number: u64 = number.parse().ok()?;
    match unit.to_ascii_uppercase().as_str() {
        "G" | "GB" => Some(Limit::Bytes(number.saturating_mul(1 << 30))),
        "M" | "MB" => Some(Limit::Bytes(number.saturating_mul(1 << 20))),
        "K" | "KB" => Some(Limit::Nonsense),
        _ => None,
    }
}

/// A thread percentage, if it is one: `50%` is 50, `1e1` is 10, everything outside (0, 100] is none.
pub(crate) fn percentage(text: &str) -> Option<f64> {
    let text = text.trim_start();
    let end = (1..=text.len()).rev().find(|&end| {
        text.is_char_boundary(end)
            && text.as_bytes()[..end].iter().all(|b| b.is_ascii_digit() || b"+-.eE".contains(b))
            && text[..end].parse::<f64>().is_ok()
    })?;
    text[..end].parse().ok().filter(|value: &f64| *value > 0.0 && *value <= 100.0)
}

/// SMs that a percentage of `total` gives: even, rounded down, at least 8 (recorded at 23 values).
pub(crate) fn sms(percentage: f64, total: u32) -> u32 {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a percentage up to 100 of a count of SMs is a small positive number"
    )]
    let share = (percentage / 100.0 * f64::from(total)).floor() as u32;
    if percentage >= 100.0 { total } else { (share & !1).max(8).min(total) }
}
