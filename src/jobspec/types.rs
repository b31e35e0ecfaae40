//! Type expressions of variables and of `convert`.

use super::ast::{Expr, Kind};
use super::diag::{Diagnostic, Result, did_you_mean};
use super::native;
use super::value::Value;
use crate::spec::TryIntoMap as _;
use crate::spec::collections::BTreeMap;

/// A type that values are converted to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Type {
    Any,
    String,
    Number,
    Bool,
    List(Box<Type>),
    Set(Box<Type>),
    Map(Box<Type>),
    Object(BTreeMap<String, Member>),
    Tuple(Vec<Type>),
}

/// A member of an object type.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Member {
    kind: Type,
    optional: bool,
}

const NAMES: [&str; 9] = ["string", "number", "bool", "any", "list", "set", "map", "object", "tuple"];

fn unknown(name: &str) -> String {
    match did_you_mean(name, NAMES) {
        none if none.is_empty() => format!("unknown type \"{name}\"; use one of {}", NAMES.join(", ")),
        hint => format!("unknown type \"{name}\"{hint}"),
    }
}

impl Type {
    /// Reads `string`, `list(string)`, `object({a = number})` and the like; JSON has them in quotes.
    pub fn parse(expr: &Expr) -> Result<Type> {
        let wrong = |message: String| Diagnostic::new(&expr.pos, message);
        match &expr.kind {
            Kind::Literal(Value::String(text)) => match native::parse_expression(text, &expr.pos)? {
                Expr { kind: Kind::Literal(Value::String(_)), .. } => Err(wrong("a type is needed here".to_owned())),
                inner => Type::parse(&inner),
            },
            Kind::Reference { name, steps, .. } if steps.is_empty() => match name.as_str() {
                "string" => Ok(Type::String),
                "number" => Ok(Type::Number),
                "bool" => Ok(Type::Bool),
                "any" => Ok(Type::Any),
                "list" | "set" | "map" | "object" | "tuple" => {
                    Err(wrong(format!("the type {name} needs an argument; write {name}(...)")))
                }
                other => Err(wrong(unknown(other))),
            },
            Kind::Call(call) => match (call.name.as_str(), call.args.as_slice()) {
                ("list", [of]) => Ok(Type::List(Box::new(Type::parse(of)?))),
                ("set", [of]) => Ok(Type::Set(Box::new(Type::parse(of)?))),
                ("map", [of]) => Ok(Type::Map(Box::new(Type::parse(of)?))),
                ("object", [Expr { kind: Kind::Object(members), .. }]) => {
                    members.iter().map(member).try_into_map().map(Type::Object)
                }
                ("tuple", [Expr { kind: Kind::List(of), .. }]) => {
                    of.iter().map(Type::parse).collect::<Result<_>>().map(Type::Tuple)
                }
                ("object", _) => Err(wrong("write the type as object({name = type, ...})".to_owned())),
                ("tuple", _) => Err(wrong("write the type as tuple([type, ...])".to_owned())),
                ("list" | "set" | "map", _) => Err(wrong(format!("write the type as {}(type)", call.name))),
                (other, _) => Err(wrong(unknown(other))),
            },
            _ => Err(wrong("a type is needed here, such as string or list(string)".to_owned())),
        }
    }

    /// The type of a default value; the insides of collections stay open.
    pub fn of(value: &Value) -> Type {
        match value {
            Value::Null => Type::Any,
            Value::Bool(_) => Type::Bool,
            Value::Number(_) => Type::Number,
            Value::String(_) => Type::String,
            Value::List(_) => Type::List(Box::new(Type::Any)),
            Value::Set(_) => Type::Set(Box::new(Type::Any)),
            Value::Object(_) => Type::Map(Box::new(Type::Any)),
        }
    }

    /// Text from outside is taken literally for this type, not as an expression.
    pub fn takes_plain_text(&self) -> bool {
        matches!(self, Type::String | Type::Number | Type::Any)
    }

    fn name(&self) -> String {
        match self {
            Type::Any => "any".to_owned(),
            Type::String => "string".to_owned(),
            Type::Number => "number".to_owned(),
            Type::Bool => "bool".to_owned(),
            Type::List(of) => format!("list({})", of.name()),
            Type::Set(of) => format!("set({})", of.name()),
            Type::Map(of) => format!("map({})", of.name()),
            Type::Object(_) => "object".to_owned(),
            Type::Tuple(_) => "tuple".to_owned(),
        }
    }

    /// The value as this type, or why not. Null is of every type.
    pub fn convert(&self, value: Value) -> std::result::Result<Value, String> {
        let wrong = |value: &Value| format!("a {} is needed, not {}", self.name(), value.type_name());
        match (self, value) {
            (_, Value::Null) => Ok(Value::Null),
            (Type::Any, value) => Ok(value),
            (Type::String, value) => value.to_text().map(Value::String).ok_or_else(|| wrong(&value)),
            (Type::Number, value) => value.to_number().map(Value::Number).ok_or_else(|| match &value {
                Value::String(s) => format!("a number is needed, not \"{s}\""),
                other => wrong(other),
            }),
            (Type::Bool, value) => value.to_bool().map(Value::Bool).ok_or_else(|| match &value {
                Value::String(s) => format!("a bool is needed, not \"{s}\"; write true or false"),
                other => wrong(other),
            }),
            (Type::List(of), Value::List(items) | Value::Set(items)) => of.convert_all(items).map(Value::List),
            (Type::Set(of), Value::List(items) | Value::Set(items)) => of.convert_all(items).map(Value::set),
            (Type::Map(of), Value::Object(map)) => map
                .into_iter()
                .map(|(k, v)| of.convert(v).map_err(|m| format!("key \"{k}\": {m}")).map(|v| (k, v)))
                .try_into_map()
                .map(Value::Object),
            (Type::Object(members), Value::Object(mut map)) => members
                .iter()
                .map(|(name, member)| match map.remove(name) {
                    Some(v) => {
                        let v = member.kind.convert(v).map_err(|m| format!("attribute \"{name}\": {m}"))?;
                        Ok((name.clone(), v))
                    }
                    None if member.optional => Ok((name.clone(), Value::Null)),
                    None => Err(format!("attribute \"{name}\" is missing")),
                })
                .try_into_map()
                .map(Value::Object),
            (Type::Tuple(types), Value::List(items)) if types.len() == items.len() => {
                let items = types.iter().zip(items).map(|(of, item)| of.convert(item));
                items.collect::<std::result::Result<_, _>>().map(Value::List)
            }
            (Type::Tuple(types), Value::List(items)) => {
                Err(format!("a tuple of {} is needed, not a list of {}", types.len(), items.len()))
            }
            (_, value) => Err(wrong(&value)),
        }
    }

    fn convert_all(&self, items: Vec<Value>) -> std::result::Result<Vec<Value>, String> {
        let item = |(i, v)| self.convert(v).map_err(|m| format!("element {i}: {m}"));
        items.into_iter().enumerate().map(item).collect()
    }
}

fn member((name, kind): &(Expr, Expr)) -> Result<(String, Member)> {
    let Kind::Literal(Value::String(name)) = &name.kind else {
        return Err(Diagnostic::new(&name.pos, "the name of an object's attribute must be a plain word"));
    };
    let member = match &kind.kind {
        Kind::Call(call) if call.name == "optional" && call.args.len() == 1 => {
            Member { kind: Type::parse(&call.args[0])?, optional: true }
        }
        _ => Member { kind: Type::parse(kind)?, optional: false },
    };
    Ok((name.clone(), member))
}
