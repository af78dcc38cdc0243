//! The JSON Schemas in docs/schemas are those of the code, and docs/json.md has their texts. RBLOAT_WRITE_SCHEMAS=1 writes both.

mod page;

use std::fs;
use std::path::Path;

use formats::SCHEMAS;

/// Compares a file below docs, or writes it.
fn check(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
    if std::env::var_os("RBLOAT_WRITE_SCHEMAS").is_some() {
        fs::write(&path, text).unwrap();
    }
    let shipped = fs::read_to_string(&path).unwrap_or_default();
    // Without the texts, which are long.
    assert!(shipped == text, "{} is out of date: make schemas", path.display());
}

#[test]
fn the_schemas_that_are_shipped_are_those_of_the_code() {
    for (kind, schema) in SCHEMAS {
        let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
        check(&format!("schemas/{kind}.schema.json"), &text);
    }
}

#[test]
fn the_page_of_the_documents_has_the_texts_of_the_code() {
    check("json.md", &page::filled(include_str!("../../../../docs/json.md")));
}
