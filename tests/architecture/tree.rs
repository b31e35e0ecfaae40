//! The modules of a crate, and which item a path in one of them names.
//!
//! Only what `use`, `mod` and items say is followed: enough to find the file in which an item is defined. A name that a macro
//! defines is taken for one of the module that the path leads to.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Item, Named, Place, Source};

/// The file that defines an item, and its place in the tree of modules.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Definition {
    /// The index of the file.
    pub file: usize,
    pub module: Vec<String>,
    pub name: String,
    /// What of it the path names: a method, a variant.
    pub part: Option<String>,
}

/// What a path leads to.
#[derive(Debug, Clone)]
enum Found {
    Module(Vec<String>),
    Item(Definition),
}

/// A module: a file, or a `mod` with braces in one.
#[derive(Debug, Default)]
struct Module<'a> {
    file: usize,
    declared: Vec<&'a Item>,
    /// What it defines, without modules and without what belongs to a type.
    items: BTreeMap<&'a str, &'a Item>,
    /// What it uses, by the name that it has here.
    uses: BTreeMap<&'a str, &'a Named>,
    globs: Vec<&'a Named>,
}

fn definition(file: usize, module: &[String], name: &str) -> Definition {
    Definition { file, module: module.to_vec(), name: name.to_owned(), part: None }
}

/// The tree of modules of `src/`.
pub struct Tree<'a> {
    pub sources: &'a [Source],
    modules: BTreeMap<Vec<String>, Module<'a>>,
}

/// The module of a file: `alloc/check/mod.rs` is `alloc::check`. `None` for a program.
pub fn module_path(path: &str) -> Option<Vec<String>> {
    if path == "main.rs" {
        return None;
    }
    let path = path.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    Some(if path == "lib" { Vec::new() } else { path.split('/').map(str::to_owned).collect() })
}

/// Marks the files that are compiled for tests only, by the declarations of their modules.
pub fn mark_tests(sources: &mut [Source]) {
    let mut of_tests = BTreeSet::new();
    for source in sources.iter() {
        let Some(module) = module_path(&source.path) else { continue };
        for item in source.items.iter().filter(|item| item.kind == "mod" && item.of_tests) {
            of_tests.insert([&module[..], &item.inside, std::slice::from_ref(&item.name)].concat());
        }
    }
    for source in sources {
        let module = module_path(&source.path).unwrap_or_default();
        source.of_tests |= (1..=module.len()).any(|depth| of_tests.contains(&module[..depth]));
    }
}

impl<'a> Tree<'a> {
    pub fn new(sources: &'a [Source]) -> Self {
        let mut modules: BTreeMap<Vec<String>, Module<'a>> = BTreeMap::new();
        for (file, source) in sources.iter().enumerate() {
            let Some(path) = module_path(&source.path) else { continue };
            modules.entry(path.clone()).or_default().file = file;
            for item in source.items.iter().filter(|item| item.owner.is_none() && !item.nested) {
                let place = [&path[..], &item.inside].concat();
                let module = modules.entry(place).or_default();
                module.file = file;
                if item.kind == "mod" {
                    module.declared.push(item);
                    continue;
                }
                // Of two with one name, the one of a release build counts.
                if !item.of_tests || !module.items.contains_key(item.name.as_str()) {
                    module.items.insert(&item.name, item);
                }
            }
            for named in &source.paths {
                let place = [&path[..], &named.inside].concat();
                let module = modules.entry(place).or_default();
                module.file = file;
                match &named.place {
                    Place::Use { name: Some(name), .. } => {
                        if !named.of_tests || !module.uses.contains_key(name.as_str()) {
                            module.uses.insert(name, named);
                        }
                    }
                    Place::Use { name: None, .. } => module.globs.push(named),
                    Place::Code | Place::Tokens => {}
                }
            }
        }
        Self { sources, modules }
    }

