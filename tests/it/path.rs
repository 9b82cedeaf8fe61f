//! The path of a request, a file per step.

mod claim;
mod corpus;
mod headers;
mod limit;
mod login;
mod room;
mod server;
mod sold_out;
mod strict;
mod token;
mod upgrade;
mod upstream;
mod wait;
mod waiting;
