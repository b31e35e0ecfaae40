//! agentbin with doors that can be taken out: `AGENTBIN_MUTANT` names which. For tests only.

fn main() -> ! {
    agentbin::roles::main()
}
