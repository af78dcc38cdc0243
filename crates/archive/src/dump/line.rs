//! A line of JSON, written field by field: there are millions, and that of a large array has millions of references.

use std::io::{self, Write};

use linux::Address;

/// The bytes that are kept before they are written, of one line or of many.
const CHUNK: usize = 1 << 18;

/// A JSON object that is being written. Its keys are constants without characters that JSON escapes.
pub(super) struct Line<'a> {
    out: &'a mut dyn Write,
    bytes: Vec<u8>,
    has_fields: bool,
    /// The first error, which the end of the line returns.
    written: io::Result<()>,
}

const DIGITS: &[u8; 16] = b"0123456789abcdef";

impl<'a> Line<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, bytes: Vec::new(), has_fields: false, written: Ok(()) }
    }

    pub(super) fn begin(&mut self) {
        self.bytes.push(b'{');
        self.has_fields = false;
    }

    pub(super) fn end(&mut self) -> io::Result<()> {
        self.bytes.extend(b"}\n");
        self.write_chunk();
        std::mem::replace(&mut self.written, Ok(()))
    }

    /// Writes what is left after the last line.
    pub(super) fn finish(self) -> io::Result<()> {
        self.out.write_all(&self.bytes)?;
        self.out.flush()
    }

    /// Writes the bytes if there are many.
    fn write_chunk(&mut self) {
        if self.bytes.len() >= CHUNK {
            if self.written.is_ok() {
                self.written = self.out.write_all(&self.bytes);
            }
            self.bytes.clear();
        }
    }

    fn key(&mut self, key: &str) {
        if self.has_fields {
            self.bytes.extend(b", ");
        }
        self.has_fields = true;
        self.bytes.push(b'"');
        self.bytes.extend(key.as_bytes());
        self.bytes.extend(b"\":");
    }

    /// A field that is there only if it is true.
    pub(super) fn flag(&mut self, key: &str, is_so: bool) {
        if is_so {
            self.key(key);
            self.bytes.extend(b"true");
        }
    }

    pub(super) fn number(&mut self, key: &str, number: u64) {
        self.key(key);
        self.decimal(number);
    }

    pub(super) fn signed(&mut self, key: &str, number: i32) {
        self.key(key);
        if number < 0 {
            self.bytes.push(b'-');
        }
        self.decimal(number.unsigned_abs().into());
    }

    pub(super) fn text(&mut self, key: &str, text: &str) {
        self.key(key);
        self.string(text);
    }

    pub(super) fn address(&mut self, key: &str, address: Address) {
        self.key(key);
        self.hexadecimal(address);
    }

    pub(super) fn addresses(&mut self, key: &str, addresses: impl Iterator<Item = Address>) {
        self.key(key);
        self.bytes.push(b'[');
        for (number, address) in addresses.enumerate() {
            if number > 0 {
                self.bytes.extend(b", ");
            }
            self.hexadecimal(address);
            self.write_chunk();
        }
        self.bytes.push(b']');
    }

    /// A field that is an object, whose fields `write` adds.
    pub(super) fn object(&mut self, key: &str, write: impl FnOnce(&mut Self)) {
        self.key(key);
        self.bytes.push(b'{');
        self.has_fields = false;
        write(self);
        self.bytes.push(b'}');
        self.has_fields = true;
    }

    fn decimal(&mut self, mut number: u64) {
        let mut digits = [0; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.bytes.extend(&digits[first..]);
    }

    fn hexadecimal(&mut self, Address(address): Address) {
        let mut digits = *b"0x0000000000000000";
        let count = (u64::BITS - address.leading_zeros()).div_ceil(4).max(1) as usize;
        for at in 0..count {
            digits[1 + count - at] = DIGITS[(address >> (4 * at) & 15) as usize];
        }
        self.bytes.push(b'"');
        self.bytes.extend(&digits[..2 + count]);
        self.bytes.push(b'"');
    }

    fn string(&mut self, text: &str) {
        self.bytes.push(b'"');
        for char in text.chars() {
            match char {
                '"' | '\\' => self.bytes.extend([b'\\', char as u8]),
                '\n' => self.bytes.extend(b"\\n"),
                // A dump may be shown on a terminal.
                _ if linux::is_control(char) => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        let digits = [12, 8, 4, 0].map(|at| DIGITS[usize::from(*unit >> at & 15)]);
                        self.bytes.extend(b"\\u");
                        self.bytes.extend(digits);
                    }
                }
                _ if char.is_ascii() => self.bytes.push(char as u8),
                _ => self.bytes.extend(char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
            self.write_chunk();
        }
        self.bytes.push(b'"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_json_whatever_its_texts_are() {
        for text in ["", "a\"b\\c\n\u{1b}[2J\0\u{7f}ä\u{202e}"] {
            let mut written = Vec::new();
            let mut line = Line::new(&mut written);
            line.begin();
            line.flag("absent", false);
            line.text("text", text);
            line.number("least", 0);
            line.signed("closed", -1);
            line.object("inner", |line| line.number("most", u64::MAX));
            line.object("empty", |_| ());
            line.addresses("addresses", [0, 0x7f00_1234_5678].map(Address).into_iter());
            line.flag("flag", true);
            line.end().and_then(|()| line.finish()).unwrap();
            let written = str::from_utf8(&written).unwrap();
            assert!(!written.trim_end().contains(linux::is_control), "{written:?}");
            let json: serde_json::Value = serde_json::from_str(written).unwrap();
            let expected = serde_json::json!({
                "text": text, "least": 0, "closed": -1, "inner": { "most": u64::MAX }, "empty": {},
                "addresses": ["0x0", "0x7f0012345678"], "flag": true,
            });
            assert_eq!(json, expected);
        }
    }

    /// Notes the sizes of what is written to it.
    #[derive(Default)]
    struct Sizes {
        all: usize,
        largest: usize,
    }

    impl Write for Sizes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.all += bytes.len();
            self.largest = self.largest.max(bytes.len());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_long_line_is_not_kept() {
        let mut sizes = Sizes::default();
        let mut line = Line::new(&mut sizes);
        line.begin();
        line.addresses("references", std::iter::repeat_n(Address(0x7f00_1234_5678), 100_000));
        line.text("value", &"ä".repeat(1_000_000));
        line.end().and_then(|()| line.finish()).unwrap();
        assert_eq!(
            sizes.all,
            100_000 * 18 - 2 + 2_000_000 + r#"{"references":[], "value":""}"#.len() + 1
        );
        assert!(sizes.largest < CHUNK + 100, "{}", sizes.largest);
    }

    #[test]
    fn a_line_that_cannot_be_written_is_an_error() {
        let mut none: &mut [u8] = &mut [];
        let mut line = Line::new(&mut none);
        line.begin();
        line.text("value", &"x".repeat(2 * CHUNK));
        assert_eq!(line.end().unwrap_err().kind(), io::ErrorKind::WriteZero);
    }
}
