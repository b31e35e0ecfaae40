//! The `agentbin` program: which role it plays is decided in `roles`.

fn main() -> ! {
    agentbin::roles::main()
}

/// Stands for the C library's function, by which only aws-lc reads something: the variable `OPENSSL_ia32cap`, which turns features of
/// the processor off. The variable has no effect here, and 85 KB of the C library are not in the program.
// SAFETY: a caller passes more arguments, which it removes itself, and takes 0 for nothing that was read. No other code of the program
// has the name.
#[unsafe(no_mangle)]
extern "C" fn __isoc99_sscanf() -> core::ffi::c_int {
    0
}
