//! Fills the tables of docs/json.md. A mark says what is below it, up to `<!-- end -->`: `<!-- fields: Owner owners[] -->` are the
//! fields of a type, with the beginning of their paths, and `<!-- values: Doubt verdict.doubt -->` the values of an enum. A type without a
//! mark follows the field that has it first.

use std::collections::BTreeMap;
use std::fmt::Write;

use formats::{
    Comparison, Diff, DumpDiff, Explanations, Family, FamilyDiff, FamilyTrim, Fit, Kept, Processes,
    Report, SCHEMAS, Stability, TrimReport, Who, Why,
};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

const END: &str = "<!-- end -->";
/// Longer texts stand in the page once.
const LONG: usize = 100;

/// The names of these types, and all types that they refer to.
macro_rules! types {
    ($($content:ty),*) => {{
        // Its lists of required fields have all fields, in their order.
        let mut generator = SchemaSettings::default().for_serialize().into_generator();
        $(generator.subschema_for::<$content>();)*
        ([$(stringify!($content)),*], generator.take_definitions(true))
    }};
}

/// The fields that all documents have.
fn head() -> Value {
    let mut head = formats::schema::<Explanations>();
    for name in ["schema", "kind", "summary"] {
        head["properties"][name].as_object_mut().unwrap().remove("const");
    }
    head["properties"].as_object_mut().unwrap().remove("explanations");
    let text = &mut head["properties"]["schema"]["description"];
    *text = format!("{}. {}", formats::SCHEMA, text.as_str().unwrap()).into();
    head
}

/// Returns the page with the tables of the types.
pub(crate) fn filled(page: &str) -> String {
    let (documents, mut types) = types!(
        Processes,
        Report,
        Diff,
        DumpDiff,
        Family,
        FamilyDiff,
        Comparison,
        TrimReport,
        FamilyTrim,
        Who,
        Kept,
        Why,
        Stability,
        Fit,
        Explanations
    );
    assert_eq!(documents.len(), SCHEMAS.len(), "a document is missing here");
    types.insert("Document".to_owned(), head());
    let mut tables = Tables {
        types: &types,
        headings: headings(page, false),
        headings_of_values: headings(page, true),
        heading: String::new(),
        places: BTreeMap::new(),
        texts: BTreeMap::new(),
    };
    let unmarked = documents.iter().find(|it| !tables.headings.contains_key(**it));
    assert_eq!(unmarked, None, "docs/json.md has no mark for it");
    let mut filled = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        writeln!(filled, "{line}").unwrap();
        if line.starts_with('#') {
            tables.heading = line.trim_start_matches('#').trim().to_owned();
        }
        if let Some(mark) = Mark::of(line) {
            writeln!(filled, "\n{}\n{END}", tables.table(&mark)).unwrap();
            lines.by_ref().find(|line| *line == END).expect("a mark has an end");
        }
    }
    filled
}

/// A mark in the page.
struct Mark<'a> {
    has_values: bool,
    name: &'a str,
    /// The beginning of the paths of fields, or the path of the values.
    prefix: &'a str,
}

impl<'a> Mark<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let mark = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
        let (what, of) = mark.split_once(": ")?;
        let (name, prefix) = of.split_once(' ').unwrap_or((of, ""));
        Some(Self { has_values: what == "values", name, prefix })
    }
}

/// The headings above the tables of fields, or of values, by type.
fn headings(page: &str, of_values: bool) -> BTreeMap<String, String> {
    let mut headings = BTreeMap::new();
    let mut heading = "";
    for line in page.lines() {
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim();
        } else if let Some(mark) = Mark::of(line).filter(|it| it.has_values == of_values) {
            headings.entry(mark.name.to_owned()).or_insert(heading.to_owned());
        }
    }
    headings
}

/// A path and a text.
type Row = (String, String);
/// A heading, and a path below it.
type Place = (String, String);

struct Tables<'a> {
    types: &'a Map<String, Value>,
    headings: BTreeMap<String, String>,
    headings_of_values: BTreeMap<String, String>,
    /// The heading above the current line.
    heading: String,
    /// The first place of each type without a heading.
    places: BTreeMap<String, Place>,
    /// The first place of each long text.
    texts: BTreeMap<String, Place>,
}

