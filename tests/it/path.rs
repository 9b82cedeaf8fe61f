//! The path of a request, a file per step.

mod claim;
mod headers;
mod server;
mod upgrade;
mod upstream;
mod wait;
