//! The `agentbin` program: which role it plays is decided in `roles`.

agentbin::without_sscanf!();

fn main() -> ! {
    agentbin::roles::main()
}
