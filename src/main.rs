//! The `agentbin` program: which role it plays is decided in `roles`.

fn main() -> ! {
    agentbin::roles::main()
}
