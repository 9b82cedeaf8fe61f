//! The path of a request, a file per step.

mod headers;
mod server;
mod upgrade;
mod upstream;
