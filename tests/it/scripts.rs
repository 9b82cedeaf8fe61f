//! A file per file in `lua/`, and what holds for every script.

mod admit;
mod answer;
pub mod claim;
mod depart;
mod greet;
mod every;
mod join;
mod measure;
mod redeem;
mod seed;
mod settle;
mod show;
mod sweep;
mod tune;
