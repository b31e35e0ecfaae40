//! Functions of the job file on lists, sets and maps.

use super::{Outcome, int, list, map, number, text, wrong};
use crate::jobspec::ast::Operator;
use crate::jobspec::operators::{arithmetic, indexed};
use crate::jobspec::value::{Number, Value};
use crate::spec::collections::BTreeMap;
use crate::spec::{Order as _, TryIntoMap as _};

/// Most elements that `range` and `setproduct` make.
const MOST_ELEMENTS: usize = 1024;

pub(super) fn chunklist(args: &[Value]) -> Outcome {
    let items = list(args, 0)?;
    match usize::try_from(int(args, 1)?).map_err(|_| "the size must not be negative")? {
        0 => Ok(Value::List(vec![Value::List(items.to_vec())])),
        size => Ok(Value::List(items.chunks(size).map(|c| Value::List(c.to_vec())).collect())),
    }
}

pub(super) fn coalesce(args: &[Value]) -> Outcome {
    args.iter().find(|v| **v != Value::Null).cloned().ok_or_else(|| "every argument is null".to_owned())
}

pub(super) fn coalescelist(args: &[Value]) -> Outcome {
    for i in 0..args.len() {
        if args[i] != Value::Null && !list(args, i)?.is_empty() {
            return Ok(args[i].clone());
        }
    }
    Err("every argument is an empty list".to_owned())
}

pub(super) fn compact(args: &[Value]) -> Outcome {
    let empty = |v: &Value| matches!(v, Value::Null) || matches!(v, Value::String(s) if s.is_empty());
    Ok(Value::List(list(args, 0)?.iter().filter(|v| !empty(v)).cloned().collect()))
}

pub(super) fn concat(args: &[Value]) -> Outcome {
    let mut all = Vec::new();
    for i in 0..args.len() {
        all.extend_from_slice(list(args, i)?);
    }
    Ok(Value::List(all))
}

pub(super) fn contains(args: &[Value]) -> Outcome {
    Ok(Value::Bool(list(args, 0)?.contains(&args[1])))
}

pub(super) fn distinct(args: &[Value]) -> Outcome {
    let items = list(args, 0)?;
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.order_by(|a, b| items[*a].compare(&items[*b]));
    // Sorting keeps the order of equals, so that the first of them is the one that stays.
    order.dedup_by(|later, first| items[*later] == items[*first]);
    order.sort_unstable();
    Ok(Value::List(order.into_iter().map(|i| items[i].clone()).collect()))
}

pub(super) fn element(args: &[Value]) -> Outcome {
    let items = list(args, 0)?;
    let count = i128::try_from(items.len()).ok().filter(|n| *n > 0).ok_or("the list is empty")?;
    let index = int(args, 1)?.rem_euclid(count);
    usize::try_from(index).ok().and_then(|i| items.get(i)).cloned().ok_or_else(|| "the list is empty".to_owned())
}

pub(super) fn flatten(args: &[Value]) -> Outcome {
    fn add(items: &[Value], out: &mut Vec<Value>) {
        for item in items {
            match item.elements() {
                Some(inner) => add(inner, out),
                None => out.push(item.clone()),
            }
        }
    }
    let mut out = Vec::new();
    add(list(args, 0)?, &mut out);
    Ok(Value::List(out))
}

pub(super) fn index(args: &[Value], hints: &dyn Fn() -> bool) -> Outcome {
    indexed(&args[0], &args[1], hints).cloned()
}

pub(super) fn keys(args: &[Value]) -> Outcome {
    Ok(Value::List(map(args, 0)?.keys().map(Value::string).collect()))
}

pub(super) fn values(args: &[Value]) -> Outcome {
    Ok(Value::List(map(args, 0)?.values().cloned().collect()))
}

pub(super) fn length(args: &[Value]) -> Outcome {
    match &args[0] {
        Value::Object(map) => Ok(Value::usize(map.len())),
        Value::String(_) => Err("argument 1 must be a list, set or map; strlen counts characters".to_owned()),
        _ => Ok(Value::usize(list(args, 0)?.len())),
    }
}

