//! Doors of the library that no role of ours has yet; the mutants have them, too.

use std::path::Path;
use std::sync::Arc;

use agentbin::driver::catalog::{Block, Log, examine, scan};
use agentbin::spec::collections::BTreeMap;

/// `catalog DIR NAME...`: finds the plugins of these names, and starts those that are found to ask what they are.
pub fn catalog(args: &[String]) {
    let names = &args[1..];
    let blocks: BTreeMap<String, Block> = names.iter().map(|name| (name.clone(), Block::default())).collect();
    let found = scan(Path::new(&args[0]), &blocks).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let log: Log = Arc::new(|_, _| {});
    for (name, path) in found {
        println!("FOUND {name}");
        // It is not a plugin and fails; what counts is that it was started.
        let _ = runtime.block_on(examine(&name, &path, &[], &log));
    }
}
