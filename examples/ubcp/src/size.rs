//! SIZE arguments: `64K`, `4MiB`, `1G`, `4096`. Units are binary whatever their spelling, as
//! in `dd` and `fio`: a window is never a power of ten.

/// Parses a size in bytes.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    const EXAMPLES: &str = "write it like 4096, 64K, 4MiB or 1G";
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("a size begins with a whole number; {EXAMPLES}"));
    }
    let shift = shift(unit.trim_start())
        .ok_or_else(|| format!("{:?} is no unit of size; {EXAMPLES}", unit.trim_start()))?;
    let too_large = || format!("more than 16 EiB cannot be addressed; {EXAMPLES}");
    let number: u64 = number.parse().map_err(|_overflow| too_large())?;
    number.checked_mul(1 << shift).ok_or_else(too_large)
}

/// The power of two that a unit stands for: nothing, `B`, or a prefix with or without `B`
/// or `iB`, in either case.
fn shift(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_lowercase();
    if unit.is_empty() || unit == "b" {
        return Some(0);
    }
    let (prefix, rest) = unit.split_at_checked(1)?;
    let power = "kmgtpe".find(prefix)?;
    matches!(rest, "" | "b" | "ib").then_some(10 * (u32::try_from(power).ok()? + 1))
}

/// A size for people: binary units, one decimal where it says something.
#[expect(
    clippy::cast_precision_loss,
    reason = "three digits of the number are shown"
)]
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if (value - value.round()).abs() < 1e-9 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::{human, parse};

    #[test]
    fn units_are_binary() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("64KB", 64 << 10),
            ("4MiB", 4 << 20),
            ("4 mib", 4 << 20),
            ("1G", 1 << 30),
            ("2TiB", 2 << 40),
            ("7b", 7),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_says_how_to_write_one() {
        for text in [
            "",
            "K",
            "-1",
            "1.5G",
            "4X",
            "4i",
            "4iB",
            "4MM",
            "16E",
            "99999999999999999999",
            "4 4",
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains("4MiB"), "{text}: {error}");
        }
    }

    #[test]
    fn people_read_short_numbers() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (4 << 20, "4 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
