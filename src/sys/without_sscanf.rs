//! What stands for a function of the C library that no code here needs: a part of the program only, not of the library.

/// Defines the C library's `sscanf`, which reads nothing. Only aws-lc calls it, for the variable `OPENSSL_ia32cap`, which turns features
/// of the processor off: the variable has no effect then, and the C library's function is not in the program.
#[doc(hidden)]
#[macro_export]
macro_rules! without_sscanf {
    () => {
        // SAFETY: a caller passes more arguments, which it removes itself, and takes 0 for nothing that was read. No other code of
        // the program has the name.
        #[unsafe(no_mangle)]
        extern "C" fn __isoc99_sscanf() -> core::ffi::c_int {
            0
        }
    };
}
