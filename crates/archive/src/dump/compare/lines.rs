//! The lines of a dump, of rbloat or of `ObjectSpace.dump_all`. They are read several times, so that little is kept.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read, Seek};

use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, SeqAccess, Visitor};

/// The bytes of the longest line: that of an array of 28 million objects.
const MAX_LINE: u64 = 1 << 29;
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The beginning of a dump is a JSON object; longer blanks before it are no dump.
const HEAD: usize = 2;

/// The file of a dump, from its beginning each time that it is read.
pub trait Input: Read + Seek + Send {}

impl<T: Read + Seek + Send> Input for T {}

/// The reason why a dump cannot be read.
#[derive(Debug)]
pub enum DumpError {
    /// The file cannot be read, or its compressed bytes are damaged.
    Unreadable(io::Error),
    /// It is something else.
    NoDump,
    /// Its last line is not whole, or its compressed bytes.
    Truncated,
    /// It has more than can be compared.
    TooMuch,
}

impl std::error::Error for DumpError {}

impl std::fmt::Display for DumpError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(match self {
            Self::Unreadable(error) => return error.fmt(to),
            Self::NoDump => "it has no objects as of `rbloat dump` or ObjectSpace.dump_all",
            Self::Truncated => "it ends too early: the dump was not finished",
            Self::TooMuch => {
                "it has a line of 512 MiB, 200 million objects, or a billion references"
            }
        })
    }
}

impl From<io::Error> for DumpError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Unreadable(error),
        }
    }
}

/// The text of a field, which may be in any encoding.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Text<'a>(Cow<'a, [u8]>);

/// An address, or 0.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct At(pub(super) u64);

/// The addresses of references.
#[derive(Debug, Default)]
pub(super) struct References(pub(super) Vec<u64>);

/// A line: an object, a root, or a shape. `R` are its references, or [`IgnoredAny`].
#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "R: Deserialize<'de> + Default"))]
pub(super) struct Line<'a, R> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Text<'a>,
    #[serde(default)]
    pub(super) address: At,
    #[serde(default)]
    pub(super) class: At,
    #[serde(default)]
    pub(super) superclass: At,
    #[serde(borrow, default)]
    pub(super) imemo_type: Text<'a>,
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    #[serde(borrow, default)]
    pub(super) real_class_name: Text<'a>,
    /// The name of a root.
    #[serde(borrow, default)]
    pub(super) root: Text<'a>,
    #[serde(default)]
    pub(super) references: R,
    #[serde(borrow, default)]
    pub(super) file: Text<'a>,
    #[serde(default)]
    pub(super) line: Option<u64>,
    #[serde(default)]
    pub(super) generation: Option<u64>,
    #[serde(default)]
    pub(super) memsize: Option<u64>,
    #[serde(borrow, default)]
    pub(super) rbloat: Option<Own<'a>>,
}

/// The fields of rbloat.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Own<'a> {
    #[serde(borrow, default)]
    pub(super) owner: Text<'a>,
    #[serde(borrow, default)]
    pub(super) retaining_root: Text<'a>,
    #[serde(default)]
    pub(super) parent: At,
}

impl Text<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn is(&self, text: &str) -> bool {
        *self.0 == *text.as_bytes()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<R> Line<'_, R> {
    pub(super) fn is_root(&self) -> bool {
        self.kind.is("ROOT")
    }

    /// Returns true for an object, and not for a free slot, a shape, or the rest of an object.
    pub(super) fn is_object(&self) -> bool {
        let is_none = ["ROOT", "SHAPE", "NONE", "ZOMBIE"].iter().any(|it| self.kind.is(it));
        self.address.0 != 0 && !is_none
    }

    /// Returns true for garbage, which is no object of a later dump, though that may have one in the same slot. Only our lines say so.
    pub(super) fn is_garbage(&self) -> bool {
        self.rbloat.as_ref().is_some_and(|it| it.retaining_root.is_empty())
    }

    pub(super) fn is_class(&self) -> bool {
        self.kind.is("CLASS") || self.kind.is("MODULE")
    }
}

/// Calls `each` with each line. Returns the number of lines that are no JSON.
pub(super) fn read<R>(
    input: &mut dyn Input,
    mut each: impl FnMut(Line<'_, R>) -> Result<(), DumpError>,
) -> Result<u64, DumpError>
where
    R: Default + for<'de> Deserialize<'de>,
{
    input.rewind()?;
    let mut file = BufReader::with_capacity(1 << 18, input);
    let is_compressed = file.fill_buf()?.get(..HEAD) == Some(&GZIP);
    let mut file: Box<dyn BufRead + '_> = match is_compressed {
        true => Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(file))),
        false => Box::new(file),
    };
    let (mut bytes, mut unreadable, mut is_first) = (Vec::new(), 0, true);
    loop {
        bytes.clear();
        let read = file.by_ref().take(MAX_LINE).read_until(b'\n', &mut bytes)?;
        if read == 0 {
            return Ok(unreadable);
        }
        let is_whole = bytes.ends_with(b"\n");
        if bytes.iter().all(u8::is_ascii_whitespace) && is_whole {
            continue;
        }
        match serde_json::from_slice(&bytes) {
            Ok(line) => each(line)?,
            Err(_) if read as u64 == MAX_LINE => return Err(DumpError::TooMuch),
            Err(_) if is_first => return Err(DumpError::NoDump),
            Err(_) if !is_whole => return Err(DumpError::Truncated),
            Err(_) => unreadable += 1,
        }
        is_first = false;
    }
}

/// Reads the bytes of a JSON string, which need not be UTF-8.
struct Bytes;

impl<'de> Visitor<'de> for Bytes {
    type Value = Text<'de>;

    fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("a text")
    }

    fn visit_borrowed_bytes<E: de::Error>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
        Ok(Text(bytes.into()))
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
        Ok(Text(bytes.to_vec().into()))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_bytes(Bytes)
    }
}

impl<'de> Deserialize<'de> for At {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Text::deserialize(from)?;
        let digits = str::from_utf8(text.bytes()).ok().and_then(|it| it.strip_prefix("0x"));
        Ok(Self(digits.and_then(|it| u64::from_str_radix(it, 16).ok()).unwrap_or_default()))
    }
}

impl<'de> Deserialize<'de> for References {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = References;

            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("a list of addresses")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<References, A::Error> {
                let mut all = Vec::new();
                while let Some(At(at)) = list.next_element()? {
                    all.push(at);
                }
                Ok(References(all))
            }
        }
        from.deserialize_seq(All)
    }
}

/// The references that are not looked at.
pub(super) type Ignored = IgnoredAny;