pub(super) fn lookup(args: &[Value]) -> Outcome {
    let key = text(args, 1)?;
    let found = map(args, 0)?.get(&key).or_else(|| args.get(2)).cloned();
    found.ok_or_else(|| format!("there is no key \"{key}\" and no default; give a third argument"))
}

pub(super) fn merge(args: &[Value]) -> Outcome {
    let mut all = BTreeMap::new();
    for i in 0..args.len() {
        if args[i] != Value::Null {
            all.extend(map(args, i)?.clone());
        }
    }
    Ok(Value::Object(all))
}

pub(super) fn range(args: &[Value]) -> Outcome {
    let zero = Number::Int(0);
    let (start, end) = match args.len() {
        1 => (zero, number(args, 0)?),
        _ => (number(args, 0)?, number(args, 1)?),
    };
    let down = end.compare(start).is_lt();
    let step = match args.len() {
        3 => number(args, 2)?,
        _ => Number::Int(if down { -1 } else { 1 }),
    };
    if step.compare(zero).is_eq() || (step.compare(zero).is_lt() != down && end != start) {
        return Err("the step must lead from the start to the end".to_owned());
    }
    let mut items = Vec::new();
    let mut next = start;
    while if down { next.compare(end).is_gt() } else { next.compare(end).is_lt() } {
        if items.len() == MOST_ELEMENTS {
            return Err(format!("the range has more than {MOST_ELEMENTS} elements"));
        }
        items.push(Value::Number(next));
        match arithmetic(Operator::Add, next, step)? {
            Value::Number(n) => next = n,
            _ => break,
        }
    }
    Ok(Value::List(items))
}

pub(super) fn setintersection(args: &[Value]) -> Outcome {
    let mut common = list(args, 0)?.to_vec();
    for i in 1..args.len() {
        let mut other: Vec<&Value> = list(args, i)?.iter().collect();
        other.order_by(|a, b| a.compare(b));
        common.retain(|v| other.binary_search_by(|o| o.compare(v)).is_ok());
    }
    Ok(Value::set(common))
}

pub(super) fn setproduct(args: &[Value]) -> Outcome {
    let mut rows = vec![Vec::new()];
    for i in 0..args.len() {
        let items = list(args, i)?;
        if rows.len().saturating_mul(items.len()) > MOST_ELEMENTS * MOST_ELEMENTS {
            return Err("the product has too many elements".to_owned());
        }
        rows = rows
            .iter()
            .flat_map(|row: &Vec<Value>| items.iter().map(|v| [row.as_slice(), std::slice::from_ref(v)].concat()))
            .collect();
    }
    let rows = rows.into_iter().map(Value::List).collect();
    let sets = args.iter().all(|a| matches!(a, Value::Set(_)));
    Ok(if sets { Value::set(rows) } else { Value::List(rows) })
}

pub(super) fn setunion(args: &[Value]) -> Outcome {
    match concat(args)? {
        Value::List(items) => Ok(Value::set(items)),
        other => Ok(other),
    }
}

pub(super) fn slice(args: &[Value]) -> Outcome {
    let items = list(args, 0)?;
    let [start, end] = [int(args, 1)?, int(args, 2)?].map(usize::try_from);
    let part = start.ok().zip(end.ok()).and_then(|(s, e)| items.get(s..e));
    part.map(|p| Value::List(p.to_vec()))
        .ok_or_else(|| format!("the bounds lie outside of the list of {}", items.len()))
}

pub(super) fn sort(args: &[Value]) -> Outcome {
    let mut words = Vec::new();
    for item in list(args, 0)? {
        words.push(item.to_text().ok_or_else(|| wrong(0, "a list of strings", &args[0]))?);
    }
    words.sort();
    Ok(Value::List(words.into_iter().map(Value::String).collect()))
}

pub(super) fn zipmap(args: &[Value]) -> Outcome {
    let (keys, values) = (list(args, 0)?, list(args, 1)?);
    if keys.len() != values.len() {
        return Err(format!("there are {} keys for {} values", keys.len(), values.len()));
    }
    let pairs = keys
        .iter()
        .zip(values)
        .map(|(k, v)| k.to_text().map(|k| (k, v.clone())).ok_or_else(|| wrong(0, "a list of strings", &args[0])));
    pairs.try_into_map().map(Value::Object)
}
