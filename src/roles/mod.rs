//! skeleton
/// x
pub fn init() {}
/// y
pub fn main() -> ! {
    std::process::exit(0)
}
