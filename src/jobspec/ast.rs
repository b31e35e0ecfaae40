//! What native syntax and JSON have in common once they are read: bodies, blocks and expressions with their places.

use super::value::Value;
use crate::spec::Pos;

/// Attributes and blocks between braces.
#[derive(Debug, Clone, Default)]
pub(super) struct Body {
    pub attrs: Vec<Attr>,
    pub blocks: Vec<Block>,
}

#[derive(Debug, Clone)]
pub(super) struct Attr {
    pub name: String,
    pub pos: Pos,
    pub value: Expr,
}

#[derive(Debug, Clone)]
pub(super) struct Block {
    pub kind: String,
    pub pos: Pos,
    pub labels: Vec<String>,
    pub body: Body,
}

#[derive(Debug, Clone)]
pub(super) struct Expr {
    pub pos: Pos,
    pub kind: Kind,
}

impl Expr {
    pub fn literal(pos: &Pos, value: Value) -> Expr {
        Expr { pos: pos.clone(), kind: Kind::Literal(value) }
    }
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    Literal(Value),
    Template(Vec<Part>),
    List(Vec<Expr>),
    Object(Vec<(Expr, Expr)>),
    /// A name with what follows it; `source` is the original spelling.
    Reference {
        name: String,
        steps: Vec<Step>,
        source: String,
    },
    /// Steps after anything but a name.
    Traversal(Box<Expr>, Vec<Step>),
    Call(Call),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Binary(Box<Expr>, Operator, Box<Expr>),
    Conditional(Box<[Expr; 3]>),
    For(Box<For>),
}

#[derive(Debug, Clone)]
pub(super) struct Call {
    pub name: String,
    pub args: Vec<Expr>,
    /// The last argument is a list of further arguments (`f(xs...)`).
    pub expand: bool,
}

#[derive(Debug, Clone)]
pub(super) struct For {
    pub key_name: Option<String>,
    pub value_name: String,
    pub collection: Expr,
    /// `Some` makes an object, `None` a list.
    pub key: Option<Expr>,
    pub value: Expr,
    /// Values with the same key are gathered in a list (`...`).
    pub group: bool,
    pub condition: Option<Expr>,
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    Attr(String),
    Index(Expr),
    /// `.*`: only the attribute names that follow apply to each element.
    AttrSplat,
    /// `[*]`: everything that follows applies to each element.
    FullSplat,
}

#[derive(Debug, Clone)]
pub(super) enum Part {
    Text(String),
    Value(Expr),
    If { condition: Expr, then: Vec<Part>, otherwise: Vec<Part> },
    For { key_name: Option<String>, value_name: String, collection: Expr, body: Vec<Part> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    And,
    Or,
    Eq,
    NotEq,
    Less,
    LessEq,
    Greater,
    GreaterEq,
}

impl Expr {
    /// Calls `visit` with every name that is followed by steps, in this expression and below.
    pub fn references(&self, visit: &mut dyn FnMut(&Pos, &str, &[Step])) {
        match &self.kind {
            Kind::Literal(_) => {}
            Kind::Template(parts) => parts.iter().for_each(|p| p.references(visit)),
            Kind::List(items) => items.iter().for_each(|e| e.references(visit)),
            Kind::Object(items) => items.iter().for_each(|(k, v)| {
                k.references(visit);
                v.references(visit);
            }),
            Kind::Reference { name, steps, .. } => {
                visit(&self.pos, name, steps);
                step_references(steps, visit);
            }
            Kind::Traversal(root, steps) => {
                root.references(visit);
                step_references(steps, visit);
            }
            Kind::Call(call) => call.args.iter().for_each(|e| e.references(visit)),
            Kind::Not(e) | Kind::Negate(e) => e.references(visit),
            Kind::Binary(left, _, right) => {
                left.references(visit);
                right.references(visit);
            }
            Kind::Conditional(three) => three.iter().for_each(|e| e.references(visit)),
            Kind::For(f) => {
                for e in
                    [Some(&f.collection), f.key.as_ref(), Some(&f.value), f.condition.as_ref()].into_iter().flatten()
                {
                    e.references(visit);
                }
            }
        }
    }
}

fn step_references(steps: &[Step], visit: &mut dyn FnMut(&Pos, &str, &[Step])) {
    for step in steps {
        if let Step::Index(index) = step {
            index.references(visit);
        }
    }
}

impl Part {
    fn references(&self, visit: &mut dyn FnMut(&Pos, &str, &[Step])) {
        match self {
            Part::Text(_) => {}
            Part::Value(e) => e.references(visit),
            Part::If { condition, then, otherwise } => {
                condition.references(visit);
                then.iter().chain(otherwise).for_each(|p| p.references(visit));
            }
            Part::For { collection, body, .. } => {
                collection.references(visit);
                for part in body {
                    part.references(visit);
                }
            }
        }
    }
}
