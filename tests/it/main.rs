//! The one integration binary: real sockets, real Redis, no mocks. `scripts` holds a file per file in `lua/`, `path` a file per step.

#![allow(unreachable_pub, reason = "a test binary is used by nobody")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod backend;
mod between;
mod cli;
mod config;
mod crew;
mod demo;
mod doctor;
mod faults;
mod frames;
mod gateway;
mod harness;
mod house;
mod kinds;
mod model;
mod ops;
mod papers;
mod path;
mod rehearse;
mod scripts;