impl<'a> Tables<'a> {
    fn get(&self, name: &str) -> &'a Value {
        self.types.get(name).unwrap_or_else(|| panic!("there is no type {name}"))
    }

    fn table(&mut self, mark: &Mark<'_>) -> String {
        let schema = self.get(mark.name);
        if mark.has_values {
            return self.values(schema, mark);
        }
        let mut rows = Vec::new();
        let dot = if mark.prefix.is_empty() { "" } else { "." };
        self.fields(schema, mark.name, &format!("{}{dot}", mark.prefix), &mut rows);
        let mut table = "| field | meaning |\n|---|---|\n".to_owned();
        for rows in rows.chunk_by(|one, other| is_beside(&one.0, &other.0) && one.1 == other.1) {
            let (path, text) = &rows[0];
            write!(table, "| `{path}`").unwrap();
            for (path, _) in &rows[1..] {
                write!(table, ", `.{}`", name(path)).unwrap();
            }
            writeln!(table, " | {text} |").unwrap();
        }
        table
    }

    fn values(&mut self, schema: &'a Value, mark: &Mark<'_>) -> String {
        let variants = variants(schema).expect("an enum");
        let tag_name = tag_name(schema);
        let mut table = match tag_name {
            Some(name) => format!("| `{name}` | meaning | fields |\n|---|---|---|\n"),
            None => format!("| `{}` | meaning |\n|---|---|\n", mark.prefix),
        };
        for variant in variants {
            let Some(value) = variant["const"].as_str().or(tag(variant).map(|(_, value)| value))
            else {
                continue;
            };
            write!(table, "| `{value}` | {} |", text(variant, value)).unwrap();
            if tag_name.is_some() {
                table += &self.cell(variant, &format!("{}.{value}", mark.name));
            }
            table.push('\n');
        }
        table
    }

    /// The fields of one value.
    fn cell(&mut self, variant: &'a Value, place: &str) -> String {
        let mut rows = Vec::new();
        self.fields(variant, place, "", &mut rows);
        let field = |(path, text): &Row| format!("`{path}`: {}", text.replace("<br>", " "));
        let fields: Vec<_> = rows.iter().map(field).collect();
        if fields.is_empty() { " |".to_owned() } else { format!(" {} |", fields.join("<br>")) }
    }

    /// The place of a field, with a link if it is below another heading.
    fn link(&self, (heading, path): &Place) -> String {
        match heading == &self.heading {
            true => format!("`{path}`"),
            false => format!("[`{path}`]({})", anchor(heading)),
        }
    }

    /// A text of a path, or its first place if it is long.
    fn once(&mut self, text: String, path: &str) -> String {
        let here = (self.heading.clone(), path.to_owned());
        if text.len() <= LONG {
            return text;
        }
        let first = self.texts.entry(text.clone()).or_insert_with(|| here.clone()).clone();
        if first == here { text } else { format!("As {}.", self.link(&first)) }
    }

    /// Adds the fields of a type, and those of types that have no place in the page yet.
    fn fields(&mut self, schema: &'a Value, place: &str, prefix: &str, rows: &mut Vec<Row>) {
        if let Some(tag) = tag_name(schema) {
            rows.push((format!("{prefix}{tag}"), "One of the values below.".to_owned()));
        }
        let Some(properties) = schema["properties"].as_object() else { return };
        let order = |name: &str| {
            let mut required = schema["required"].as_array().into_iter().flatten();
            required.position(|it| it == name).unwrap_or(usize::MAX)
        };
        let mut properties: Vec<_> = properties.iter().collect();
        properties.sort_by_key(|(name, _)| order(name));
        for (name, field) in properties {
            if field.get("const").is_some() {
                continue;
            }
            let brackets = if field.get("items").is_some() { "[]" } else { "" };
            let path = format!("{prefix}{name}{brackets}");
            let text = self.once(text(field, &format!("{place}.{name}")), &path);
            match target(field) {
                Some(of) => self.field(of, path, text, rows),
                None => rows.push((path, text)),
            }
        }
    }

    /// Adds a field with a type of its own.
    fn field(&mut self, of: &str, path: String, text: String, rows: &mut Vec<Row>) {
        let schema = self.get(of);
        let of_values = self.headings_of_values.get(of).filter(|_| tag_name(schema).is_none());
        if let Some(heading) = self.headings.get(of).or(of_values) {
            let is_here = heading == &self.heading;
            rows.push((path, if is_here { text } else { linked(&text, heading) }));
        } else if let Some(first) = self.places.get(of) {
            let what = if variants(schema).is_some() { "Values" } else { "Fields" };
            rows.push((path, format!("{text} {what} as in {}.", self.link(first))));
        } else {
            self.places.insert(of.to_owned(), (self.heading.clone(), path.clone()));
            let prefix = format!("{path}.");
            let values = variants(schema).into_iter().flatten().filter_map(|it| {
                Some(format!("<br>`\"{}\"`: {}", it["const"].as_str()?, self::text(it, of)))
            });
            rows.push((path, text + &values.collect::<String>()));
            self.fields(schema, of, &prefix, rows);
        }
    }
}

