//! The `agentbin` program: which role it plays is decided in `roles`.

#[path = "sys/without_sscanf.rs"]
mod without_sscanf;

fn main() -> ! {
    agentbin::roles::main()
}
