//! (being written)
/// (being written)
pub fn show() {}