/// The last part of a path.
fn name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// Returns true for fields of the same object.
fn is_beside(one: &str, other: &str) -> bool {
    one.trim_end_matches(name(one)) == other.trim_end_matches(name(other)) && one.contains('.')
}

/// The type that a field refers to.
fn target(field: &Value) -> Option<&str> {
    let either = field["anyOf"].as_array().into_iter().flatten();
    let reference = field["$ref"].as_str().and_then(|it| it.strip_prefix("#/$defs/"));
    reference
        .or_else(|| field.get("items").and_then(target))
        .or_else(|| either.filter_map(target).next())
}

fn variants(schema: &Value) -> Option<&Vec<Value>> {
    schema["oneOf"].as_array().or(schema["anyOf"].as_array())
}

/// The field that tells the variants of an enum with fields apart.
fn tag_name(schema: &Value) -> Option<&str> {
    variants(schema)?.iter().find_map(tag).map(|(name, _)| name)
}

/// This field of a variant, and its value.
fn tag(variant: &Value) -> Option<(&str, &str)> {
    let mut fields = variant["properties"].as_object()?.iter();
    fields.find_map(|(name, field)| Some((name.as_str(), field["const"].as_str()?)))
}

/// The text of a field or value. `docs/json.md#the-test` becomes a link.
fn text(schema: &Value, place: &str) -> String {
    let text = schema["description"].as_str().unwrap_or_else(|| panic!("{place} has no text"));
    assert!(
        !text.contains("`None`") && !text.contains("[`"),
        "{place} is for readers of JSON: {text}"
    );
    let text = text.replace('\n', " ").replace('|', "\\|");
    let mut parts = text.split("docs/");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_path = |it: char| it.is_alphanumeric() || "-_/#.".contains(it);
        let end = part.find(|it| !is_path(it)).unwrap_or(part.len());
        let path = part[..end].trim_end_matches('.');
        match path.strip_prefix("json.md#") {
            Some(anchor) => write!(text, "[{}](#{anchor})", anchor.replace('-', " ")).unwrap(),
            None => write!(text, "[{}]({path})", path.split('#').next().unwrap()).unwrap(),
        }
        text += &part[path.len()..];
    }
    text
}

fn anchor(heading: &str) -> String {
    format!("#{}", heading.to_lowercase().replace(' ', "-"))
}

/// Makes the word of a heading in a text a link to it, or adds one to its first sentence.
fn linked(text: &str, heading: &str) -> String {
    let word = heading.to_ascii_lowercase();
    let lower = text.to_ascii_lowercase();
    let is_part = |it: char| it.is_alphanumeric() || "`._[(".contains(it);
    let is_word = |at: &usize| {
        !lower[..*at].ends_with(is_part)
            && !lower[at + word.len()..].starts_with(char::is_alphanumeric)
    };
    if let Some(at) = lower.match_indices(&word).map(|(at, _)| at).find(is_word) {
        let (before, rest) = text.split_at(at);
        let (word, rest) = rest.split_at(word.len());
        return format!("{before}[{word}]({}){rest}", anchor(heading));
    }
    let (sentence, rest) = text.split_at(text.find(". ").unwrap_or(text.len() - 1));
    format!("{sentence} ([{word}]({})){rest}", anchor(heading))
}
