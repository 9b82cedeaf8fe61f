//! A file per file in `lua/`.

mod admit;
