//! The store (being written).

pub mod scripts;

/// (being written)
#[derive(Clone, Debug)]
pub struct RoomStore;
