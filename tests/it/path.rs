//! The path of a request, a file per step.

mod claim;
mod headers;
mod server;
mod sold_out;
mod upgrade;
mod upstream;
mod wait;
mod waiting;
