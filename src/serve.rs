//! (assembly)
