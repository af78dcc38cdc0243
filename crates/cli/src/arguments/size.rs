//! Sizes in arguments.

/// Parses a size such as `50MiB`, `1.5GiB` or `1000000`. `50M` and `50MB` are binary, too, as in all output of rbloat.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    parse_size::Config::new()
        .with_binary()
        .parse_size(text)
        .map_err(|error| format!("{error}; write a size as 50MiB or 2GiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        for (text, bytes) in [("50MiB", 50 << 20), ("50M", 50 << 20), ("1.5GiB", 3 << 29), ("7", 7)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "much", "-1", "99999999999999999999"] {
            assert!(parse_size(text).unwrap_err().ends_with("write a size as 50MiB or 2GiB"));
        }
    }
}
