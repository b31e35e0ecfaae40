//! Builds the description of a plugin's configuration ([`Spec`]), for `ConfigSchema` and `TaskConfigSchema`.
//!
//! ```
//! use agentbin::wire::schema::{Literal, attr, block_list, object, with_default};
//!
//! let spec = object([
//!     ("command", attr("command", "string", true)),
//!     ("args", attr("args", "list(string)", false)),
//!     ("interval", with_default(attr("interval", "string", false), Literal::string("3m"))),
//!     ("port", block_list("port", 0, 8, object([("to", attr("to", "number", true))]))),
//! ]);
//! # assert!(spec.block.is_some());
//! ```
//!
//! A type is an expression: `string`, `number`, `bool`, `any`, `list(T)`, `set(T)`, `map(T)`, `object({name = T, ...})`,
//! `tuple([T, ...])`. A name that is written more than once wins with its last spec.

use super::hclspec::{self, Spec, spec};

/// A value in a specification, as the text of an HCL expression.
///
/// Hosts evaluate this text. A bare `3m` is not an expression, so [`Literal::string`] puts the quotes around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Literal(String);

impl Literal {
    /// A string. Quotes, line ends and template markers in it are escaped, so that the host gets exactly `text`.
    #[must_use]
    pub fn string(text: &str) -> Literal {
        Literal(quote(text))
    }

    /// `true` or `false`.
    #[must_use]
    pub fn bool(value: bool) -> Literal {
        Literal(value.to_string())
    }

    /// A whole number.
    #[must_use]
    pub fn number(value: i64) -> Literal {
        Literal(value.to_string())
    }

    /// Any other expression, taken as it is: `0.5`, `["a", "b"]`, `null`, `max(1, 2)`.
    ///
    /// Hosts know the functions `abs`, `coalesce`, `concat`, `hasindex`, `int`, `jsondecode`, `jsonencode`, `length`,
    /// `lower`, `max`, `min`, `reverse`, `strlen`, `substr`, `upper`, and no variables.
    #[must_use]
    pub fn expression(text: &str) -> Literal {
        Literal(text.to_owned())
    }

    /// A list of strings.
    #[must_use]
    pub fn strings(items: &[&str]) -> Literal {
        Literal(format!("[{}]", items.iter().map(|item| quote(item)).collect::<Vec<_>>().join(", ")))
    }

    /// The expression's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Literal> for Spec {
    fn from(literal: Literal) -> Spec {
        of(spec::Block::Literal(hclspec::Literal { value: literal.0 }))
    }
}

/// Attributes and blocks by name. The name is what the value is called in the configuration that the plugin gets; the
/// nested spec says how it is called in the operator's file, usually the same.
pub fn object<N: Into<String>>(attributes: impl IntoIterator<Item = (N, Spec)>) -> Spec {
    let attributes = attributes.into_iter().map(|(name, spec)| (name.into(), spec)).collect();
    of(spec::Block::Object(hclspec::Object { attributes }))
}

/// Values without names, in order. The plugin gets a tuple.
pub fn array(values: impl IntoIterator<Item = Spec>) -> Spec {
    of(spec::Block::Array(hclspec::Array { values: values.into_iter().collect() }))
}

/// `name = value`. Null for the plugin where the operator leaves it out, unless `required`.
#[must_use]
pub fn attr(name: &str, kind: &str, required: bool) -> Spec {
    of(spec::Block::Attr(hclspec::Attr { name: name.to_owned(), r#type: kind.to_owned(), required }))
}

/// `primary`, and where that gives null the literal.
#[must_use]
pub fn with_default(primary: Spec, fallback: Literal) -> Spec {
    default_spec(primary, fallback.into())
}

/// `primary`, and where that gives null what `fallback` gives.
#[must_use]
pub fn default_spec(primary: Spec, fallback: Spec) -> Spec {
    let (primary, default) = (Some(Box::new(primary)), Some(Box::new(fallback)));
    of(spec::Block::Default(Box::new(hclspec::Default { primary, default })))
}

/// `name { ... }`, at most once. Null for the plugin where it is left out, unless `required`.
#[must_use]
pub fn block(name: &str, required: bool, nested: Spec) -> Spec {
    let nested = Some(Box::new(nested));
    of(spec::Block::BlockValue(Box::new(hclspec::Block { name: name.to_owned(), required, nested })))
}

/// `name { key = value ... }` with free keys, at most once; every value is of the type `kind`. The plugin gets a map.
#[must_use]
pub fn block_attrs(name: &str, kind: &str, required: bool) -> Spec {
    of(spec::Block::BlockAttrs(hclspec::BlockAttrs { name: name.to_owned(), r#type: kind.to_owned(), required }))
}

/// `name { ... }` any number of times from `min_items` to `max_items` (0: no limit). The plugin gets a list.
#[must_use]
pub fn block_list(name: &str, min_items: u64, max_items: u64, nested: Spec) -> Spec {
    let nested = Some(Box::new(nested));
    of(spec::Block::BlockList(Box::new(hclspec::BlockList { name: name.to_owned(), min_items, max_items, nested })))
}

/// As [`block_list`], but the plugin gets a set: sorted, and equal blocks only once.
#[must_use]
pub fn block_set(name: &str, min_items: u64, max_items: u64, nested: Spec) -> Spec {
    let nested = Some(Box::new(nested));
    of(spec::Block::BlockSet(Box::new(hclspec::BlockSet { name: name.to_owned(), min_items, max_items, nested })))
}

/// `name "label" { ... }` any number of times. The plugin gets a map by label; with several `labels` a map of maps.
/// `labels` says what each label is, for messages.
pub fn block_map<L: Into<String>>(name: &str, labels: impl IntoIterator<Item = L>, nested: Spec) -> Spec {
    let labels = labels.into_iter().map(Into::into).collect();
    let nested = Some(Box::new(nested));
    of(spec::Block::BlockMap(Box::new(hclspec::BlockMap { name: name.to_owned(), labels, nested })))
}

const fn of(block: spec::Block) -> Spec {
    Spec { block: Some(block) }
}

fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '$' | '%' if rest.peek() == Some(&'{') => out.extend([c, c]),
            c if c.is_control() => out.extend(format!("\\u{:04x}", u32::from(c)).chars()),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A4: a duration that is a default stays a duration.
    #[test]
    fn a4_defaults_are_quoted() {
        assert_eq!(Literal::string("3m").as_str(), "\"3m\"");
        assert_eq!(Literal::string("a\"b\\c\n").as_str(), r#""a\"b\\c\n""#);
        assert_eq!(Literal::string("${x} %{y} $z 5%").as_str(), r#""$${x} %%{y} $z 5%""#);
        assert_eq!(Literal::string("\u{1}").as_str(), "\"\\u0001\"");
        assert_eq!(Literal::strings(&["a", "b"]).as_str(), r#"["a", "b"]"#);
        assert_eq!((Literal::bool(true).as_str(), Literal::number(-3).as_str()), ("true", "-3"));
        let spec = with_default(attr("interval", "string", false), Literal::string("3m"));
        let Some(spec::Block::Default(default)) = spec.block else { panic!("no default") };
        let literal = spec::Block::Literal(hclspec::Literal { value: "\"3m\"".into() });
        assert_eq!(default.default.unwrap().block, Some(literal));
    }
}
