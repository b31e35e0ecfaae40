//! Decides which program this process is and ends it. Never holds logic that somebody else would want.
/// x
pub fn init() {}
/// y
#[expect(clippy::disallowed_methods, reason = "the one place where the program ends")]
pub fn main() -> ! {
    std::process::exit(0)
}
