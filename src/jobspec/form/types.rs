//! The types of the API's job: fields, what they hold, and what they are called in a job file.
//!
//! `types.txt` is what the program in `tests/jobfiles` says of Nomad's API package; nothing of it is written by hand.

use std::sync::LazyLock;

use serde_json::{Map, Value as Json};

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::jobspec) enum Kind {
    Text,
    Flag,
    /// A whole number from the first to the second.
    Int(i128, i128),
    /// Nanoseconds.
    Duration,
    /// Bytes, as base64.
    Bytes,
    /// A list of strings.
    Texts,
    /// A list of ports.
    Ports,
    /// Strings by name.
    Strings,
    /// Lists of strings by name.
    Lists,
    /// Anything by name.
    Any,
    /// One of a type, or null.
    One(&'static str),
    /// A list of a type.
    Many(&'static str),
    /// A type by its label.
    Named(&'static str),
}

/// A field of a type.
#[derive(Debug)]
pub(in crate::jobspec) struct Field {
    /// Its name in JSON.
    pub name: &'static str,
    pub kind: Kind,
    /// It may be null beside its values.
    pub nullable: bool,
    /// It is left out where it is null.
    pub omitted: bool,
    /// The key or block in a job file.
    pub written: Option<&'static str>,
    /// The label of the block in a job file.
    pub is_label: bool,
}

impl Field {
    /// What the field is where nothing was given.
    pub fn nothing(&self) -> Json {
        match self.kind {
            _ if self.nullable => Json::Null,
            Kind::Text => Json::from(""),
            Kind::Flag => Json::from(false),
            Kind::Int(..) | Kind::Duration => Json::from(0),
            _ => Json::Null,
        }
    }
}

/// A type of the API.
#[derive(Debug)]
pub(in crate::jobspec) struct Type {
    pub name: &'static str,
    pub fields: Vec<Field>,
}

impl Type {
    /// The field that a JSON member sets: its name, else without regard to case, as Go does it.
    pub fn field(&self, name: &str) -> Option<&Field> {
        let exact = self.fields.iter().find(|f| f.name == name);
        exact.or_else(|| self.fields.iter().find(|f| f.name.eq_ignore_ascii_case(name)))
    }

    /// The field that holds the label.
    pub fn label(&self) -> Option<&Field> {
        self.fields.iter().find(|f| f.is_label)
    }

    /// An object of this type in which nothing was given.
    pub fn empty(&self) -> Map<String, Json> {
        let fields = self.fields.iter().filter(|f| !f.omitted);
        fields.map(|f| (f.name.to_owned(), f.nothing())).collect()
    }
}

static TYPES: LazyLock<Vec<Type>> = LazyLock::new(|| {
    let mut types = read(include_str!("types.txt"));
    for (name, line) in OURS {
        let of = types.iter_mut().find(|t| t.name == *name);
        if let Some(of) = of {
            of.fields.extend(field(line));
        }
    }
    types
});

/// The type of this name. A name that is not in the table has no fields.
pub(in crate::jobspec) fn of(name: &str) -> &'static Type {
    static NONE: Type = Type { name: "", fields: Vec::new() };
    TYPES.iter().find(|t| t.name == name).unwrap_or(&NONE)
}

/// What a job file may say here and Nomad does not know.
const OURS: &[(&str, &str)] = &[("LogConfig", "Compress flag?+ compress"), ("LogConfig", "MaxAge duration?+ max_age")];

fn read(text: &'static str) -> Vec<Type> {
    let mut types: Vec<Type> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            types.push(Type { name, fields: Vec::new() });
        } else if let (Some(current), Some(field)) = (types.last_mut(), field(line)) {
            current.fields.push(field);
        }
    }
    types
}

fn field(line: &'static str) -> Option<Field> {
    let mut words = line.split(' ');
    let (name, kind, written) = (words.next()?, words.next()?, words.next()?);
    let omitted = kind.ends_with('+');
    let kind = kind.trim_end_matches('+');
    let nullable = kind.ends_with('?');
    let kind = kind_of(kind.trim_end_matches('?'))?;
    let is_label = written == "=";
    let written = (!is_label && written != "-").then_some(written);
    Some(Field { name, kind, nullable, omitted, written, is_label })
}

fn kind_of(word: &'static str) -> Option<Kind> {
    Some(match word.split_once(':') {
        Some(("one", of)) => Kind::One(of),
        Some(("many", of)) => Kind::Many(of),
        Some(("named", of)) => Kind::Named(of),
        Some(_) => return None,
        None => match word {
            "text" => Kind::Text,
            "flag" => Kind::Flag,
            "duration" => Kind::Duration,
            "bytes" => Kind::Bytes,
            "texts" => Kind::Texts,
            "ports" => Kind::Ports,
            "strings" => Kind::Strings,
            "lists" => Kind::Lists,
            "any" => Kind::Any,
            "int8" => Kind::Int(i8::MIN.into(), i8::MAX.into()),
            "int" | "int64" => Kind::Int(i64::MIN.into(), i64::MAX.into()),
            "uint8" => Kind::Int(0, u8::MAX.into()),
            "uint16" => Kind::Int(0, u16::MAX.into()),
            "uint32" => Kind::Int(0, u32::MAX.into()),
            "uint64" => Kind::Int(0, u64::MAX.into()),
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::{Kind, OURS, TYPES, of, read};

    /// Every line of the table is understood, and every type in it is there.
    #[test]
    fn j1_the_table_of_types_is_whole() {
        let text = include_str!("types.txt");
        let lines = text.lines().filter(|l| !l.starts_with('[')).count();
        assert_eq!(TYPES.iter().map(|t| t.fields.len()).sum::<usize>(), lines + OURS.len());
        for field in TYPES.iter().flat_map(|t| &t.fields) {
            if let Kind::One(name) | Kind::Many(name) | Kind::Named(name) = field.kind {
                assert!(TYPES.iter().any(|t| t.name == name), "{name}");
            }
        }
        assert!(read("[X]\nA strange -\n")[0].fields.is_empty(), "an unknown word is seen");
        assert_eq!(of("TaskGroup").label().map(|f| f.name), Some("Name"));
        assert_eq!(of("Job").field("taskgroups").map(|f| f.name), Some("TaskGroups"));
    }
}
