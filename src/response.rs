//! The gateway's own answers: pages and problems, HTML or JSON.

pub mod problem;
pub mod view;
