//! What happens when the things waitgate leans on break.

mod embedded;
mod gateways;
mod store;
