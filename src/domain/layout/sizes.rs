//! A layout as one line: `7 + 5 + 2 + 1`, or with names `web 7 + batch 5 + 2`; the numbers are chunks of one GPU.

use super::{AddStep, InvalidValue};
use crate::PartitionName;

/// Reads a line of sizes as steps for one GPU. Partitions without a name are numbered: `part_1`, `part_2`.
pub fn parse(line: &str) -> Result<Vec<AddStep>, InvalidValue> {
    let parts: Vec<&str> = line.split('+').map(str::trim).collect();
    parts.iter().enumerate().map(|(at, part)| step(part, at + 1)).collect()
}

fn step(part: &str, number: usize) -> Result<AddStep, InvalidValue> {
    let shown: String = part.chars().take(40).collect();
    let refused = || {
        InvalidValue(format!(
            "{shown:?} is not a size: give chunks, joined by +, for example 7 + 5 + 2 or web 7 + batch 5"
        ))
    };
    let (name, chunks) = match part.split_once(char::is_whitespace) {
        Some((name, chunks)) => (name.to_owned(), chunks.trim()),
        None => (format!("part_{number}"), part),
    };
    let chunks = chunks.parse().ok().filter(|chunks| *chunks > 0).ok_or_else(refused)?;
    let partition = PartitionName::parse(&name)?;
    Ok(AddStep { gpu: 0, partition, chunks, tenants: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Vec<(String, u32)> {
        parse(line).expect(line).into_iter().map(|step| (step.partition.to_string(), step.chunks)).collect()
    }

    fn named(sizes: &[(&str, u32)]) -> Vec<(String, u32)> {
        sizes.iter().map(|(name, chunks)| ((*name).to_owned(), *chunks)).collect()
    }

    #[test]
    fn sizes_are_partitions_in_order() {
        assert_eq!(read("7 + 5 + 2"), named(&[("part_1", 7), ("part_2", 5), ("part_3", 2)]));
        assert_eq!(read("15"), named(&[("part_1", 15)]));
        assert_eq!(read(" web 7+batch  5 +1 "), named(&[("web", 7), ("batch", 5), ("part_3", 1)]));
    }

    #[test]
    fn other_lines_are_refused() {
        for line in ["", "7 +", "seven", "0 + 1", "-1", "web", "7 5", "Web 7", "1.5", "99999999999"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
