//! The driver that a program's file names.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// The largest file that is read; the programs have 50 KB, and a daemon's start waits for it.
const MOST: u64 = 1 << 20;

/// The driver that the file of a control program names, as `535.261.03`: programs from driver 535 on hold it as one string (seen in
/// those of Debian's packages for 535, 550 and 555, and not in that for 470). `None` where there is none, or more than one.
pub(super) fn driver(path: &Path) -> Option<String> {
    let file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|stat| stat.len() <= MOST))?;
    let mut bytes = Vec::new();
    file.take(MOST).read_to_end(&mut bytes).ok()?;
    named(&bytes)
}

fn named(bytes: &[u8]) -> Option<String> {
    let strings = bytes.split(|byte| *byte == 0).filter(|string| is_driver_version(string));
    let mut versions: Vec<&[u8]> = strings.collect();
    versions.dedup();
    let [version] = versions[..] else { return None };
    String::from_utf8(version.to_vec()).ok()
}

/// Returns true for a driver's version: three digits, then two or three, and mostly two more.
fn is_driver_version(string: &[u8]) -> bool {
    let parts: Vec<&[u8]> = string.split(|byte| *byte == b'.').collect();
    let digits = |part: &[u8], count: std::ops::RangeInclusive<usize>| {
        count.contains(&part.len()) && part.iter().all(u8::is_ascii_digit)
    };
    match parts[..] {
        [branch, minor] => digits(branch, 3..=3) && digits(minor, 2..=3),
        [branch, minor, patch] => digits(branch, 3..=3) && digits(minor, 2..=3) && digits(patch, 2..=3),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_version_string_names_the_driver() {
        let driver = |strings: &[&str]| named(strings.join("\0").as_bytes());
        assert_eq!(
            driver(&["\u{7f}ELF", "GLIBC_2.2.5", "535.261.03", "quit"]).as_deref(),
            Some("535.261.03")
        );
        assert_eq!(driver(&["a", "550.90", "b"]).as_deref(), Some("550.90"));
        assert_eq!(driver(&["550.90", "550.90"]).as_deref(), Some("550.90"));
        for none in [&["535.261.03", "550.163.01"][..], &["v535.261.03"], &["127.0.0.1"], &["1.2.3"], &[]] {
            assert_eq!(driver(none), None, "{none:?}");
        }
    }
}
