//! The names of the ledger's vocabulary in documents.

use ledger::{Cause, InterpreterKind, WasteKind, Write};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The word for the absence of a cause in a verdict.
const HEALTHY: &str = "healthy";

fn parse<E: de::Error>(name: &str) -> Result<Cause, E> {
    let cause = Cause::ALL.into_iter().find(|cause| cause.name() == name);
    cause.ok_or_else(|| E::custom("there is no such cause"))
}

fn names() -> Vec<&'static str> {
    Cause::ALL.iter().map(|cause| cause.name()).collect()
}

/// A cause by its name.
pub(crate) mod cause {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(cause: &Cause, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(cause.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Cause, D::Error> {
        parse(&String::deserialize(from)?)
    }

    pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": names() })
    }
}

/// A list of causes by their names.
pub(crate) mod causes {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(causes: &[Cause], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(causes.iter().map(|cause| cause.name()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Cause>, D::Error> {
        Vec::<String>::deserialize(from)?.iter().map(|name| parse(name)).collect()
    }

    pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "array", "items": { "type": "string", "enum": names() } })
    }
}

/// A cause by its name, or `null`.
pub(crate) mod cause_or_none {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        cause: &Option<Cause>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        cause.map(Cause::name).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Cause>, D::Error> {
        Option::<String>::deserialize(from)?.map(|name| parse(&name)).transpose()
    }

    pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
        let mut names: Vec<Option<&str>> = names().into_iter().map(Some).collect();
        names.push(None);
        json_schema!({ "type": ["string", "null"], "enum": names })
    }
}

/// A cause by its name, or `"healthy"`.
pub(crate) mod cause_or_healthy {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        cause: &Option<Cause>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(cause.map_or(HEALTHY, Cause::name))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Cause>, D::Error> {
        match String::deserialize(from)?.as_str() {
            HEALTHY => Ok(None),
            name => parse(name).map(Some),
        }
    }

    pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
        let names = [&names()[..], &[HEALTHY]].concat();
        json_schema!({ "type": "string", "enum": names })
    }
}

/// A kind of memory that objects do not use, by its name.
pub(crate) mod waste_kind {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(kind: &WasteKind, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(kind.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<WasteKind, D::Error> {
        let name = String::deserialize(from)?;
        let kind = WasteKind::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| de::Error::custom("there is no such kind"))
    }

    pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": WasteKind::ALL.map(WasteKind::name) })
    }
}

/// A kind of the interpreter's memory by its name.
pub(crate) mod interpreter_kind {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        kind: &InterpreterKind,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(kind.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<InterpreterKind, D::Error> {
        let name = String::deserialize(from)?;
        let kind = InterpreterKind::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| de::Error::custom("there is no such kind"))
    }

    pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
        let names = InterpreterKind::ALL.map(InterpreterKind::name);
        json_schema!({ "type": "string", "enum": names })
    }
}

/// The reason of a copied page by its name.
pub(crate) mod write {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(write: &Write, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(write.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Write, D::Error> {
        let name = String::deserialize(from)?;
        let write = Write::ALL.into_iter().find(|write| write.name() == name);
        write.ok_or_else(|| de::Error::custom("there is no such reason of a copy"))
    }

    pub(crate) fn schema(_: &mut SchemaGenerator) -> Schema {
        let names: Vec<&str> = Write::ALL.iter().map(|write| write.name()).collect();
        json_schema!({ "type": "string", "enum": names })
    }
}
