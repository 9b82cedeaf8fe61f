//! What happens when the things waitgate leans on break.

mod drain;
mod embedded;
mod gateways;
mod store;
mod store_loss;