    /// The item of this crate that a path leads to which stands in a file.
    pub fn definition(&self, file: usize, named: &Named) -> Option<Definition> {
        let module = [&module_path(&self.sources[file].path)?[..], &named.inside].concat();
        match self.follow(&module, &named.words, matches!(named.place, Place::Use { .. }), 0)? {
            Found::Item(definition) => Some(definition),
            Found::Module(_) => None,
        }
    }

    /// The item of this crate that some words lead to, from a module.
    pub fn item(&self, module: &[String], words: &[String]) -> Option<Definition> {
        match self.follow(module, words, false, 0)? {
            Found::Item(definition) => Some(definition),
            Found::Module(_) => None,
        }
    }

    /// The module that some words lead to, from a module.
    pub fn module(&self, module: &[String], words: &[String]) -> Option<Vec<String>> {
        match self.follow(module, words, true, 0)? {
            Found::Module(module) => Some(module),
            Found::Item(_) => None,
        }
    }

    /// What a module defines itself.
    pub fn own_items(&self, module: &[String]) -> impl Iterator<Item = &Item> {
        let module = self.modules.get(module);
        module.into_iter().flat_map(|module| module.items.values().chain(&module.declared).copied())
    }

    /// What a module uses.
    pub fn own_uses(&self, module: &[String]) -> impl Iterator<Item = &Named> {
        let module = self.modules.get(module);
        module.into_iter().flat_map(|module| module.uses.values().chain(&module.globs).copied())
    }

    /// What kind of item it is; "" where a macro defines it.
    pub fn kind(&self, definition: &Definition) -> &'static str {
        let item = self.modules.get(&definition.module).and_then(|module| module.items.get(definition.name.as_str()));
        item.map_or("", |item| item.kind)
    }

    /// Where words lead. `onward`: more words follow, so that it is a module or a type; a function of the same name is another thing.
    fn follow(&self, from: &[String], words: &[String], onward: bool, depth: usize) -> Option<Found> {
        // `use` in circles.
        if depth > 16 {
            return None;
        }
        let (first, mut rest) = words.split_first()?;
        let mut found = match first.as_str() {
            "crate" => Found::Module(Vec::new()),
            "self" => Found::Module(from.to_vec()),
            "super" => Found::Module(from.split_last()?.1.to_vec()),
            name => self.inside(from, name, onward || !rest.is_empty(), depth)?,
        };
        while let (Found::Module(module), Some((next, after))) = (&found, rest.split_first()) {
            found = match next.as_str() {
                "super" => Found::Module(module.split_last()?.1.to_vec()),
                "self" => Found::Module(module.clone()),
                name => match self.inside(module, name, onward || !after.is_empty(), depth) {
                    Some(found) => found,
                    None => self.unknown(module, name)?,
                },
            };
            rest = after;
        }
        if let Found::Item(definition) = &mut found
            && definition.part.is_none()
        {
            definition.part = rest.first().cloned();
        }
        Some(found)
    }

    /// What a name is in a module.
    fn inside(&self, path: &[String], name: &str, onward: bool, depth: usize) -> Option<Found> {
        let child = [path, &[name.to_owned()]].concat();
        let child = self.modules.contains_key(&child).then_some(Found::Module(child));
        if onward && child.is_some() {
            return child;
        }
        let module = self.modules.get(path)?;
        if module.items.contains_key(name) {
            return Some(Found::Item(definition(module.file, path, name)));
        }
        if child.is_some() {
            return child;
        }
        if let Some(named) = module.uses.get(name) {
            return self.follow(path, &named.words, onward, depth + 1);
        }
        module.globs.iter().find_map(|named| match self.follow(path, &named.words, true, depth + 1)? {
            Found::Module(module) if module != path => self.inside(&module, name, onward, depth + 1),
            _ => None,
        })
    }

    /// A name that nothing in a module explains: a macro has defined it there, or it is another crate's.
    fn unknown(&self, path: &[String], name: &str) -> Option<Found> {
        let module = self.modules.get(path)?;
        let elsewhere = module.uses.contains_key(name);
        (!elsewhere).then(|| Found::Item(definition(module.file, path, name)))
    }
}
