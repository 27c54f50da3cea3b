//! The end of a reply among anything that a daemon may print.

use super::find_line;
use crate::fuzz::Inputs;

const ECHO: &[u8] = b"Unknown command \"zz-0123456789abcdef-2\"";

#[test]
fn delimiters() {
    let samples = [
        "511\r\nUnknown command \"zz-0123456789abcdef-2\"\r\n",
        "Unknown command \"zz-0123456789abcdef-1\"\nUnknown command \"zz-0123456789abcdef-2\"\n0\n",
        "cut shortUnknown command \"zz-0123456789abcdef-2\"\n",
    ];
    let words = ["Unknown command \"", "zz-0123456789abcdef-2", "\"", "\r", "\n", "511"];
    Inputs::new(samples, &words).check(|output| {
        let whole = find_line(output, 0, ECHO);
        if let Some((start, end)) = whole {
            assert!(output[start..].starts_with(ECHO) && output[..end].ends_with(b"\n"));
            assert!(end - start <= ECHO.len() + 2);
        }
        // Read as it comes, searching on where the last search ended, it is found at the same place.
        let (mut searched, mut piecewise) = (0, None);
        for read in (0..output.len()).step_by(7).chain([output.len()]) {
            piecewise = find_line(&output[..read], searched, ECHO);
            if piecewise.is_some() {
                break;
            }
            searched = read.saturating_sub(ECHO.len() + 2);
        }
        assert_eq!(piecewise, whole);
        whole.is_some()
    });
}
