//! The JSON Schemas in docs/schemas are those of the code. RBLOAT_WRITE_SCHEMAS=1 writes them.

use std::fs;
use std::path::Path;

use formats::SCHEMAS;

#[test]
fn the_schemas_that_are_shipped_are_those_of_the_code() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas");
    for (kind, schema) in SCHEMAS {
        let path = folder.join(format!("{kind}.schema.json"));
        let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
        if std::env::var_os("RBLOAT_WRITE_SCHEMAS").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let shipped = fs::read_to_string(&path).unwrap_or_default();
        // Without the texts, which are long.
        assert!(shipped == text, "{} is out of date: make schemas", path.display());
    }
}
