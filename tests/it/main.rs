//! The one integration binary: real sockets, real Redis, no mocks.

mod config;
