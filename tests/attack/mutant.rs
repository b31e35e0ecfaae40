//! agentbin with doors that can be taken out: `AGENTBIN_MUTANT` names which. For tests only.

mod doors;

fn main() {
    let args: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).skip(1).collect();
    if args.first().is_some_and(|arg| arg == "catalog") {
        return doors::catalog(&args[1..]);
    }
    agentbin::roles::main()
}
