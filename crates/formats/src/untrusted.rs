//! JSON from a file that anyone may have written.

use linux::is_control;
use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, de};

/// The maximum that the numbers of a document add up to: 8 PiB, and the largest number that is exact in JSON. So no sum
/// of sizes and counts overflows, and neither does a thousand times such a sum.
const MAX_SUM: f64 = 9_007_199_254_740_992.0;
/// The maximum length of a string, in bytes: several times that of a command line, which is cut when it is read.
const MAX_STRING: usize = 1 << 20;

/// Parses a document whose numbers are sizes and counts. Its strings have blanks instead of control characters, since
/// they are printed on terminals.
pub(crate) fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, String> {
    parse_up_to(MAX_SUM, json)
}

/// Parses a document that also has addresses, as [`parse`] does. Sums of its numbers may overflow.
pub(crate) fn parse_addresses<T: DeserializeOwned>(json: &[u8]) -> Result<T, String> {
    parse_up_to(f64::INFINITY, json)
}

fn parse_up_to<T: DeserializeOwned>(max_sum: f64, json: &[u8]) -> Result<T, String> {
    let json = str::from_utf8(json).map_err(|_| "it is not UTF-8")?;
    let mut left = max_sum;
    let mut values = serde_json::Deserializer::from_str(json);
    Values(&mut left).deserialize(&mut values).map_err(|error| error.to_string())?;
    serde_json::from_str(&without_controls(json)).map_err(|error| error.to_string())
}

/// Replaces control characters by blanks, whether they are escaped or not. In valid JSON, only strings have backslashes.
fn without_controls(json: &str) -> String {
    let mut clean = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(place) = rest.find(|it| it == '\\' || is_control(it)) {
        let (before, special) = rest.split_at(place);
        clean.push_str(before);
        let (replacement, bytes) = match escape(special) {
            Some((char, bytes)) if !is_control(char) => (&special[..bytes], bytes),
            Some((_, bytes)) => (" ", bytes),
            None if special.starts_with('\\') => ("\\", 1),
            None => (" ", special.chars().next().map_or(1, char::len_utf8)),
        };
        clean.push_str(replacement);
        rest = &special[bytes..];
    }
    clean + rest
}

/// Escapes the control characters in JSON: it may be printed on a terminal, and JSON itself requires that only for
/// some of them.
pub(crate) fn escape_controls(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for char in json.chars() {
        if char != '\n' && is_control(char) {
            let mut units = [0; 2];
            let units = char.encode_utf16(&mut units);
            escaped.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            escaped.push(char);
        }
    }
    escaped
}

/// Returns the character that the escape sequence at the beginning of `json` stands for, and the length of the sequence;
/// `None` if there is no valid one.
fn escape(json: &str) -> Option<(char, usize)> {
    let unit = |at: usize| {
        let digits = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    Some(match json.as_bytes().get(..2)? {
        b"\\u" => {
            let units = [unit(0)?, unit(6).unwrap_or_default()];
            let char = char::decode_utf16(units).next()?.ok()?;
            (char, 6 * char.len_utf16())
        }
        b"\\n" | b"\\r" | b"\\t" | b"\\b" | b"\\f" => ('\n', 2),
        &[b'\\', char] if char.is_ascii() => (char.into(), 2),
        _ => return None,
    })
}

/// Checks the values of a document: the length of strings, and the sum of the numbers. It has what is left for numbers.
struct Values<'a>(&'a mut f64);

impl Values<'_> {
    fn add<E: de::Error>(self, number: f64) -> Result<(), E> {
        *self.0 -= number.abs();
        if *self.0 >= 0.0 { Ok(()) } else { Err(E::custom("the numbers are too large")) }
    }
}

impl<'de> DeserializeSeed<'de> for Values<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Values<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<(), E> {
        self.add(number as f64)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<(), E> {
        self.add(number as f64)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<(), E> {
        self.add(number)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        if text.len() <= MAX_STRING { Ok(()) } else { Err(E::custom("a string is too long")) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        while values.next_element_seed(Values(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        while values.next_key::<IgnoredAny>()?.is_some() {
            values.next_value_seed(Values(self.0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn strings_of_a_file_move_no_cursor_and_begin_no_line() {
        let hostile =
            "a\n\r\t\u{8}\u{c}\u{1b}]0;b\u{7f}\u{9b}\u{202e}\u{2028}\u{200b}\u{e0041}\\n\"ä😀";
        let clean = "a      ]0;b      \\n\"ä😀";
        let document = json!({ "key\u{1b}": [hostile] });
        let as_is = document.to_string();
        let escaped: String = hostile.encode_utf16().map(|unit| format!("\\u{unit:04X}")).collect();
        for json in [as_is, format!("{{\"key\\u001b\": [\"{escaped}\"]}}")] {
            assert_eq!(parse::<Value>(json.as_bytes()), Ok(json!({ "key ": [clean] })), "{json}");
        }
    }

    #[test]
    fn control_characters_in_json_are_escaped_and_come_back() {
        let hostile = "\n\u{1b}\u{7f}\u{9b}\u{202e}\u{2028}\u{e0041}ä😀";
        let json = serde_json::to_string_pretty(&json!({ "a": hostile })).unwrap();
        let escaped = escape_controls(&json);
        assert!(!escaped.contains(|it| it != '\n' && is_control(it)), "{escaped}");
        assert_eq!(serde_json::from_str::<Value>(&escaped).unwrap(), json!({ "a": hostile }));
    }

    #[test]
    fn numbers_whose_sum_could_overflow_are_an_error() {
        let sum =
            |numbers: &[u64]| parse::<Value>(json!({ "a": [numbers] }).to_string().as_bytes());
        assert!(sum(&[1 << 52, 1 << 52]).is_ok());
        assert!(sum(&[1 << 52, 1 << 52, 2]).unwrap_err().contains("too large"));
        assert!(sum(&[u64::MAX]).is_err());
        assert!(parse::<Value>(b"[-1e300]").is_err());
        assert!(parse::<Value>(b"[1e999]").is_err());
        let long = json!("a".repeat(MAX_STRING + 1)).to_string();
        assert!(parse::<Value>(long.as_bytes()).unwrap_err().contains("too long"));
    }

    proptest! {
        #[test]
        fn plain_text_is_unchanged(text in "[^\\pC\\pZ]{0,40}") {
            let json = json!({ "a": text }).to_string();
            prop_assert_eq!(parse::<Value>(json.as_bytes()), Ok(json!({ "a": text })));
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = without_controls(&text);
            let _ = parse::<Value>(text.as_bytes());
        }
    }
}
