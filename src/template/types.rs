//! What the parser, the functions and the rendering share: the tree of a template, the description of a function, the state of a rendering.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::Limits;
use super::asked::Asked;
use super::host::Host;
use super::number::Number;
use super::value::{Bytes, CERTIFICATE, Keyed, Kind, Value};
use crate::spec::collections::BTreeMap;

/// A part of a template.
#[derive(Debug)]
pub(super) enum Node {
    Text(Vec<u8>),
    Action(Pipeline),
    If(Branch),
    With(Branch),
    Range(Branch),
    /// `template` and `block`: where it stands, its name, its data.
    Template(usize, Vec<u8>, Option<Pipeline>),
    Break,
    Continue,
}

/// A pipeline and what it decides about.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) at: usize,
    pub(super) pipeline: Pipeline,
    pub(super) then: Vec<Node>,
    pub(super) otherwise: Option<Vec<Node>>,
}

impl Drop for Branch {
    /// A long chain of `else if` hangs below its first one; it is let go link by link.
    fn drop(&mut self) {
        let mut next = self.otherwise.take();
        while let Some(mut nodes) = next {
            next = match nodes.as_mut_slice() {
                [Node::If(link) | Node::With(link)] => link.otherwise.take(),
                _ => None,
            };
        }
    }
}

/// Commands; the value of each is the last argument of the next.
#[derive(Debug)]
pub(super) struct Pipeline {
    /// Variables that it declares or sets.
    pub(super) variables: Vec<Name>,
    /// They are there already.
    pub(super) assigns: bool,
    pub(super) commands: Vec<Command>,
}

#[derive(Debug)]
pub(super) struct Command {
    pub(super) at: usize,
    pub(super) words: Vec<Operand>,
}

/// A name of a field or a variable, the point or `$` taken off.
pub(super) type Name = Arc<str>;

#[derive(Debug)]
pub(super) struct Operand {
    pub(super) at: usize,
    pub(super) term: Term,
}

#[derive(Debug)]
pub(super) enum Term {
    Dot,
    Nil,
    Bool(bool),
    Number(Number),
    Text(Vec<u8>),
    Field(Vec<Name>),
    Variable(Name, Vec<Name>),
    Function(&'static Function),
    Pipeline(Pipeline),
    /// Fields of what stands in parentheses or what a function gives.
    Chain(Box<Operand>, Vec<Name>),
}

/// Type of a parameter, as Go checks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Text,
    Bool,
    Int,
    Float,
    /// `interface {}`
    Any,
    /// Anything, also no value at all.
    Reflect,
    Texts,
    Anys,
    /// `map[string]interface {}`
    AnyMap,
    /// What `ls` and `tree` give.
    Pairs,
    /// What `service` gives.
    Services,
    /// What a constant gives, and nothing else.
    Uint32,
    /// A certificate with its key, as `sprig_genCA` gives.
    Certificate,
}

use Type::{Any, AnyMap, Anys, Bool, Int, Reflect, Text, Texts};

/// A function that templates know.
pub(super) struct Function {
    pub(super) name: &'static str,
    /// Types of its parameters.
    pub(super) parameters: &'static [Type],
    /// The last one stands for any number of arguments.
    pub(super) variadic: bool,
    pub(super) run: Run,
    /// What it gives, in a few words.
    pub(super) about: &'static str,
}

/// What a call of it does.
pub(super) type Run = fn(&mut Exec<'_>, &[Value]) -> Result<Value, String>;

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Type {
    /// Its name in Go.
    pub(super) fn name(self) -> &'static str {
        match self {
            Text => "string",
            Bool => "bool",
            Int => "int",
            Type::Float => "float64",
            Any => "interface {}",
            Reflect => "any value",
            Texts => "[]string",
            Anys => "[]interface {}",
            AnyMap => "map[string]interface {}",
            Type::Pairs => "[]*dependency.KeyPair",
            Type::Services => "[]*dependency.HealthService",
            Type::Uint32 => "uint32",
            Type::Certificate => CERTIFICATE,
        }
    }

    /// A short name for people.
    fn short(self) -> &'static str {
        match self {
            Any | Reflect => "value",
            Type::Float => "float",
            Texts => "strings",
            Anys => "list",
            AnyMap => "map",
            Type::Pairs => "pairs",
            Type::Services => "services",
            Type::Certificate => "certificate",
            Type::Uint32 => "int",
            other => other.name(),
        }
    }

    pub(super) fn can_be_nil(self) -> bool {
        !matches!(self, Text | Bool | Int | Type::Float | Type::Uint32 | Type::Certificate)
    }

    /// Whether Go takes `value` for such a parameter.
    pub(super) fn takes(self, value: &Value) -> bool {
        match (self, value) {
            (Any | Reflect, _) => true,
            (wanted, Value::Nil) => wanted.can_be_nil(),
            (Text, Value::Text(_)) | (Bool, Value::Bool(_)) | (Int, Value::Int(_)) | (Type::Float, Value::Float(_)) => {
                true
            }
            (Texts, Value::List(list)) => list.kind == Kind::Text,
            (Anys, Value::List(list)) => list.kind == Kind::Any,
            (AnyMap, Value::Map(map)) => map.kind == Kind::Any && map.keyed == Keyed::Text && map.owner.is_none(),
            (Type::Pairs, Value::List(list)) => list.kind == Kind::Objects("*dependency.KeyPair"),
            (Type::Services, Value::List(list)) => list.kind == Kind::Objects("*dependency.HealthService"),
            (Type::Certificate, Value::Object(object)) => object.type_name == CERTIFICATE,
            _ => false,
        }
    }
}

impl Function {
    pub(super) fn is_variadic(&self) -> bool {
        self.variadic
    }

    /// How many arguments it needs at least.
    pub(super) fn fixed(&self) -> usize {
        self.parameters.len() - usize::from(self.variadic)
    }

    /// Type of the parameter that the argument `index` goes to.
    pub(super) fn parameter(&self, index: usize) -> Type {
        self.parameters[index.min(self.parameters.len().saturating_sub(1))]
    }

    /// How it is called.
    pub(super) fn usage(&self) -> String {
        let mut text = self.name.to_owned();
        for (i, parameter) in self.parameters.iter().enumerate() {
            let dots = if self.variadic && i + 1 == self.parameters.len() { "..." } else { "" };
            let _ = write!(text, " <{}>{dots}", parameter.short());
        }
        text
    }
}

/// What rendering works on.
pub(super) struct Exec<'a> {
    pub(super) defined: &'a BTreeMap<Vec<u8>, Vec<Node>>,
    pub(super) host: &'a dyn Host,
    /// A key that is missing is an error.
    pub(super) strict: bool,
    pub(super) limits: Limits,
    pub(super) cancel: &'a AtomicBool,
    pub(super) steps: u64,
    pub(super) made: usize,
    pub(super) depth: usize,
    /// How many bytes all outputs have.
    pub(super) written: usize,
    pub(super) variables: Vec<(Name, Value)>,
    pub(super) scratch: BTreeMap<Bytes, Value>,
    pub(super) missing: Vec<String>,
    pub(super) asked: Asked,
}
