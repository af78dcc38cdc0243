use std::fmt;

/// A number of bytes, shown in the largest binary unit that fits: `4.0 KiB`, `680.2 MiB`, `12.5 GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            bytes if bytes < 1000 => format!("{bytes} B"),
            bytes if bytes < 1000 << 10 => format!("{:.1} KiB", bytes as f64 / 1024.0),
            bytes if bytes < 10_000 << 20 => {
                format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
            }
            bytes => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
        };
        f.pad(&text)
    }
}

/// A count with commas between groups of three digits: `1,244,401`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::new();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

/// Returns `part` of `whole` in percent, and 0 if `whole` is 0.
#[must_use]
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_read_as_people_write_them() {
        let sizes = [0, 999, 4096, 1_000_000, 1_372_585_984, 13 << 30];
        let texts = sizes.map(|bytes| Size(bytes).to_string());
        assert_eq!(texts, ["0 B", "999 B", "4.0 KiB", "976.6 KiB", "1309.0 MiB", "13.0 GiB"]);
        let counts = [0, 999, 1000, 1_244_401].map(|count| Count(count).to_string());
        assert_eq!(counts, ["0", "999", "1,000", "1,244,401"]);
        assert_eq!(format!("{:>8}", Count(1000)), "   1,000");
    }
}
