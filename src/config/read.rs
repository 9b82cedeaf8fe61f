//! (being written)
/// (being written)
#[derive(Debug)]
pub struct Mistake;
/// (being written)
#[derive(Debug)]
pub struct Mistakes;
/// (being written)
pub fn load() {}
/// (being written)
pub fn parse() {}
